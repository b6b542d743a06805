"""Requests and engine as metrics and log lines: the service's observer, and gauges read from the engine."""

import logging
import time
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
            yield family_of(GaugeMetricFamily, name, text, value, model_name=self._model_name)
        for name, text, value in (
            ("num_preemptions", "Sequences that gave up their memory to others.", stats.preemptions),
            ("draft_tokens", "Tokens guessed by speculation.", stats.draft_tokens),
            ("accepted_tokens", "Of those, right.", stats.accepted_tokens),
            ("engine_restarts", "Times that an engine that had died was replaced.", stats.restarts),
        ):
            yield family_of(CounterMetricFamily, name, text, value, model_name=self._model_name)


class RateCollector(Collector):
    """Gauges that MindIE derives from its counters, for dashboards that expect them."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._read_at_s = clock()
        self._totals: tuple[float, float] = (0.0, 0.0)
        self._rates: tuple[float, float] = (0.0, 0.0)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Tokens per second since the last reading, and the share of requests that failed."""
        self._measure()
        metrics = self._metrics
        received = count_of(metrics.received)
        for name, text, value in (
            ("avg_prompt_throughput_toks_per_s", "Prompt tokens of ended requests per second.", self._rates[0]),
            ("avg_generation_throughput_toks_per_s", "Generated tokens of ended requests per second.", self._rates[1]),
            ("failed_request_perc", "Share of requests that failed.", count_of(metrics.failed) / max(received, 1)),
        ):
            yield family_of(GaugeMetricFamily, name, text, value, model_name=metrics.model_name)

    def _measure(self) -> None:
        """Readings less than a second apart share one measurement."""
        now_s = self._clock()
        passed_s = now_s - self._read_at_s
        if passed_s < 1:
            return
        totals = (count_of(self._metrics.prompt_tokens_sum), count_of(self._metrics.generation_tokens_sum))
        self._rates = ((totals[0] - self._totals[0]) / passed_s, (totals[1] - self._totals[1]) / passed_s)
        self._read_at_s, self._totals = now_s, totals


def count_of(counter: Counter) -> float:
    """A counter's value."""
    return next(iter(counter.collect())).samples[0].value


def family_of(kind: Callable[..., Family], name: str, text: str, value: float, *, model_name: str) -> Family:
    """A family with one value."""
    family = kind(name, text, labels=("model_name",))
    family.add_metric([model_name], value)
    return family


def _cache_usage(stats: EngineStats) -> float:
    available = stats.free_blocks + stats.cached_blocks
    return 1 - available / stats.total_blocks if stats.total_blocks else 0.0


def _hit_rate(stats: EngineStats) -> float:
    return stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
