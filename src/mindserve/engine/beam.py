"""Beam search: the `n` best continuations by mean token log-probability.

Beams grow by the sum of their log-probabilities. A hypothesis is finished when its end token is among the best `n`
candidates of a step, or at the last allowed token; the `n` best others go on. The search ends when `n` hypotheses are
finished and the best running mean is no better than the worst finished one. The end token counts, the prompt does not.

Only the choice is made here. The engine says what may follow each beam, and lets the chosen ones run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mindserve.engine.base import FinishReason, TokenLogprob

Candidates = tuple[tuple[int, float], ...]
"""Next tokens with their log-probabilities, best first."""


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


@dataclass(slots=True, eq=False, kw_only=True)
class Beam:
    """One continuation that may still grow."""

    token_ids: tuple[int, ...] = ()
    """Without the prompt."""
    score: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    candidates: Candidates | None = None
    """Best next tokens; None until the engine has computed them."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """A beam and its next token."""

    beam: Beam
    token_id: int
    logprob: float

    @property
    def score(self) -> float:
        return self.beam.score + self.logprob


class BeamSearch:
    """The beams of one request."""

    def __init__(self, *, width: int, shown: int | None, end_token_ids: frozenset[int], max_new_tokens: int) -> None:
        """`width`: beams and hypotheses; `shown`: rivals reported with each token."""
        self._width = width
        self._shown = shown or 0
        self._end_token_ids = end_token_ids
        self._max_new_tokens = max_new_tokens
        self.hypotheses: list[Hypothesis] = []
        """Finished ones, best first; all of them once the search is over."""
        self.beams = [Beam()]
        """None left: the search is over."""

    @property
    def candidates_needed(self) -> int:
        """Per beam: so many that `n` are left of one beam when all end tokens are among them."""
        return max(self._shown, self._width + max(1, len(self._end_token_ids)))

    def advance(self) -> list[tuple[Beam, Beam]]:
        """Choose the next beams, when all have their candidates; returns each one's parent beside it."""
        found = [_Growth(beam, *pair) for beam in self.beams for pair in beam.candidates or ()]
        found.sort(key=lambda growth: -growth.score)
        is_last = len(self.beams[0].token_ids) + 1 >= self._max_new_tokens
        self._finish((growth for growth in found[: self._width] if is_last or self._has_ended(growth)), is_last=is_last)
        going_on = [growth for growth in found if not self._has_ended(growth)][: self._width]
        if is_last or not going_on or self._cannot_improve(going_on[0]):
            self.beams = []
            return []
        grown = [(growth.beam, self._child(growth)) for growth in going_on]
        self.beams = [child for _, child in grown]
        return grown

    def _has_ended(self, growth: _Growth) -> bool:
        return growth.token_id in self._end_token_ids

    def _cannot_improve(self, best: _Growth) -> bool:
        if len(self.hypotheses) < self._width:
            return False
        return best.score / (len(best.beam.token_ids) + 1) <= self.hypotheses[-1].mean

    def _finish(self, growths: Iterable[_Growth], *, is_last: bool) -> None:
        for growth in growths:
            child = self._child(growth)
            hypothesis = Hypothesis(
                token_ids=child.token_ids,
                logprobs=child.logprobs,
                score=child.score,
                reason=FinishReason.LENGTH if is_last else FinishReason.STOP,
            )
            self.hypotheses.append(hypothesis)
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.mean)
        del self.hypotheses[self._width :]

    def _child(self, growth: _Growth) -> Beam:
        top = (growth.beam.candidates or ())[: self._shown]
        return Beam(
            token_ids=(*growth.beam.token_ids, growth.token_id),
            score=growth.score,
            logprobs=(*growth.beam.logprobs, TokenLogprob(logprob=growth.logprob, top=top)),
        )
