"""The contract's own requests are answered in the shape of its own answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from mindserve.engine.scripted import Answer
from tests.api.examples import EXAMPLES, asked, newest_answer, newest_chunk, shape
from tests.api.running import Running, events, running, settings_for, with_server

TURNS = "What is worth seeing there?"
ENDS = Answer(match=TURNS, text="Shanghai: 12")
"""Twelve tokens and an end token, as in the example of a stream without `n`."""
FULL_KEYS = ["id", "object", "created", "model", "choices", "usage", "prefill_time", "decode_time_arr"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(answers=(ENDS, Answer())) as started:
        yield started


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
