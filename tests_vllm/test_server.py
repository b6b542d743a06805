"""The end-to-end tests of the other engines, over HTTP, streamed and not, with a tiny random model in vLLM."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.servers import Server, running
from tests.e2e.test_stream_equals_full import (  # noqa: F401 - pytest finds them here
    test_a_seed_repeats_itself_and_sequences_differ,
    test_stream_equals_full,
)

from tests_vllm.servers import server_settings


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    with running(server_settings(tiny / "model")) as up:
        yield up


def test_the_usage_has_vllms_figures(server: Server) -> None:
    said = "Tell me about it. " * 20
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": 12, "ignore_eos": True, "temperature": 0}
    first, second = server.full(body)["usage"], server.full(body)["usage"]
    assert second["batch_size"] == [1] * 12
    assert second["queue_wait_time"][0] > 0 == sum(second["queue_wait_time"][1:])
    assert first["prompt_tokens"] > 96
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] // 32 * 32 - 32 > 0
    assert server.metric("npu_prefix_cache_hit_rate") > 0


def test_a_prompt_that_is_too_long_is_refused_as_ever(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "far too long " * 600}]}
    response = server.post(body)
    assert response.status_code == 424
    assert "maximum input ids length cannot be greater than 2048" in response.text
