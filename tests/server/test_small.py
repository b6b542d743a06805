"""Pieces of the server that need no socket: token spelling, log lines, engine gauges, ids."""

import json
import logging
import sys

import pytest

from mindserve.server.observing import RateCollector, RequestObserver
from mindserve.server.service_plane import spelled
from mindserve.server.state import RequestIds
from mindserve.service import Outcome, RequestTimeline
from mindserve.settings.values import ApiMode
from mindserve.telemetry import JsonFormatter, LineFormatter, Metrics
from mindserve.text.bytes_tokenizer import ByteTokenizer


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"ab", ["a", "b"]),
        ("é".encode(), ["é"]),
        ("a🙂b".encode(), ["a", "🙂", "b"]),
        (b"\xf0\x9f\x99", ["\ufffd"]),
        (b"\xff" * 5 + b"a", ["\ufffd\ufffd\ufffd\ufffd", "\ufffda"]),
        (b"", []),
    ],
)
def test_tokens_that_share_a_character_are_one_piece(data: bytes, pieces: list[str]) -> None:
    assert spelled(ByteTokenizer(), list(data)) == pieces


def record(message: str, *args: object, with_error: bool = False) -> logging.LogRecord:
    error = None
    if with_error:
        try:
            raise ValueError("inner")
        except ValueError:
            error = sys.exc_info()
    return logging.LogRecord("mindserve.x", logging.INFO, "f", 1, message, args, error)


def test_a_log_line_is_one_line() -> None:
    line = LineFormatter().format(record("request_id=%s", "a\nb"))
    assert line.endswith(" info mindserve.x request_id=a\\nb")
    assert "ValueError: inner" in LineFormatter().format(record("x", with_error=True))


def test_a_json_line_is_json() -> None:
    line = JsonFormatter().format(record("a %s", "\n\u2028é", with_error=True))
    assert "\n" not in line
    parsed = json.loads(line)
    assert parsed["message"] == "a \n\u2028é"
    assert "inner" in parsed["traceback"]


def test_every_outcome_is_counted() -> None:
    metrics = Metrics(model_name="m")
    observer = RequestObserver(metrics)
    for outcome in Outcome:
        timeline = RequestTimeline(request_id="r", arrived_s=1.0, admitted_s=1.5, finished_s=4.0, outcome=outcome)
        observer.request_arrived(timeline)
        observer.request_finished(timeline)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model_name": "m"})

    assert value("request_received_total") == 5
    assert value("request_success_total") == 2
    for name in ("failed", "refused", "abandoned"):
        assert value(f"request_{name}_total") == 1
    assert value("request_queue_seconds_sum") == 2.5
    assert value("e2e_request_latency_seconds_sum") == 6.0
    assert value("time_to_first_token_seconds_count") == 0


def test_ids() -> None:
    ids = RequestIds()
    assert [ids.next(ApiMode.VLLM) for _ in range(2)] == ["endpoint_common_0", "endpoint_common_1"]
    native = {ids.next(ApiMode.NATIVE) for _ in range(100)}
    assert len(native) == 100
    assert all(name.startswith("chatcmpl-") for name in native)


def test_rates_are_those_since_the_last_reading() -> None:
    metrics, now_s = Metrics(model_name="m"), 0.0
    metrics.registry.register(RateCollector(metrics, clock=lambda: now_s))

    def read(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model_name": "m"})

    assert read("failed_request_perc") == 0
    metrics.prompt_tokens_sum.inc(30)
    metrics.generation_tokens_sum.inc(5)
    now_s = 10.0
    assert read("avg_prompt_throughput_toks_per_s") == 3
    assert read("avg_generation_throughput_toks_per_s") == 0.5
    now_s = 12.0
    assert read("avg_prompt_throughput_toks_per_s") == 0
    metrics.received.inc(4)
    metrics.failed.inc()
    assert read("failed_request_perc") == 0.25
