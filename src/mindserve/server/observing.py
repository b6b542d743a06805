"""Requests and engine as metrics and log lines: the service's observer, and gauges read from the engine."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mindserve.engine.base import EngineStats
from mindserve.service import ChatService, Outcome, RequestTimeline
from mindserve.telemetry import Metrics

log = logging.getLogger("mindserve.request")

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


class RequestObserver:
    """Counts requests and writes one line for each."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._outcomes: Mapping[Outcome, Counter] = {
            Outcome.FINISHED: metrics.succeeded,
            Outcome.STOPPED: metrics.succeeded,
            Outcome.FAILED: metrics.failed,
            Outcome.REFUSED: metrics.refused,
            Outcome.ABANDONED: metrics.abandoned,
        }

    def request_arrived(self, timeline: RequestTimeline) -> None:
        """A valid request has come."""
        self._metrics.received.inc()

    def request_finished(self, timeline: RequestTimeline) -> None:
        """It is over."""
        outcome = timeline.outcome or Outcome.FAILED
        self._outcomes[outcome].inc()
        metrics = self._metrics
        arrived = timeline.arrived_s
        if timeline.admitted_s is not None:
            metrics.queue_wait.observe(timeline.admitted_s - arrived)
        if timeline.first_token_s is not None:
            metrics.first_token.observe(timeline.first_token_s - arrived)
            metrics.prompt_tokens.observe(timeline.prompt_tokens)
            metrics.generated.observe(timeline.completion_tokens)
            metrics.cached.observe(timeline.cached_tokens)
            metrics.prompt_tokens_sum.inc(timeline.prompt_tokens)
            metrics.generation_tokens_sum.inc(timeline.completion_tokens)
        for gap_ms in timeline.decode_ms:
            metrics.token_gap.observe(gap_ms / 1000)
        if timeline.finished_s is not None and outcome in (Outcome.FINISHED, Outcome.STOPPED):
            metrics.latency.observe(timeline.finished_s - arrived)
        _log(timeline, outcome)


def _log(timeline: RequestTimeline, outcome: Outcome) -> None:
    log.info(
        "request_id=%s outcome=%s queue_ms=%s ttft_ms=%s total_ms=%s prompt_tokens=%d cached_tokens=%d "
        "completion_tokens=%d",
        timeline.request_id,
        outcome.value,
        _ms(timeline.arrived_s, timeline.admitted_s),
        _ms(timeline.arrived_s, timeline.first_token_s),
        _ms(timeline.arrived_s, timeline.finished_s),
        timeline.prompt_tokens,
        timeline.cached_tokens,
        timeline.completion_tokens,
    )


def _ms(start_s: float, end_s: float | None) -> str:
    return "-" if end_s is None else f"{(end_s - start_s) * 1000:.1f}"


class EngineCollector(Collector):
    """Gauges and counters that the engine itself keeps, read when they are asked for."""

    def __init__(self, service: ChatService, *, model_name: str) -> None:
        self._service = service
        self._model_name = model_name

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All families, from one snapshot."""
        stats = self._service.engine.stats()
        admission = self._service.admission
        for name, text, value in (
            ("num_requests_running", "Requests admitted.", admission.running),
            ("num_requests_waiting", "Requests in line for admission.", admission.waiting),
            ("num_sequences_running", "Sequences in the engine's batch.", stats.running),
            ("num_sequences_waiting", "Sequences that wait for memory.", stats.waiting),
            ("npu_cache_usage_perc", "Share of the KV blocks in use.", _cache_usage(stats)),
            ("npu_prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache.", _hit_rate(stats)),
        ):
            yield self._family(GaugeMetricFamily, name, text, value)
        for name, text, value in (
            ("num_preemptions", "Sequences that gave up their memory to others.", stats.preemptions),
            ("draft_tokens", "Tokens guessed by speculation.", stats.draft_tokens),
            ("accepted_tokens", "Of those, right.", stats.accepted_tokens),
        ):
            yield self._family(CounterMetricFamily, name, text, value)

    def _family(self, kind: Callable[..., Family], name: str, text: str, value: float) -> Family:
        family = kind(name, text, labels=("model_name",))
        family.add_metric([self._model_name], value)
        return family


def _cache_usage(stats: EngineStats) -> float:
    available = stats.free_blocks + stats.cached_blocks
    return 1 - available / stats.total_blocks if stats.total_blocks else 0.0


def _hit_rate(stats: EngineStats) -> float:
    return stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
