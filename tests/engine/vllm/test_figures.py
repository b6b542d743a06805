"""Counters over steps and engines."""

from types import SimpleNamespace

from mindserve.engine.vllm.figures import Figures


def scheduler(running: int, waiting: int, usage: float, *, queries: int = 0, hits: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=1,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(queries=queries, hits=hits),
    )


def test_loads_are_the_latest_and_counts_add_up() -> None:
    figures = Figures()
    figures.record(0, scheduler(3, 2, 0.5, queries=10, hits=4), SimpleNamespace(num_preempted_reqs=1))
    figures.record(0, scheduler(1, 0, 0.25, queries=5, hits=5), SimpleNamespace(num_preempted_reqs=2))
    figures.record(0, None, None)
    stats = figures.stats(80)
    assert (stats.running, stats.waiting) == (1, 1)
    assert (stats.total_blocks, stats.free_blocks) == (80, 60)
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (15, 9, 3)


def test_several_engines_are_one() -> None:
    figures = Figures()
    figures.record(0, scheduler(3, 0, 0.5), None)
    figures.record(1, scheduler(1, 1, 0.0), None)
    stats = figures.stats(200)
    assert (stats.running, stats.waiting, stats.free_blocks) == (4, 3, 150)


def test_nothing_runs_before_the_first_step() -> None:
    stats = Figures().stats(10)
    assert (stats.running, stats.waiting, stats.free_blocks, stats.total_blocks) == (0, 0, 10, 10)
