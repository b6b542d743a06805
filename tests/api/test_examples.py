"""The contract's own examples: its requests are answered in the shape of its answers.

The examples come from several releases of the reference. Where they differ the newest shape counts, as decided:
`tool_calls` is a list in full answers and absent from deltas without calls, `logprobs` and `prompt_tokens_details` are
always there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.scripted import Answer
from tests.api.running import MODEL, Running, events, running, settings_for, with_server

EXAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "contract" / "examples.json").read_text(encoding="utf-8")
)
TWO_SEQUENCES, TURNS = "You are a helpful assistant.", "What is the best thing in this city?"
ENDS = Answer(match=TURNS, text="Shanghai: 12")
"""Twelve tokens and an end token, as in the example of a stream without `n`."""
STARTS = {"id": str, "object": str, "created": int, "model": str}
FULL_KEYS = [*STARTS, "choices", "usage", "prefill_time", "decode_time_arr"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(answers=(ENDS, Answer())) as started:
        yield started


def asked(name: str, **fields: Any) -> dict[str, Any]:
    """An example request, with the served model's name."""
    return EXAMPLES["requests"][name] | {"model": MODEL} | fields


def shape(value: Any) -> Any:
    """Keys in their order, and types; of a list the shapes of its elements, equal ones once."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        shapes: list[Any] = []
        for item in value:
            if shape(item) not in shapes:
                shapes.append(shape(item))
        return ("list", shapes)
    return "null" if value is None else type(value).__name__


def newest_answer(example: dict[str, Any]) -> dict[str, Any]:
    """The example as the newest release writes it."""
    choices = [
        {
            "index": choice["index"],
            "message": choice["message"] | {"tool_calls": choice["message"].get("tool_calls") or []},
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in example["choices"]
    ]
    return example | {"choices": choices}


def newest_chunk(example: dict[str, Any]) -> dict[str, Any]:
    choices = [
        {
            "index": choice["index"],
            "delta": choice["delta"],
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in example["choices"]
    ]
    chunk = example | {"choices": choices}
    if usage := example.get("usage"):
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        first = {"prompt_tokens": usage["prompt_tokens"]} | details
        chunk["usage"] = first | {key: value for key, value in usage.items() if key not in first}
    return chunk


@pytest.mark.parametrize(
    ("request_name", "answer_name", "fields"),
    [
        ("second turn", "single turn", {"max_tokens": 13}),
        ("second turn", "first turn", {"max_tokens": None}),
        ("second turn", "second turn", {"max_tokens": 5}),
        ("text", "several sequences", {}),
    ],
)
def test_an_answer_has_the_shape_of_the_example(
    server: Running, request_name: str, answer_name: str, fields: dict[str, Any]
) -> None:
    response = server.post(asked(request_name, **fields))
    assert response.status_code == 200, response.text
    answer, example = response.json(), newest_answer(EXAMPLES["answers"][answer_name])
    assert list(answer) == FULL_KEYS
    assert shape(answer) == shape(example)


def test_one_answers_figures_have_the_lengths_that_the_tables_give(server: Running) -> None:
    body = server.post(asked("second turn", max_tokens=None)).json()
    check_figures(body["usage"], tokens=13, longest=13)
    assert len(body["decode_time_arr"]) == 12
    assert body["choices"][0]["finish_reason"] == "stop"


def test_several_answers_figures_have_the_length_of_the_longest(server: Running) -> None:
    body = server.post(asked("text")).json()
    check_figures(body["usage"], tokens=10, longest=5)
    assert len(body["decode_time_arr"]) == 4
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}


def check_figures(usage: dict[str, Any], *, tokens: int, longest: int) -> None:
    assert usage["completion_tokens"] == tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + tokens
    assert len(usage["batch_size"]) == len(usage["queue_wait_time"]) == longest


@pytest.mark.parametrize(
    ("request_name", "stream_name", "fields"),
    [
        ("streaming", "several sequences", {}),
        ("second turn", "one sequence", {"stream": True, "max_tokens": None}),
    ],
)
def test_a_stream_has_the_shape_of_the_example(
    server: Running, request_name: str, stream_name: str, fields: dict[str, Any]
) -> None:
    chunks = events(server.post(asked(request_name, **fields)).content)
    example = EXAMPLES["streams"][stream_name]
    assert len(chunks) == len(example)
    assert chunks.pop() == example[-1] == "[DONE]"
    for chunk, wanted in zip(chunks, example[:-1], strict=True):
        assert shape(chunk) == shape(newest_chunk(wanted))
        choice, wanted_choice = chunk["choices"][0], wanted["choices"][0]
        assert choice["index"] == wanted_choice["index"]
        assert choice["finish_reason"] == wanted_choice["finish_reason"]
        if usage := chunk.get("usage"):
            count = wanted["usage"]["completion_tokens"]
            check_figures(usage, tokens=count, longest=count)


def test_a_full_text_stream_has_the_shape_of_the_example() -> None:
    with running(with_server(settings_for(), full_text=True), answers=(ENDS, Answer())) as server:
        chunks = events(server.post(asked("second turn", stream=True, max_tokens=10)).content)
    example = EXAMPLES["streams"]["full text"]
    assert len(chunks) == len(example)
    for count, (chunk, wanted) in enumerate(zip(chunks[:-1], example[:-1], strict=True), start=1):
        assert shape(chunk) == shape(newest_chunk(wanted))
        assert chunk["choices"][0]["delta"]["content"] == ENDS.text[:count]
    assert chunks[-2]["full_text"] == ENDS.text[:10]
