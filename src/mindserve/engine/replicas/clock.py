"""A replica's clock in terms of ours."""

import math

WINDOW_S = 60.0
"""Clocks drift apart by some tens of microseconds a second; what was seen longer ago than two windows is forgotten."""


class Clock:
    """Estimates what has to be added to a replica's `time.perf_counter()` to get ours.

    An item that was sent at one time of theirs and received at one of ours took some time on its way, so the difference
    is too large by that; the smallest difference seen is the best.
    """

    def __init__(self) -> None:
        self._smallest_s = math.inf
        self._smallest_before_s = math.inf
        """Of the window before this one."""
        self._window_ends_s = -math.inf

    @property
    def offset_s(self) -> float:
        """What to add to their time; valid after the first `observe`."""
        return min(self._smallest_s, self._smallest_before_s)

    def observe(self, *, sent_s: float, received_s: float) -> None:
        """Take an item into account: sent by their clock, received by ours."""
        if received_s >= self._window_ends_s:
            self._smallest_before_s, self._smallest_s = self._smallest_s, math.inf
            self._window_ends_s = received_s + WINDOW_S
        self._smallest_s = min(self._smallest_s, received_s - sent_s)
