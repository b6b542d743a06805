"""Parts of rows: every token above a floor. Larger and larger views, for as long as a token remains undecided."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.sampling.draw import UNLIMITED
from mindserve.engine.native.step import StepOutput

SMALL_ROW = 16384
"""Rows of at most this many tokens are looked at as a whole when their candidates do not suffice."""
ESTIMATE_SIZE = 8192
"""Entries of a large row from which the logit of a given rank is estimated."""
STRETCH = 16
"""Entries that lie in one cache line."""
FEW, MANY = 2304, 20_000
"""Largest parts of a large row that are looked at before the whole."""


@dataclass(frozen=True, slots=True)
class View:
    """What R rows have above their floors, in any order, before mask and penalties."""

    ids: NDArray[np.int64]
    """[R, M]"""
    logits: NDArray[np.float64]
    """[R, M]; -inf where a row has fewer than M."""
    floor: NDArray[np.float64]
    """[R] every token that is above it is there; -inf: all that have any chance."""
    log_sum_exp: NDArray[np.float64] | None = None
    """[R] of the scaled logits that the masks allow, in double precision; None: only the model's own is known."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where to look: a row of the output, the tokens that may come at all, and how the rest is sampled."""

    row: int
    allowed: NDArray[np.uint32] | None
    top_k: int
    inverse_temperature: float


Glance = Callable[[list[Look], StepOutput], View]


def candidates(looks: list[Look], output: StepOutput) -> View:
    """The model's own candidates. Those that tie with the last may have been chosen among others."""
    rows = [look.row for look in looks]
    logits = output.candidate_logits[rows].astype(np.float64)
    return View(output.candidate_ids[rows].astype(np.int64), logits, logits[:, -1].copy())


def best_few(looks: list[Look], output: StepOutput) -> View:
    """About the best FEW tokens of the full rows, or fewer where top_k wants no more."""
    return _stack([_above_floor(look, output.logits[look.row], most=FEW) for look in looks])


def best_many(looks: list[Look], output: StepOutput) -> View:
    """About the best MANY, and the whole rows' masses: tokens this improbable hang on small differences."""
    best = _stack([_above_floor(look, output.logits[look.row], most=MANY) for look in looks])
    masses = np.array([_log_sum_exp(look, output.logits[look.row]) for look in looks])
    return View(best.ids, best.logits, best.floor, masses)


def everything(looks: list[Look], output: StepOutput) -> View:
    """The full rows."""
    return _stack([_above_floor(look, output.logits[look.row], most=UNLIMITED) for look in looks])


_Part = tuple[NDArray[np.int64], NDArray[np.float32], float]


def _above_floor(look: Look, row: NDArray[np.float32], *, most: int) -> _Part:
    among = None if look.allowed is None else _allowed_ids(look.allowed, len(row))
    values = row if among is None else row[among]
    is_whole = len(values) <= max(SMALL_ROW, most)
    floor = -np.inf if is_whole else _estimate_floor(values, min(look.top_k + look.top_k // 2 + 128, most))
    chosen = np.flatnonzero(values > floor)
    return (chosen if among is None else among[chosen]), values[chosen], floor


def _log_sum_exp(look: Look, row: NDArray[np.float32]) -> float:
    values = row if look.allowed is None else row[_allowed_ids(look.allowed, len(row))]
    scaled = values.astype(np.float64) * look.inverse_temperature
    best = scaled.max(initial=-np.inf)
    return float(best + np.log(np.exp(scaled - best).sum())) if best > -np.inf else -np.inf


def _estimate_floor(values: NDArray[np.float32], wanted: int) -> float:
    """A logit that about `wanted` tokens exceed, as far as every so many-th stretch tells (single entries from all
    over a row would cost as much memory traffic as the row)."""
    whole = len(values) // STRETCH * STRETCH
    stride = max(1, len(values) // ESTIMATE_SIZE)
    sample = values[:whole].reshape(-1, STRETCH)[::stride].ravel()
    rank = len(sample) - max(1, wanted * len(sample) // len(values))
    return float(np.partition(sample, rank)[rank])


def _allowed_ids(allowed: NDArray[np.uint32], vocab_size: int) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little")[:vocab_size])


def _stack(parts: list[_Part]) -> View:
    width = max(1, *(len(ids) for ids, _, _ in parts)) if parts else 1
    ids = np.zeros((len(parts), width), np.int64)
    logits = np.full((len(parts), width), -np.inf)
    for i, (row_ids, row_logits, _) in enumerate(parts):
        ids[i, : len(row_ids)], logits[i, : len(row_ids)] = row_ids, row_logits
    return View(ids, logits, np.array([floor for _, _, floor in parts]))
