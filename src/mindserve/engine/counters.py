"""Figures that go on counting from one engine to the next."""

from dataclasses import replace

from mindserve.engine.base import EngineStats

COUNTERS = ("prefix_queries", "prefix_hits", "preemptions", "draft_tokens", "accepted_tokens", "restarts")
"""The fields of EngineStats that only ever grow; the others tell of the moment."""


class Counters:
    """What the engines of the past have counted."""

    def __init__(self) -> None:
        self._past = EngineStats()

    def add(self, last: EngineStats) -> None:
        """Take over what an engine has counted that will count no more."""
        total = self.with_past(last)
        self._past = EngineStats(**{name: getattr(total, name) for name in COUNTERS})

    def add_restart(self) -> None:
        """Another engine runs."""
        self._past = replace(self._past, restarts=self._past.restarts + 1)

    def with_past(self, stats: EngineStats) -> EngineStats:
        """An engine's figures and those of the engines before it."""
        past = self._past
        return replace(stats, **{name: getattr(stats, name) + getattr(past, name) for name in COUNTERS})
