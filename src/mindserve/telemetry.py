"""Metric families and log lines. What they count is told by the server; nothing here knows requests or engines.

Families carry MindIE's names where it has them, so that existing dashboards go on working.
"""

import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Histogram

LATENCY_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class Metrics:
    """The families that requests fill. One instance per server, on a registry of its own."""

    def __init__(self, *, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self.received = self._counter("request_received", "Requests that passed validation.")
        self.succeeded = self._counter("request_success", "Requests that ended by themselves or were stopped.")
        self.failed = self._counter("request_failed", "Requests that an engine failure or a timeout ended.")
        self.refused = self._counter("request_refused", "Requests refused after validation (overload, too long, ...).")
        self.abandoned = self._counter("request_abandoned", "Requests whose client left.")
        self.errors = Counter(
            "request_errors",
            "Chat requests answered with an error, those refused by validation included.",
            ("model_name", "status"),
            registry=self.registry,
        )
        self.prompt_tokens_sum = self._counter("prompt_tokens", "Prompt tokens processed.")
        self.generation_tokens_sum = self._counter("generation_tokens", "Tokens generated.")
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCY_BUCKETS_S)
        self.token_gap = self._histogram("time_per_output_token_seconds", "Gaps between tokens.", TOKEN_BUCKETS_S)
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY_BUCKETS_S)
        self.queue_wait = self._histogram("request_queue_seconds", "Arrival to admission.", LATENCY_BUCKETS_S)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens per request.", COUNT_BUCKETS)
        self.generated = self._histogram("request_generation_tokens", "Generated tokens per request.", COUNT_BUCKETS)
        self.cached = self._histogram(
            "request_cached_tokens", "Prompt tokens found in the prefix cache.", COUNT_BUCKETS
        )

    def count_error(self, status: int) -> None:
        """A chat request ends with an error of this HTTP status, before or inside its stream."""
        self.errors.labels(self.model_name, str(status)).inc()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model_name",), registry=self.registry).labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(name, text, ("model_name",), buckets=buckets, registry=self.registry)
        return family.labels(self.model_name)


class LineFormatter(logging.Formatter):
    """`time level logger message key=value ...` on one line, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows on lines of its own."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name} "
        text = record.getMessage().replace("\n", "\\n")
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return head + text + trace


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    KEYS: ClassVar[tuple[str, ...]] = ("time", "level", "logger", "message")

    def format(self, record: logging.LogRecord) -> str:
        """The line, the traceback inside it."""
        values = (record.created, record.levelname.lower(), record.name, record.getMessage())
        line: dict[str, object] = dict(zip(self.KEYS, values, strict=True))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str, *, as_json: bool = False) -> None:
    """Send our log and uvicorn's to standard error. Prompts and answers are no part of it at any level above debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # Every malformed request is a warning there, and anyone can send thousands.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("mindserve").setLevel(level.upper())
