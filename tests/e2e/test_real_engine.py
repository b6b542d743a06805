"""The embedded engine under a whole server: memory, leaving clients, preemption."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindserve.engine.base import EngineStats
from mindserve.settings.values import SchedulerSettings

from .bodies import Json
from .conftest import native
from .fold import assert_same
from .servers import Server, eventually


def _long(seed: int, **fields: object) -> Json:
    text = f"Tell me story number {seed}."
    return {"messages": [{"role": "user", "content": text}], "seed": seed, "ignore_eos": True, **fields}


def _stats(server: Server) -> EngineStats:
    return server.service.engine.stats()


def _is_empty(server: Server) -> bool:
    """No sequence, and every block free or kept by the prefix cache alone."""
    stats = _stats(server)
    return stats.running == stats.waiting == 0 and stats.free_blocks + stats.cached_blocks == stats.total_blocks


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """So little memory that a few long answers do not fit at once."""
    folder: Path = tmp_path_factory.mktemp("prepared")
    with native(folder, cache_bytes=1024 * 1024) as up:
        yield up
        eventually(lambda: _is_empty(up))


def test_preempted_requests_answer_as_if_they_had_been_alone(small: Server) -> None:
    bodies = [_long(seed, max_tokens=350) for seed in range(8)]
    alone = [small.full(body) for body in bodies]
    before = _stats(small).preemptions
    with ThreadPoolExecutor(len(bodies)) as threads:
        together = list(threads.map(small.streamed, bodies))
    assert _stats(small).preemptions > before
    for one, other in zip(alone, together, strict=True):
        assert one["choices"] == other["choices"]
        assert other["usage"]["completion_tokens"] == 350
        assert len(other["usage"]["batch_size"]) == 350
    assert max(size for answer in together for size in answer["usage"]["batch_size"]) > 1


def test_a_client_that_leaves_gives_its_memory_back(small: Server) -> None:
    body = {"model": "tiny", **_long(1, max_tokens=1500, n=2, stream=True)}
    with small.client.stream("POST", "/v1/chat/completions", json=body) as response:
        pieces = response.iter_raw()
        assert next(pieces)
        eventually(lambda: _stats(small).running == 2)
    eventually(lambda: _is_empty(small))


def test_a_stop_string_gives_its_sequences_memory_back(small: Server) -> None:
    text = small.full(_long(3, max_tokens=60))["choices"][0]["message"]["content"]
    stop = text[20:24]
    (choice,) = small.full(_long(3, max_tokens=1500, stop=[stop]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    eventually(lambda: _is_empty(small))


def test_the_second_time_the_prompt_is_in_the_cache(small: Server) -> None:
    body = _long(77, max_tokens=3)
    body["messages"][0]["content"] += " word" * 60
    first, second = small.full(body), small.full(body)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)]
    prompt = second["usage"]["prompt_tokens"]
    assert cached[0] < cached[1] < prompt
    assert cached[1] >= prompt - 33
    assert first["choices"] == second["choices"]


REPEATING = "one two three one two three one two three one two three one two three one two three"


def test_speculation_changes_nothing_but_the_number_of_steps(small: Server, tmp_path: Path) -> None:
    bodies = [
        _long(1, max_tokens=150, temperature=0),
        _long(2, max_tokens=150, temperature=0, n=1, logprobs=True, top_logprobs=2),
        _long(3, max_tokens=60, temperature=0, stop=["e"]),
        {**_long(4, max_tokens=150, temperature=0), "messages": [{"role": "user", "content": REPEATING}]},
    ]
    sampled = _long(5, max_tokens=100, temperature=0.5, n=2)
    with native(tmp_path, scheduler=SchedulerSettings(max_ngram_draft=4)) as drafting:
        for body in bodies:
            plain, drafted, streamed = small.full(body), drafting.full(body), drafting.streamed(body)
            assert_same(drafted["choices"], plain["choices"])
            assert_same(streamed["choices"], plain["choices"])
            assert len(drafted["usage"]["batch_size"]) == len(plain["usage"]["batch_size"])
        drafted = drafting.metric("draft_tokens_total")
        assert drafted >= drafting.metric("accepted_tokens_total") > 0
        assert_same(drafting.full(sampled)["choices"], small.full(sampled)["choices"])
        assert drafting.metric("draft_tokens_total") == drafted  # who samples is not drafted for


def test_clients_that_come_and_go_leave_nothing_behind(small: Server) -> None:
    """Beams, choices, grammars and plain streams, most of them dropped somewhere on the way."""
    kinds: list[Json] = [
        {"max_tokens": 300},
        {"n": 3, "max_tokens": 80},
        {"use_beam_search": True, "n": 2, "max_tokens": 30},
        {"response_format": {"type": "json_object"}, "max_tokens": 60, "ignore_eos": False},
        {"logprobs": True, "top_logprobs": 5, "max_tokens": 40, "stop": ["zq"]},
    ]

    def visit(number: int) -> int:
        rng = random.Random(number)
        body = {"model": "tiny", **_long(number, stream=True), **rng.choice(kinds)}
        seen = 0
        with small.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            for piece in response.iter_raw():
                seen += piece.count(b"data: ")
                if rng.random() < 0.1:
                    break
        return seen

    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(visit, range(48))) > 48
    eventually(lambda: _is_empty(small))
    assert small.service.admission.running == 0
    assert small.full(_long(1, max_tokens=5))["usage"]["completion_tokens"] == 5
