"""What a client makes of a stream: reads server-sent events, checks their promises, adds the deltas up.

Nothing here knows how the server works; it is written against the contract alone.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

Json = dict[str, Any]


class StreamError(Exception):
    """The stream ended with an error event; `body` is its document."""

    def __init__(self, body: Json) -> None:
        super().__init__(json.dumps(body))
        self.body = body


def parse_sse(stream: bytes) -> list[Json]:
    """The chunks of a finished stream. Raises StreamError when it ends with an error event."""
    text = stream.decode("utf-8")
    assert text.endswith("\n\n"), f"cut off: {text[-100:]!r}"
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events), events
    payloads = [event.removeprefix("data: ") for event in events]
    if payloads[-1] != "[DONE]":
        last: Json = json.loads(payloads[-1])
        assert "error" in last, f"neither [DONE] nor an error at the end: {last}"
        raise StreamError(last)
    assert "[DONE]" not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


def fold(chunks: list[Json], *, has_full_text: bool = False) -> Json:
    """The full answer that a vLLM-mode stream amounts to (a stream carries neither prefill nor decode times)."""
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    ((request_id, kind, created, model),) = heads
    assert kind == "chat.completion.chunk"
    by_index: dict[int, list[Json]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        by_index.setdefault(choice["index"], []).append(chunk)
    assert sorted(by_index) == list(range(len(by_index)))
    choices = [_choice(i, by_index[i], has_full_text=has_full_text) for i in range(len(by_index))]
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    assert len(usages) == len(choices)
    return {
        "id": request_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": _usage(usages),
    }


def _choice(index: int, chunks: list[Json], *, has_full_text: bool) -> Json:
    parts = [chunk["choices"][0] for chunk in chunks]
    ends = [part["finish_reason"] for part in parts]
    assert ends[:-1] == [None] * (len(ends) - 1), f"choice {index} goes on after its end: {ends}"
    assert ends[-1] in ("stop", "length", "tool_calls")
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    deltas = [part["delta"] for part in parts]
    assert all(delta["role"] == "assistant" and len(delta) > 1 for delta in deltas)
    entries = [part["logprobs"]["content"] for part in parts if part["logprobs"] is not None]
    assert len(entries) in (0, len(parts)), "log-probabilities in some events only"
    return {
        "index": index,
        "message": _message(deltas, full_text=chunks[-1]["full_text"] if has_full_text else None),
        "logprobs": {"content": [entry for some in entries for entry in some]} if entries else None,
        "finish_reason": ends[-1],
    }


def _message(deltas: list[Json], *, full_text: str | None) -> Json:
    contents = [delta["content"] for delta in deltas if "content" in delta]
    content = "".join(contents)
    if full_text is not None:
        assert all(after.startswith(before) for before, after in pairwise(contents))
        content = contents[-1]
        assert content == full_text
    message: Json = {"role": "assistant", "content": content}
    thought = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    if thought:
        message["reasoning_content"] = "".join(thought)
    message["tool_calls"] = _calls(call for delta in deltas for call in delta.get("tool_calls", ()))
    return message


def _calls(deltas: Iterable[Json]) -> list[Json]:
    calls: list[Json] = []
    for delta in deltas:
        if "id" in delta:
            assert delta["index"] == len(calls), "calls are announced in order"
            name = delta["function"]["name"]
            calls.append({"function": {"arguments": "", "name": name}, "id": delta["id"], "type": delta["type"]})
        calls[delta["index"]]["function"]["arguments"] += delta["function"].get("arguments", "")
    return calls


def _usage(usages: list[Json]) -> Json:
    """The prompt once, generated tokens of all sequences, the arrays of the longest."""
    total = dict(max(usages, key=lambda usage: len(usage["batch_size"])))
    (total["prompt_tokens"],) = {usage["prompt_tokens"] for usage in usages}
    total["completion_tokens"] = sum(usage["completion_tokens"] for usage in usages)
    if "completion_tokens_details" in total:
        thought = sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages)
        total["completion_tokens_details"] = {"reasoning_tokens": thought}
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total


def assert_same(one: Any, other: Any) -> None:
    """Equal, numbers that are not whole up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-3)
    else:
        assert one == other
