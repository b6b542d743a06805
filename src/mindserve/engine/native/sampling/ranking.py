"""The best tokens of a row: from the model's candidates where they suffice, from the full row where they do not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.sampling.draw import Ranking
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.step import CANDIDATES, StepOutput

SMALL_ROW = 16384
"""Rows of at most this many tokens are sorted as a whole when their candidates do not suffice."""
ESTIMATE_SIZE = 8192
"""Entries of a large row from which the logit of a given rank is estimated."""
MOST_WANTED = 4096
"""Largest part of a row that is tried before the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Tokens of one row, after mask and penalties, best first (ties: lowest id first)."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    known: int
    """How many are surely in their places."""
    is_complete: bool


def mass_bounds(
    log_sum_exp: NDArray[np.floating], unit: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of exp(log_sum_exp - unit), given that the model computed it in single precision."""
    exponent = log_sum_exp.astype(np.float64) - unit
    tolerance = 1e-5 + 4e-7 * np.maximum(np.abs(unit), np.abs(log_sum_exp))
    with np.errstate(over="ignore"):
        return np.exp(exponent - tolerance), np.exp(exponent + tolerance)


def rank_candidates(output: StepOutput, rows: NDArray[np.int64], inverse_temperature: NDArray[np.float64]) -> Ranking:
    """Rows without mask and penalties, from their candidates. Those that tie with the last one may have been chosen
    among others, so only what is better is known."""
    ids = output.candidate_ids[rows].astype(np.int64)
    logits = output.candidate_logits[rows].astype(np.float64)
    known = np.count_nonzero(logits > logits[:, -1:], axis=1)
    has_ties = (logits[:, 1:] == logits[:, :-1]).any(axis=1)
    for row in np.flatnonzero(has_ties):
        order = np.lexsort((ids[row], -logits[row]))
        ids[row], logits[row] = ids[row, order], logits[row, order]
    low, high = mass_bounds(output.log_sum_exp[rows], logits[:, 0] * inverse_temperature)
    is_complete = np.zeros(len(rows), np.bool_)
    return Ranking(ids=ids, logits=logits, known=known, is_complete=is_complete, mass_low=low, mass_high=high)


def adjust(
    ids: NDArray[np.int64],
    logits: NDArray[np.float64],
    floor: float,
    *,
    row: NDArray[np.float32],
    state: SamplerState,
    allowed: NDArray[np.uint32] | None,
) -> Best:
    """Apply mask and penalties to the tokens above `floor`; -inf: all that have a chance. The penalised tokens join
    with their new logits, wherever they were before."""
    if state.penalties is not None:
        others = ~state.penalties.concerns(ids)
        touched = state.penalties.ids
        ids = np.concatenate([ids[others], touched])
        logits = np.concatenate([logits[others], state.penalties.apply(row[touched].astype(np.float64))])
    if allowed is not None:
        is_allowed = bits_at(allowed, ids)
        ids, logits = ids[is_allowed], logits[is_allowed]
    order = np.lexsort((ids, -logits))
    ids, logits = ids[order], logits[order]
    return Best(ids=ids, logits=logits, known=int(np.count_nonzero(logits > floor)), is_complete=floor == -np.inf)


def bits_at(allowed: NDArray[np.uint32], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bits of these tokens are set; ids beyond the mask's words are not allowed."""
    word = ids >> 5
    inside = word < len(allowed)
    return inside & ((allowed[np.where(inside, word, 0)] >> (ids & 31).astype(np.uint32)) & 1).astype(np.bool_)


def allowed_ids(allowed: NDArray[np.uint32], vocab_size: int) -> NDArray[np.int64]:
    """Tokens that a mask allows."""
    return np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little")[:vocab_size])


def best_part(
    row: NDArray[np.float32], state: SamplerState, allowed: NDArray[np.uint32] | None, *, wants_all: bool = False
) -> Best:
    """The best few thousand tokens of a row, or all of them."""
    among = None if allowed is None else allowed_ids(allowed, len(row))
    values = row if among is None else row[among]
    floor = -np.inf if wants_all else _estimate_floor(values, state.top_k)
    chosen = np.flatnonzero(values > floor)
    ids = chosen if among is None else among[chosen]
    return adjust(ids, values[chosen].astype(np.float64), floor, row=row, state=state, allowed=allowed)


def _estimate_floor(values: NDArray[np.float32], top_k: int) -> float:
    """A logit that surely more than `top_k` tokens and not many more exceed, as far as every so many-th tells."""
    wanted = min(2 * top_k + 256, MOST_WANTED)
    if len(values) <= SMALL_ROW:
        return -np.inf
    stride = len(values) // ESTIMATE_SIZE
    sample = values[::stride]
    rank = len(sample) - wanted // stride
    return float(np.partition(sample, rank)[rank])


def adjusted_mass(
    best: Best, log_sum_exp: np.floating, *, row: NDArray[np.float32], state: SamplerState
) -> tuple[float, float]:
    """Bounds of the row's mass after mask and penalties, in units of its best token's."""
    if best.known == 0:
        return 0.0, np.inf
    scale, unit = state.inverse_temperature, best.logits[:1] * state.inverse_temperature
    low, high = (float(bound[0]) for bound in mass_bounds(np.array([log_sum_exp]), unit))
    if state.penalties is not None:
        old = row[state.penalties.ids].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            gain = float(np.sum(np.exp(state.penalties.apply(old) * scale - unit) - np.exp(old * scale - unit)))
        low, high = low + gain, high + gain
    if not np.isfinite(high):
        return 0.0, np.inf
    return (0.0 if state.mask is not None else low), high


def stack(best: list[Best], masses: list[tuple[float, float]], *, width: int = CANDIDATES) -> Ranking:
    """Several rows in one ranking, cut to `width` tokens."""
    ids = np.zeros((len(best), width), np.int64)
    logits = np.zeros((len(best), width))
    for i, one in enumerate(best):
        size = min(len(one.ids), width)
        ids[i, :size], logits[i, :size] = one.ids[:size], one.logits[:size]
    low, high = np.array(masses, np.float64).reshape(-1, 2).T
    return Ranking(
        ids=ids,
        logits=logits,
        known=np.array([min(one.known, width) for one in best], np.int64),
        is_complete=np.array([one.is_complete and one.known <= width for one in best], np.bool_),
        mass_low=low,
        mass_high=high,
    )
