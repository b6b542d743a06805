"""Beam search: the `n` best continuations by mean token log-probability.

Beams grow by the sum of their log-probabilities. A hypothesis is finished when its end token is among the best `n`
candidates of a step, or at the last allowed token; the `n` best others go on. The search ends when `n` hypotheses are
finished and the best running mean is no better than the worst finished one. The end token counts, the prompt does not.

Every beam is a sequence of its own in the scheduler, and shares blocks with those that it has a past in common with.
The choice needs all beams of a request; those that are ahead of others (which wait for blocks or a place in the
batch) give up their blocks until then, so that a search of any width finishes with any number of blocks.
"""

from dataclasses import dataclass

from mindserve.engine.base import FinishReason, TokenLogprob
from mindserve.engine.native.scheduler import Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A finished beam."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    score: float
    """Sum of the log-probabilities."""
    reason: FinishReason

    @property
    def mean(self) -> float:
        """What finished hypotheses are ranked by."""
        return self.score / len(self.token_ids)


@dataclass(slots=True)
class _Beam:
    sequence: Sequence
    score: float
    logprobs: tuple[TokenLogprob, ...]
    candidates: tuple[tuple[int, float], ...] | None = None
    """Best next tokens with their log-probabilities; None until the step that computes them."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A beam and its next token."""

    beam: _Beam
    token_id: int
    logprob: float

    @property
    def score(self) -> float:
        return self.beam.score + self.logprob


class BeamSearch:
    """The beams of one request."""

    def __init__(self, active: ActiveRequest, scheduler: Scheduler) -> None:
        self._active = active
        self._scheduler = scheduler
        self._width = active.request.n
        self._shown = active.request.sampling.logprobs or 0
        self._born = 1
        self._done: list[Hypothesis] = []
        root = Sequence(active, 0)
        root.tokens = list(active.request.prompt_token_ids)
        # so many that `n` are left of one beam when all end tokens are among them
        root.sampler.shown = max(self._shown, self._width + max(1, len(active.end_token_ids)))
        self._beams = [_Beam(root, 0.0, ())]
        scheduler.add(root)

    def collect(self, sequence: Sequence, candidates: tuple[tuple[int, float], ...]) -> None:
        """A step has computed what may follow one of the beams."""
        for beam in self._beams:
            if beam.sequence is sequence:
                beam.candidates = candidates

    def advance(self) -> list[Hypothesis] | None:
        """Choose the next beams, if all candidates are there. Returns the hypotheses, best first, at the end."""
        if any(beam.candidates is None for beam in self._beams):
            self._park_those_ahead()
            return None
        found = [_Candidate(beam, *pair) for beam in self._beams for pair in beam.candidates or ()]
        found.sort(key=lambda candidate: -candidate.score)
        is_last = self._beams[0].sequence.generated + 1 >= self._active.max_new_tokens
        self._finish([c for c in found[: self._width] if is_last or self._has_ended(c)], is_last=is_last)
        going_on = [c for c in found if not self._has_ended(c)][: self._width]
        if is_last or not going_on or self._cannot_improve(going_on[0]):
            self.release()
            return self._done
        self._grow(going_on)
        return None

    def release(self) -> None:
        """Give up all beams."""
        for beam in self._beams:
            self._scheduler.finish(beam.sequence)
        self._beams = []

    def _has_ended(self, candidate: _Candidate) -> bool:
        return candidate.token_id in self._active.end_token_ids

    def _cannot_improve(self, best: _Candidate) -> bool:
        if len(self._done) < self._width:
            return False
        return best.score / (best.beam.sequence.generated + 1) <= self._done[-1].mean

    def _finish(self, candidates: list[_Candidate], *, is_last: bool) -> None:
        for candidate in candidates:
            sequence = candidate.beam.sequence
            generated = sequence.tokens[len(sequence.tokens) - sequence.generated :]
            hypothesis = Hypothesis(
                token_ids=(*generated, candidate.token_id),
                logprobs=self._logprobs_with(candidate),
                score=candidate.score,
                reason=FinishReason.LENGTH if is_last else FinishReason.STOP,
            )
            self._done.append(hypothesis)
        self._done.sort(key=lambda hypothesis: -hypothesis.mean)
        del self._done[self._width :]

    def _logprobs_with(self, candidate: _Candidate) -> tuple[TokenLogprob, ...]:
        top = (candidate.beam.candidates or ())[: self._shown]
        return (*candidate.beam.logprobs, TokenLogprob(logprob=candidate.logprob, top=top))

    def _grow(self, candidates: list[_Candidate]) -> None:
        """A beam's first child goes on in its place, further ones are copies; beams without children end."""
        parents = {id(candidate.beam) for candidate in candidates}
        for beam in self._beams:
            if id(beam) not in parents:
                self._scheduler.finish(beam.sequence)
        children: list[_Beam] = []
        seen: set[int] = set()
        for candidate in candidates:
            sequence = candidate.beam.sequence
            if id(candidate.beam) in seen:
                sequence = self._copy(sequence)
            seen.add(id(candidate.beam))
            children.append(_Beam(sequence, candidate.score, self._logprobs_with(candidate)))
        for child, candidate in zip(children, candidates, strict=True):
            child.sequence.tokens.append(candidate.token_id)
            child.sequence.sampler.accept(candidate.token_id)
            if child.sequence.status is Status.PARKED:
                self._scheduler.add(child.sequence)
        self._beams = children

    def _copy(self, sequence: Sequence) -> Sequence:
        copy = Sequence(self._active, self._born, sampler=sequence.sampler.fork())
        self._born += 1
        self._scheduler.fork(sequence, copy)
        return copy

    def _park_those_ahead(self) -> None:
        for beam in self._beams:
            if beam.candidates is not None and beam.sequence.status is Status.RUNNING:
                self._scheduler.park(beam.sequence)
