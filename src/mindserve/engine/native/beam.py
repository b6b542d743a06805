"""The sequences of a beam search (`engine.beam` makes the choice).

Every beam is a sequence of its own in the scheduler, and shares blocks with those that it has a past in common with.
The choice needs all beams of a request; those that are ahead of others (which wait for blocks or a place in the
batch) give up their blocks until then, so that a search of any width finishes with any number of blocks.
"""

from mindserve.engine.beam import Beam, BeamSearch, Candidates, Hypothesis
from mindserve.engine.native.scheduler import Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status


class BeamSequences:
    """The beams of one request, in the scheduler."""

    def __init__(self, active: ActiveRequest, scheduler: Scheduler) -> None:
        self._active = active
        self._scheduler = scheduler
        self._born = 1
        self._search = BeamSearch(
            width=active.request.n,
            shown=active.request.sampling.logprobs,
            end_token_ids=active.end_token_ids,
            max_new_tokens=active.max_new_tokens,
        )
        root = Sequence(active, 0)
        root.tokens = list(active.request.prompt_token_ids)
        root.sampler.shown = self._search.candidates_needed
        self._sequences: dict[Beam, Sequence] = {self._search.beams[0]: root}
        scheduler.add(root)

    def collect(self, sequence: Sequence, candidates: Candidates) -> None:
        """A step has computed what may follow one of the beams."""
        for beam, of_beam in self._sequences.items():
            if of_beam is sequence:
                beam.candidates = candidates

    def advance(self) -> list[Hypothesis] | None:
        """Choose the next beams, if all candidates are there. Returns the hypotheses, best first, at the end."""
        if any(beam.candidates is None for beam in self._sequences):
            self._park_those_ahead()
            return None
        grown = self._search.advance()
        if not grown:
            self.release()
            return self._search.hypotheses
        self._grow(grown)
        return None

    def release(self) -> None:
        """Give up all beams."""
        for sequence in self._sequences.values():
            self._scheduler.finish(sequence)
        self._sequences = {}

    def _grow(self, grown: list[tuple[Beam, Beam]]) -> None:
        """A beam's first child goes on in its place, further ones are copies; beams without children end."""
        free = self._sequences
        parents = {parent for parent, _ in grown}
        for beam, sequence in free.items():
            if beam not in parents:
                self._scheduler.finish(sequence)
        self._sequences = {}
        seen: set[Beam] = set()
        for parent, child in grown:
            self._sequences[child] = self._copy(free[parent]) if parent in seen else free[parent]
            seen.add(parent)
        for child, sequence in self._sequences.items():
            sequence.tokens.append(child.token_ids[-1])
            sequence.sampler.accept(child.token_ids[-1])
            if sequence.status is Status.PARKED:
                self._scheduler.add(sequence)

    def _copy(self, sequence: Sequence) -> Sequence:
        copy = Sequence(self._active, self._born, sampler=sequence.sampler.fork())
        self._born += 1
        self._scheduler.fork(sequence, copy)
        return copy

    def _park_those_ahead(self) -> None:
        for beam, sequence in self._sequences.items():
            if beam.candidates is not None and sequence.status is Status.RUNNING:
                self._scheduler.park(sequence)
