"""Drafts by prompt lookup: what followed the last few tokens when they occurred before may follow again.

A step computes the draft's tokens beside the sequence's own next one and chooses a token after each; as long as these
agree with the draft, the step has brought several tokens. Only greedy choice from the model's own logits is drafted
for: the tokens are the same as without drafts.
"""

from collections.abc import Sequence

from mindserve.engine.base import GenerateRequest

LONGEST_GRAM, SHORTEST_GRAM = 3, 2
MAX_ROWS = 16
"""Tokens of a step up to which drafts are added to its decodes; beyond it rows cost more than they may save."""


def can_draft(request: GenerateRequest) -> bool:
    """Whether every token of the request is the best one of the model's own logits."""
    sampling = request.sampling
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return sampling.is_greedy and request.mask is None and not request.use_beam_search and penalties == (1, 0, 0)


class Drafter:
    """Remembers where each short run of tokens of one sequence was followed by what."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._length = longest
        """How much to draft next: grows with success, shrinks to what was right."""
        self._next: dict[tuple[int, ...], int] = {}
        """Run of tokens -> index of the token that followed it last."""
        self._read = 0

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may follow `tokens`, which only ever grow from call to call."""
        self._learn(tokens)
        for size in range(LONGEST_GRAM, SHORTEST_GRAM - 1, -1):
            place = self._next.get(tuple(tokens[-size:]))
            if place is not None:
                return tuple(tokens[place : place + min(limit, self._length)])
        return ()

    def learn_outcome(self, *, drafted: int, accepted: int) -> None:
        """How well a draft did."""
        self._length = min(self._longest, 2 * self._length) if accepted == drafted else max(1, accepted)

    def _learn(self, tokens: Sequence[int]) -> None:
        for place in range(self._read, len(tokens)):
            for size in range(SHORTEST_GRAM, LONGEST_GRAM + 1):
                if place >= size:
                    self._next[tuple(tokens[place - size : place])] = place
        self._read = len(tokens)


def count_agreed(draft: Sequence[int], chosen: Sequence[int | None]) -> int:
    """How many of the draft's tokens were chosen too, up to the first that was not."""
    agreed = 0
    while agreed < len(draft) and chosen[agreed] == draft[agreed]:
        agreed += 1
    return agreed
