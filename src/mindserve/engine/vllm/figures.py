"""The counters of a running vLLM, as its statistics tell them step by step."""

from dataclasses import dataclass, replace
from typing import Protocol

from mindserve.engine.base import EngineStats


class CacheStats(Protocol):
    """Since the last message."""

    queries: int
    hits: int


class SchedulerStats(Protocol):
    """One engine's scheduler after a step."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_skipped_waiting_reqs: int
    kv_cache_usage: float
    """Share of the blocks that requests use."""
    prefix_cache_stats: CacheStats


class IterationStats(Protocol):
    """What happened in a step."""

    num_preempted_reqs: int


@dataclass(frozen=True, slots=True)
class _Load:
    running: int = 0
    waiting: int = 0
    usage: float = 0.0


class Figures:
    """Sums over time, and over the engines of a data-parallel vLLM."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._sums = EngineStats()

    def record(self, engine: int, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """A step of one engine."""
        sums = self._sums
        if scheduler is not None:
            waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self._loads[engine] = _Load(scheduler.num_running_reqs, waiting, scheduler.kv_cache_usage)
            cache = scheduler.prefix_cache_stats
            sums = replace(
                sums,
                prefix_queries=sums.prefix_queries + cache.queries,
                prefix_hits=sums.prefix_hits + cache.hits,
            )
        if iteration is not None:
            sums = replace(sums, preemptions=sums.preemptions + iteration.num_preempted_reqs)
        self._sums = sums

    def stats(self, block_count: int) -> EngineStats:
        """`block_count`: of all engines together, alike for each. Free blocks may hold what the prefix cache keeps."""
        loads = self._loads.values()
        usage = sum(load.usage for load in loads) / max(1, len(loads))
        return replace(
            self._sums,
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            total_blocks=block_count,
            free_blocks=round(block_count * (1 - usage)),
        )
