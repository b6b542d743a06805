"""The same request, streamed and not, through HTTP: same text, calls, log-probabilities, counts and reasons."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from .bodies import ALL, Json
from .fold import assert_same
from .servers import Server


def _comparable(answer: Json) -> Json:
    """Without what two runs of one request may differ in: its id, moments, and random call ids."""
    usage = answer["usage"]
    details = {**usage, "batch_size": len(usage["batch_size"]), "queue_wait_time": len(usage["queue_wait_time"])}
    del details["prompt_tokens_details"]
    choices = [_without_call_ids(choice) for choice in answer["choices"]]
    return {"object": answer["object"], "model": answer["model"], "choices": choices, "usage": details}


def _without_call_ids(choice: Json) -> Json:
    message = choice["message"]
    calls = [{key: value for key, value in call.items() if key != "id"} for call in message["tool_calls"]]
    return {**choice, "message": {**message, "tool_calls": calls}}


def _sequences(body: Json) -> int:
    return body.get("n") or 1


@pytest.mark.parametrize("name", ALL)
def test_stream_equals_full(server: Server, name: str) -> None:
    body = ALL[name]
    full, streamed = server.full(body), server.streamed(body)
    assert_same(_comparable(streamed), _comparable(full))
    assert len(full["choices"]) == _sequences(body)
    _check_counts(full, body)


def _check_counts(full: Json, body: Json) -> None:
    usage = full["usage"]
    longest = len(usage["batch_size"])
    assert 0 < longest <= body["max_tokens"]
    assert len(usage["queue_wait_time"]) == longest
    assert len(full["decode_time_arr"]) == longest - 1
    assert longest <= usage["completion_tokens"] <= longest * _sequences(body)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert all(size >= 1 for size in usage["batch_size"])
    if any(choice["logprobs"] for choice in full["choices"]):
        entries = sum(len(choice["logprobs"]["content"]) for choice in full["choices"])
        assert entries == usage["completion_tokens"]
        assert body.get("logprobs") or "top_logprobs" in body
    assert {choice["finish_reason"] for choice in full["choices"]} <= {"stop", "length", "tool_calls"}


def test_a_seed_repeats_itself_and_sequences_differ(server: Server) -> None:
    body = ALL["five"]
    first, second = server.full(body), server.full(body)
    assert_same(_comparable(first), _comparable(second))
    assert len({choice["message"]["content"] for choice in first["choices"]}) > 1


def test_more_sequences_than_asked_for_are_all_returned(server: Server) -> None:
    answer = server.full({**ALL["two"], "n": 2, "best_of": 4})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    refused = server.post({**ALL["two"], "n": 2, "best_of": 4, "stream": True})
    assert refused.status_code == 422


def test_what_else_runs_changes_no_answer(server: Server) -> None:
    """A seed gives the same tokens alone and in a batch."""
    names = ["hot", "top-k", "five", "stop", "chosen-only", "all-penalties", "cold", "long"]
    alone = [_comparable(server.full(ALL[name])) for name in names]
    with ThreadPoolExecutor(len(names)) as threads:
        together = list(threads.map(lambda name: _comparable(server.streamed(ALL[name])), names))
    assert_same(together, alone)
