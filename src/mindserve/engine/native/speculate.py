"""Drafts by prompt lookup: what followed the last few tokens when they occurred before may follow again.

A step computes the draft's tokens beside the sequence's own next one and chooses a token after each; as long as these
agree with the draft, the step has brought several tokens. Only greedy choice from the model's own logits is drafted
for: the tokens are the same as without drafts.

A drafter follows one earlier place in its sequence and compares every token that comes with the one there, whether it
was drafted or not. So it knows how far it can be trusted before it costs anything: text that does not repeat itself
is hardly ever drafted for, and a copied passage is recognised within a token or two.
"""

from collections.abc import Sequence

from mindserve.engine.base import GenerateRequest

LONGEST_GRAM, SHORTEST_GRAM = 3, 2
MAX_ROWS = 16
"""Tokens of a step up to which drafts are added to its decodes; beyond it rows cost more than they may save."""
LEAST_CHANCE, CHANCE_PER_DECODE = 0.15, 0.065
"""How probable a drafted token must be: what its row costs, as a share of what the step brings. Measured: the second
row of a lone sequence adds 10 % to a step, further ones 4 %, and a row each for 8 sequences adds 50 %."""
FIRST_TRUST = (0.3, 0.5, 0.7, 0.8, 0.9)
"""Chance of the next token to be right after so many right ones in a row, before anything is known."""
LEARNING_RATE = 0.15


def can_draft(request: GenerateRequest) -> bool:
    """Whether every token of the request is the best one of the model's own logits."""
    sampling = request.sampling
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return sampling.is_greedy and request.mask is None and not request.use_beam_search and penalties == (1, 0, 0)


def least_chance(decodes: int) -> float:
    """How probable a drafted token must be in a step of so many decoding sequences."""
    return max(LEAST_CHANCE, CHANCE_PER_DECODE * decodes)


class Drafter:
    """Remembers where each short run of tokens of one sequence was followed by what, and how often that came true."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._next: dict[tuple[int, ...], int] = {}
        """Run of tokens -> index of the token that followed it last."""
        self._read = 0
        """Tokens that have been learned."""
        self._place: int | None = None
        """Index of the token that is expected next."""
        self._agreed = 0
        """Tokens in a row that came as expected."""
        self._trust = list(FIRST_TRUST)

    def propose(self, tokens: Sequence[int], limit: int, *, chance: float = LEAST_CHANCE) -> tuple[int, ...]:
        """At most `limit` tokens that may follow `tokens`, which only ever grow from call to call: as many as are
        each, with all before it, as probable as `chance`."""
        self._read_on(tokens)
        draft: list[int] = []
        if self._place is not None:
            for place in range(self._place, self._place + self._count_probable(min(limit, self._longest), chance)):
                # a short loop goes on with what has just been drafted
                draft.append(tokens[place] if place < len(tokens) else draft[place - len(tokens)])
        return tuple(draft)

    def _count_probable(self, limit: int, chance: float) -> int:
        count, probability = 0, 1.0
        while count < limit:
            probability *= self._trust[self._level(self._agreed + count)]
            if probability < chance:
                break
            count += 1
        return count

    def _level(self, agreed: int) -> int:
        return min(agreed, len(self._trust) - 1)

    def _read_on(self, tokens: Sequence[int]) -> None:
        """Judge what was expected, learn the new tokens, and expect something again. The first call only learns."""
        is_judging = self._read > 0
        for place in range(self._read, len(tokens)):
            if is_judging:
                self._judge(tokens, place)
            self._learn(tokens, place)
            if is_judging and self._place is None:
                self._place = self._find(tokens, place + 1)
        if not is_judging:
            self._place = self._find(tokens, len(tokens))
        self._read = len(tokens)

    def _judge(self, tokens: Sequence[int], place: int) -> None:
        if self._place is None:
            return
        is_right = tokens[self._place] == tokens[place]
        level = self._level(self._agreed)
        self._trust[level] += LEARNING_RATE * (is_right - self._trust[level])
        self._agreed = self._agreed + 1 if is_right else 0
        self._place = self._place + 1 if is_right else None

    def _learn(self, tokens: Sequence[int], place: int) -> None:
        for size in range(SHORTEST_GRAM, LONGEST_GRAM + 1):
            if place >= size:
                self._next[tuple(tokens[place - size : place])] = place

    def _find(self, tokens: Sequence[int], end: int) -> int | None:
        """What followed the longest known run of tokens that ends before `end`."""
        for size in range(min(LONGEST_GRAM, end), SHORTEST_GRAM - 1, -1):
            place = self._next.get(tuple(tokens[end - size : end]))
            if place is not None:
                return place
        return None


def count_agreed(draft: Sequence[int], chosen: Sequence[int | None]) -> int:
    """How many of the draft's tokens were chosen too, up to the first that was not."""
    agreed = 0
    while agreed < len(draft) and chosen[agreed] == draft[agreed]:
        agreed += 1
    return agreed
