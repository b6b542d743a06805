"""The best tokens of rows after mask and penalties, from as much of the rows as a view shows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.sampling.draw import Ranking
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.sampling.view import View
from mindserve.engine.native.step import StepOutput


@dataclass(slots=True)
class Wanted:
    """A token that is wanted: from which row of the output, by which sequence."""

    row: int
    state: SamplerState
    allowed: NDArray[np.uint32] | None = None
    """What the sequence's mask allows; None: everything."""


@dataclass(frozen=True, slots=True)
class _Touched:
    """The penalised tokens of all rows that masks allow, one after the other."""

    place: NDArray[np.int64]
    """Which of the wanted tokens they concern."""
    ids: NDArray[np.int64]
    old: NDArray[np.float64]
    new: NDArray[np.float64]

    def where(self, condition: NDArray[np.bool_]) -> "_Touched":
        """Only these."""
        return _Touched(self.place[condition], self.ids[condition], self.old[condition], self.new[condition])


def rank(view: View, wanted: list[Wanted], output: StepOutput) -> Ranking:
    """Order the tokens of a view as mask and penalties leave them."""
    ids, logits, floor = view.ids, view.logits, view.floor
    touched = _touched(wanted, output)
    if touched is not None:
        ids, logits = _penalise(ids, logits, floor, touched, vocab_size=output.logits.shape[1])
    for i, one in enumerate(wanted):
        if one.allowed is not None:
            logits[i, ~_bits_at(one.allowed, ids[i])] = -np.inf
    ids, logits = _sort(ids, logits)
    known = np.count_nonzero(logits > floor[:, None], axis=1)
    low, high = _mass_bounds(np.where(known > 0, logits[:, 0], 0.0), view, wanted, output, touched)
    is_complete = floor == -np.inf
    return Ranking(ids=ids, logits=logits, known=known, is_complete=is_complete, mass_low=low, mass_high=high)


def _touched(wanted: list[Wanted], output: StepOutput) -> _Touched | None:
    parts = [(i, one, one.state.penalties) for i, one in enumerate(wanted) if one.state.penalties is not None]
    if not parts:
        return None
    sizes = [len(penalties.ids) for _, _, penalties in parts]
    ids = np.concatenate([penalties.ids for _, _, penalties in parts])
    old = output.logits[np.repeat([one.row for _, one, _ in parts], sizes), ids].astype(np.float64)
    split = np.split(old, np.cumsum(sizes)[:-1])
    new = np.concatenate([penalties.apply(part) for (_, _, penalties), part in zip(parts, split, strict=True)])
    touched = _Touched(np.repeat(np.array([i for i, _, _ in parts], np.int64), sizes), ids, old, new)
    for i, one, _ in parts:
        if one.allowed is not None:
            touched = touched.where((touched.place != i) | _bits_at(one.allowed, touched.ids))
    return touched


def _penalise(
    ids: NDArray[np.int64],
    logits: NDArray[np.float64],
    floor: NDArray[np.float64],
    touched: _Touched,
    *,
    vocab_size: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Take the touched tokens out of the view and put those back that are above its floor with their new logits."""
    rows = np.arange(len(ids))[:, None]
    was_visible = touched.old >= floor[touched.place]
    codes = touched.place[was_visible] * vocab_size + touched.ids[was_visible]
    logits = np.where(np.isin(rows * vocab_size + ids, codes), -np.inf, logits)
    is_visible = touched.new > floor[touched.place]
    place = touched.place[is_visible]
    counts = np.bincount(place, minlength=len(ids))
    column = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    more_ids = np.zeros((len(ids), int(counts.max(initial=0))), np.int64)
    more_logits = np.full(more_ids.shape, -np.inf)
    more_ids[place, column] = touched.ids[is_visible]
    more_logits[place, column] = touched.new[is_visible]
    return np.concatenate([ids, more_ids], axis=1), np.concatenate([logits, more_logits], axis=1)


def _bits_at(allowed: NDArray[np.uint32], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bits of these tokens are set; what lies beyond the mask is not allowed."""
    word = ids >> 5
    inside = word < len(allowed)
    return inside & ((allowed[np.where(inside, word, 0)] >> (ids & 31).astype(np.uint32)) & 1).astype(np.bool_)


def _sort(ids: NDArray[np.int64], logits: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Best first; ties by id, which the fast sort does not promise: the stretch around them is sorted again."""
    order = np.argsort(-logits, axis=1)
    ids, logits = np.take_along_axis(ids, order, axis=1), np.take_along_axis(logits, order, axis=1)
    is_tied = (logits[:, 1:] == logits[:, :-1]) & (logits[:, 1:] > -np.inf)
    for row in np.flatnonzero(is_tied.any(axis=1)):
        tied = np.flatnonzero(is_tied[row])
        stretch = slice(tied[0], tied[-1] + 2)
        ids[row, stretch] = ids[row, stretch][np.lexsort((ids[row, stretch], -logits[row, stretch]))]
    return ids, logits


def _mass_bounds(
    best: NDArray[np.float64],
    view: View,
    wanted: list[Wanted],
    output: StepOutput,
    touched: _Touched | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the rows' masses in units of their best tokens'. From the model's own sums, which are of single
    precision and know no mask (then the lower bound is 0), unless the view has better ones."""
    scale = np.array([one.state.inverse_temperature for one in wanted])
    unit = best * scale
    if view.log_sum_exp is None:
        log_mass = output.log_sum_exp[[one.row for one in wanted]].astype(np.float64)
        tolerance = 1e-5 + 4e-7 * np.maximum(np.abs(unit), np.abs(log_mass))
        has_lower = np.array([one.allowed is None for one in wanted])
    else:
        log_mass, has_lower = view.log_sum_exp, True
        tolerance = 1e-9 + 1e-15 * np.abs(unit)
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.exp(log_mass - unit - tolerance), np.exp(log_mass - unit + tolerance)
        if touched is not None:
            gain = _gain(touched, scale, unit)
            slack = 1e-12 * high
            low, high = low + gain - slack, high + gain + slack
    is_bound = np.isfinite(high)
    return np.where(is_bound & has_lower, low, 0.0), np.where(is_bound, high, np.inf)


def _gain(touched: _Touched, scale: NDArray[np.float64], unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R] what the penalties add to the masses, or take from them."""
    of, at = scale[touched.place], unit[touched.place]
    change = np.exp(touched.new * of - at) - np.exp(touched.old * of - at)
    return np.bincount(touched.place, change, minlength=len(scale)).astype(np.float64)
