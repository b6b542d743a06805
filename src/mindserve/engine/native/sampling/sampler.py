"""The next token of every sampled sequence of a step."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import LOGPROB_OF_EXCLUDED, TokenLogprob
from mindserve.engine.native.sampling.draw import UNLIMITED, Draw, Ranking, Wishes, draw
from mindserve.engine.native.sampling.ranking import Best, adjust, adjusted_mass, best_part, rank_candidates, stack
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.step import StepOutput
from mindserve.errors import EngineFailure, MindserveError


class Sampled(NamedTuple):
    """What was chosen for one sequence. Neither token nor error: its mask allows nothing any more."""

    token_id: int | None = None
    logprob: TokenLogprob | None = None
    error: MindserveError | None = None


@dataclass(slots=True)
class _Wanted:
    """A token that is wanted."""

    row: int
    state: SamplerState
    allowed: NDArray[np.uint32] | None = None
    result: Sampled | None = None


def sample(pairs: list[tuple[int, SamplerState]], output: StepOutput) -> list[Sampled]:
    """Choose a token for each pair of an output row and a sequence's state; several may share a row. Takes one
    uniform number from each state. What goes wrong for one sequence is its own result."""
    wanted = [_Wanted(row, state) for row, state in pairs]
    _refuse_broken_rows(wanted, output)
    for one in wanted:
        if one.result is None and one.state.mask is not None:
            _ask_mask(one)
    alive = [one for one in wanted if one.result is None]
    _choose([one for one in alive if one.state.is_plain], output)
    _choose([one for one in alive if not one.state.is_plain], output)
    return [one.result or Sampled() for one in wanted]


def _refuse_broken_rows(wanted: list[_Wanted], output: StepOutput) -> None:
    rows = [one.row for one in wanted]
    is_sound = np.isfinite(output.candidate_logits[rows, 0]) & ~np.isnan(output.log_sum_exp[rows])
    for i in np.flatnonzero(~is_sound):
        wanted[i].result = Sampled(error=EngineFailure("The model's output is not a number."))


def _ask_mask(one: _Wanted) -> None:
    assert one.state.mask is not None
    try:
        one.allowed = one.state.mask.allowed()
    except Exception as error:
        one.result = Sampled(error=EngineFailure(f"The output's constraint failed: {error}"))


def _choose(wanted: list[_Wanted], output: StepOutput) -> None:
    """Choose from the candidates, and look further where they do not decide."""
    if not wanted:
        return
    wishes = _wishes(wanted, output.logits.shape[1])
    ranking = _rank(wanted, wishes, output)
    drawn = draw(ranking, wishes)
    _report(wanted, ranking, drawn)
    for i in np.flatnonzero(~drawn.is_decided):
        _look_further(wanted[i], wishes.rows(np.array([i])), output)


def _wishes(wanted: list[_Wanted], vocab_size: int) -> Wishes:
    states = [one.state for one in wanted]
    top_k = np.array([state.top_k for state in states], np.int64)
    return Wishes(
        inverse_temperature=np.array([state.inverse_temperature for state in states]),
        top_k=np.where(top_k >= vocab_size, UNLIMITED, top_k),
        top_p=np.array([state.top_p for state in states]),
        uniform=np.array([state.next_uniform() for state in states]),
        shown=np.array([-1 if state.shown is None else state.shown for state in states], np.int64),
    )


def _rank(wanted: list[_Wanted], wishes: Wishes, output: StepOutput) -> Ranking:
    if wanted[0].state.is_plain:
        return rank_candidates(output, np.array([one.row for one in wanted]), wishes.inverse_temperature)
    best = [_adjusted_candidates(one, output) for one in wanted]
    pairs = zip(best, wanted, strict=True)
    masses = [adjusted_mass(b, output.log_sum_exp[o.row], row=output.logits[o.row], state=o.state) for b, o in pairs]
    return stack(best, masses)


def _adjusted_candidates(one: _Wanted, output: StepOutput) -> Best:
    logits = output.candidate_logits[one.row].astype(np.float64)
    is_known = logits > logits[-1]
    return adjust(
        output.candidate_ids[one.row][is_known].astype(np.int64),
        logits[is_known],
        float(logits[-1]),
        row=output.logits[one.row],
        state=one.state,
        allowed=one.allowed,
    )


def _look_further(one: _Wanted, wishes: Wishes, output: StepOutput) -> None:
    """Decide from the best few thousand tokens of the full row, or else from all of them."""
    row = output.logits[one.row]
    for wants_all in (False, True):
        best = best_part(row, one.state, one.allowed, wants_all=wants_all)
        mass = adjusted_mass(best, output.log_sum_exp[one.row], row=row, state=one.state)
        ranking = stack([best], [mass], width=max(len(best.ids), 1))
        drawn = draw(ranking, wishes)
        if drawn.is_decided[0]:
            _report([one], ranking, drawn)
            return
    if one.allowed is None:
        one.result = Sampled(error=EngineFailure("The model's output leaves no token."))


def _report(wanted: list[_Wanted], ranking: Ranking, drawn: Draw) -> None:
    width = ranking.ids.shape[1]
    index = np.minimum(drawn.index, width - 1)
    chosen = ranking.ids[np.arange(len(wanted)), index].tolist()
    for i, is_decided in enumerate(drawn.is_decided.tolist()):
        if is_decided:
            shown = wanted[i].state.shown
            logprob = None if shown is None else _logprob(ranking, drawn, row=i, shown=shown)
            wanted[i].result = Sampled(chosen[i], logprob)


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
