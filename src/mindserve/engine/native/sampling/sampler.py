"""The next token of every sampled sequence of a step."""

from typing import NamedTuple

import numpy as np

from mindserve.engine.base import LOGPROB_OF_EXCLUDED, TokenLogprob
from mindserve.engine.native.sampling.draw import UNLIMITED, Draw, Ranking, Wishes, draw
from mindserve.engine.native.sampling.ranking import Wanted, rank
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.sampling.view import Glance, Look, best_few, best_many, candidates, everything
from mindserve.engine.native.step import StepOutput
from mindserve.errors import EngineFailure, MindserveError

GLANCES: tuple[tuple[Glance, int], ...] = ((candidates, 1024), (best_few, 64), (best_many, 8), (everything, 1))
"""Where tokens are looked for, and how many rows at once (full rows are large)."""


class Sampled(NamedTuple):
    """What was chosen for one sequence. Neither token nor error: its mask allows nothing any more."""

    token_id: int | None = None
    logprob: TokenLogprob | None = None
    error: MindserveError | None = None


def sample(pairs: list[tuple[int, SamplerState]], output: StepOutput) -> list[Sampled]:
    """Choose a token for each pair of an output row and a sequence's state; several may share a row. Takes one
    uniform number from each state. What goes wrong for one sequence is its own result."""
    if all(state.takes_best for _, state in pairs):
        return _best(pairs, output)
    drawing = _Drawing([Wanted(row, state) for row, state in pairs], output)
    undecided = drawing.refuse_broken()
    for glance, rows_at_once in GLANCES:
        groups = [undecided[i : i + rows_at_once] for i in range(0, len(undecided), rows_at_once)]
        undecided = [i for group in groups for i in drawing.choose(group, glance)]
    for i in undecided:
        if drawing.wanted[i].allowed is None:
            drawing.results[i] = Sampled(error=EngineFailure("The model's output leaves no token."))
    return drawing.results


def _best(pairs: list[tuple[int, SamplerState]], output: StepOutput) -> list[Sampled]:
    """The best token of each row, where nothing else is asked of any."""
    rows = [row for row, _ in pairs]
    best = output.best_ids[rows]
    is_sound = np.isfinite(output.logits[rows, best]).tolist()
    broken = Sampled(error=EngineFailure("The model's output is not a number."))
    return [Sampled(token) if sound else broken for token, sound in zip(best.tolist(), is_sound, strict=True)]


class _Drawing:
    """The tokens of one step while they are being chosen."""

    def __init__(self, wanted: list[Wanted], output: StepOutput) -> None:
        self.wanted = wanted
        self.results = [Sampled()] * len(wanted)
        self._output = output
        self._wishes = _wishes([one.state for one in wanted], output.logits.shape[1])

    def refuse_broken(self) -> list[int]:
        """Those whose logits are not numbers or whose mask fails get their errors; returns the others."""
        rows = [one.row for one in self.wanted]
        is_sound = np.isfinite(self._output.candidate_logits[rows, 0]) & ~np.isnan(self._output.log_sum_exp[rows])
        for i in np.flatnonzero(~is_sound):
            self.results[i] = Sampled(error=EngineFailure("The model's output is not a number."))
        for i, one in enumerate(self.wanted):
            if one.state.mask is not None:
                try:
                    one.allowed = one.state.mask.allowed()
                except Exception as error:
                    self.results[i] = Sampled(error=EngineFailure(f"The output's constraint failed: {error}"))
        return [i for i, result in enumerate(self.results) if result.error is None]

    def choose(self, group: list[int], glance: Glance) -> list[int]:
        """Choose the tokens of a group as far as a glance decides; returns those that it leaves open."""
        wanted = [self.wanted[i] for i in group]
        looks = [Look(o.row, o.allowed, o.state.top_k, o.state.inverse_temperature) for o in wanted]
        wishes = self._wishes if len(group) == len(self.wanted) else self._wishes.rows(np.array(group, np.int64))
        ranking = rank(glance(looks, self._output), wanted, self._output)
        drawn = draw(ranking, wishes)
        width = ranking.ids.shape[1]
        chosen = ranking.ids[np.arange(len(group)), np.minimum(drawn.index, width - 1)].tolist()
        is_decided = drawn.is_decided.tolist()
        for place, i in enumerate(group):
            if is_decided[place]:
                shown = wanted[place].state.shown
                logprob = None if shown is None else _logprob(ranking, drawn, row=place, shown=shown)
                self.results[i] = Sampled(chosen[place], logprob)
        return [i for place, i in enumerate(group) if not is_decided[place]]


def _wishes(states: list[SamplerState], vocab_size: int) -> Wishes:
    top_k = np.array([state.top_k for state in states], np.int64)
    return Wishes(
        inverse_temperature=np.array([state.inverse_temperature for state in states]),
        top_k=np.where(top_k >= vocab_size, UNLIMITED, top_k),
        top_p=np.array([state.top_p for state in states]),
        uniform=np.array([state.next_uniform() for state in states]),
        shown=np.array([-1 if state.shown is None else state.shown for state in states], np.int64),
    )


def _logprob(ranking: Ranking, drawn: Draw, *, row: int, shown: int) -> TokenLogprob:
    """Log-probabilities among the survivors of top_k and top_p: of the chosen token and of the best `shown`."""
    index, survivors = int(drawn.index[row]), int(drawn.survivors[row])
    count = min(shown, int(ranking.known[row]))
    with np.errstate(divide="ignore"):
        logprobs = np.log(drawn.weights[row, : max(count, index + 1)] / drawn.mass[row])
    logprobs = np.maximum(logprobs, LOGPROB_OF_EXCLUDED)
    logprobs[survivors:] = LOGPROB_OF_EXCLUDED
    top = zip(ranking.ids[row, :count].tolist(), logprobs[:count].tolist(), strict=True)
    return TokenLogprob(logprob=float(logprobs[index]), top=tuple(top))
