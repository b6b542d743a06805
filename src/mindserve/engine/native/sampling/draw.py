"""The decision: which token a row's uniform number falls on, if the tokens in view decide that."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNLIMITED = 1 << 40
"""`top_k` where it is off."""
LOGPROB_TOLERANCE = 1e-4
"""Relative uncertainty of the total mass up to which log-probabilities are reported from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best tokens of R rows, after mask and penalties, best first (ties: lowest id first).

    Masses are sums of exp(logit * inverse_temperature) in units of the row's best token's.
    """

    ids: NDArray[np.int64]
    """[R, M]"""
    logits: NDArray[np.float64]
    """[R, M]; beyond `known` anything."""
    known: NDArray[np.int64]
    """[R] how many are surely in their places; every other token of the row is no better than the last of these."""
    is_complete: NDArray[np.bool_]
    """[R] whether no other token has any chance."""
    mass_low: NDArray[np.float64]
    """[R] lower bound of the whole row's mass."""
    mass_high: NDArray[np.float64]
    """[R] upper bound of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How R rows are sampled."""

    inverse_temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    uniform: NDArray[np.float64]
    shown: NDArray[np.int64]
    """[R] candidates whose log-probabilities are wanted; -1: not even the chosen token's."""

    def rows(self, rows: NDArray[np.int64]) -> "Wishes":
        """Only these rows."""
        return Wishes(
            inverse_temperature=self.inverse_temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            uniform=self.uniform[rows],
            shown=self.shown[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The outcome for R rows."""

    index: NDArray[np.int64]
    """[R] which of the ranking's tokens."""
    is_decided: NDArray[np.bool_]
    """[R] whether no look at the rest of the row could change it."""
    weights: NDArray[np.float64]
    """[R, M] masses of the single tokens."""
    mass: NDArray[np.float64]
    """[R] mass of the survivors of top_k and top_p."""
    survivors: NDArray[np.int64]
    """[R] how many of the ranking's tokens survive; at most `known`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Masses of the known tokens of R rows."""

    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    cumulative: NDArray[np.float64]
    last: NDArray[np.int64]
    """[R] column of the last known token."""
    least: NDArray[np.float64]
    """[R] its mass: no unseen token has more."""


def draw(ranking: Ranking, wishes: Wishes) -> Draw:
    """Choose one token per row. Everything unseen is bounded from both sides; the choice is a monotone function of
    the mass, so it is decided when both bounds lead to the same known token."""
    seen = _weigh(ranking, wishes)
    low, high = _top_k_mass(ranking, wishes, seen)
    if (wishes.top_p < 1).any():
        low, kept_low = _top_p_mass(low, wishes, seen, is_upper=False)
        high, kept_high = _top_p_mass(high, wishes, seen, is_upper=True)
    else:
        kept_low = kept_high = wishes.top_k
    index = _count_below(seen.cumulative, wishes.uniform * low, inclusive=True)
    index_high = _count_below(seen.cumulative, wishes.uniform * high, inclusive=True)
    is_decided = (index == index_high) & (index < ranking.known)
    if (wishes.shown >= 0).any():
        shown = np.maximum(wishes.shown, index + 1)
        is_exact = high <= low * (1 + LOGPROB_TOLERANCE)
        is_exact &= np.minimum(kept_low, shown) == np.minimum(kept_high, shown)
        is_exact &= ranking.is_complete | (ranking.known >= wishes.shown)
        is_decided &= is_exact | (wishes.shown < 0)
    survivors = np.minimum(kept_low, ranking.known)
    mass = (low + high) / 2
    return Draw(index=index, is_decided=is_decided, weights=seen.weights, mass=mass, survivors=survivors)


def _weigh(ranking: Ranking, wishes: Wishes) -> Seen:
    with np.errstate(invalid="ignore"):  # of what is not known
        scaled = (ranking.logits - ranking.logits[:, :1]) * wishes.inverse_temperature[:, None]
    width: int = ranking.logits.shape[1]
    is_known = np.arange(width) < ranking.known[:, None]
    weights = np.where(is_known, np.exp(np.where(is_known, scaled, 0.0)), 0.0)
    cumulative = np.cumsum(weights, axis=1)
    rows = np.arange(len(weights))
    last = np.maximum(ranking.known, 1) - 1
    return Seen(rows=rows, weights=weights, cumulative=cumulative, last=last, least=weights[rows, last])


def _count_below(cumulative: NDArray[np.float64], limit: NDArray[np.float64], *, inclusive: bool) -> NDArray[np.int64]:
    below = cumulative <= limit[:, None] if inclusive else cumulative < limit[:, None]
    return np.count_nonzero(below, axis=1)


def _top_k_mass(ranking: Ranking, wishes: Wishes, seen: Seen) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the mass of the best `top_k` tokens."""
    known_mass = seen.cumulative[seen.rows, seen.last]
    exact = seen.cumulative[seen.rows, np.minimum(seen.last, wishes.top_k - 1)]
    is_exact = ranking.is_complete | (wishes.top_k <= ranking.known)
    low = np.where(wishes.top_k >= UNLIMITED, np.maximum(known_mass, ranking.mass_low), known_mass)
    unseen = np.maximum(wishes.top_k - ranking.known, 0) * seen.least
    high = np.maximum(low, np.minimum(ranking.mass_high, known_mass + unseen))
    return np.where(is_exact, exact, low), np.where(is_exact, exact, high)


def _top_p_mass(
    mass: NDArray[np.float64],
    wishes: Wishes,
    seen: Seen,
    *,
    is_upper: bool,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mass and number of the best tokens that together reach `top_p` of `mass`, the one that crosses it included.
    Where that lies beyond the known tokens the mass is a bound and the number larger than theirs."""
    threshold = wishes.top_p * mass
    kept = _count_below(seen.cumulative, threshold, inclusive=False) + 1
    beyond = np.minimum(mass, threshold + seen.least) if is_upper else threshold
    within = seen.cumulative[seen.rows, np.minimum(kept, seen.last + 1) - 1]
    nucleus = np.where(kept <= seen.last + 1, within, beyond)
    is_off = wishes.top_p >= 1
    return np.where(is_off, mass, nucleus), np.where(is_off, wishes.top_k, kept)
