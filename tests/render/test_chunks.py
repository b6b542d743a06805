"""The contract's own streams, in the shape of its newest examples, compared byte for byte."""

import json
from typing import Any

from mindserve.output.events import ChoiceUsage, LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.render.chunks import DONE, ChunkRenderer, frame
from mindserve.render.wire import Envelope
from mindserve.settings.values import ApiMode


def _usage(tokens: int, *, prompt: int = 24, reasoning: int | None = None) -> ChoiceUsage:
    waits = (5318, 117, 82, 72, 196, 64, 60, 55, 53, 54, 56, 67, 61)
    return ChoiceUsage(
        prompt_tokens=prompt,
        cached_tokens=0,
        completion_tokens=tokens,
        reasoning_tokens=reasoning,
        batch_sizes=(1,) * tokens,
        queue_waits_us=waits[:tokens],
        prefill_ms=38,
        decode_ms=(27,) * (tokens - 1),
    )


def _renderer(
    request_id: str = "endpoint_common_10",
    *,
    created: int = 1744038509,
    mode: ApiMode = ApiMode.VLLM,
    include_usage: bool = False,
) -> ChunkRenderer:
    envelope = Envelope(request_id=request_id, created=created, model="llama3-70b", mode=mode)
    return ChunkRenderer(envelope, include_usage=include_usage)


def _objects(stream: bytes) -> list[dict[str, Any]]:
    lines = stream.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_two_sequences_as_in_the_contract() -> None:
    head = (
        'data: {"id":"endpoint_common_10","object":"chat.completion.chunk","created":1744038509,"model":"llama3-70b",'
    )
    usage = (
        '"usage":{"prompt_tokens":24,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens":5,'
        '"total_tokens":29,"batch_size":[1,1,1,1,1],"queue_wait_time":[5318,117,82,72,196]},'
    )
    words = ["You", " are", " a", " helpful", " assistant"]
    renderer = _renderer()
    stream, expected = b"", ""
    for word in words:
        is_last = word == words[-1]
        stream += renderer.render(
            [
                OutputEvent(
                    index=index,
                    content=word,
                    finish_reason="length" if is_last else None,
                    usage=_usage(5) if is_last else None,
                )
                for index in (0, 1)
            ]
        )
        for index in (0, 1):
            expected += (
                f'{head}{usage if is_last else ""}"choices":[{{"index":{index},'
                f'"delta":{{"role":"assistant","content":"{word}"}},"logprobs":null,'
                f'"finish_reason":{chr(34) + "length" + chr(34) if is_last else "null"}}}]}}\n\n'
            )
    stream += renderer.end()
    assert stream.decode() == expected + "data: [DONE]\n\n"


def test_every_token_has_an_event_even_without_text() -> None:
    """Thirteen events with empty content, usage in the last, as in the contract's third stream."""
    renderer = _renderer("endpoint_common_7", created=1729614349)
    events = [OutputEvent(index=0) for _ in range(12)]
    events.append(OutputEvent(index=0, finish_reason="stop", usage=_usage(13, prompt=54)))
    chunks = _objects(renderer.render(events))
    assert len(chunks) == 13
    assert {json.dumps(chunk["choices"][0]["delta"]) for chunk in chunks} == {'{"role": "assistant", "content": ""}'}
    assert list(chunks[0]) == ["id", "object", "created", "model", "choices"]
    assert list(chunks[-1]) == ["id", "object", "created", "model", "usage", "choices"]
    assert chunks[-1]["usage"]["total_tokens"] == 67
    assert chunks[-1]["usage"]["queue_wait_time"] == [5318, 117, 82, 72, 196, 64, 60, 55, 53, 54, 56, 67, 61]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 12 + ["stop"]


def test_full_text_repeats_the_whole_content() -> None:
    """The contract's fourth stream: content grows, the last event has it under full_text as well."""
    texts = ["Hello", "Hello!", "Hello! How"]
    pieces = ["Hello", "!", " How"]
    events = [OutputEvent(index=0, content=p, full_text=t) for p, t in zip(pieces, texts, strict=True)]
    events.append(
        OutputEvent(index=0, content=" can", full_text="Hello! How can", finish_reason="length", usage=_usage(4))
    )
    chunks = _objects(_renderer().render(events))
    contents = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert contents == [*texts, "Hello! How can"]
    assert [chunk.get("full_text") for chunk in chunks] == [None, None, None, "Hello! How can"]
    assert list(chunks[-1]) == ["id", "object", "created", "model", "full_text", "usage", "choices"]


def test_thought_content_and_calls_stand_in_their_order() -> None:
    events = [
        OutputEvent(index=0, reasoning="Hm"),
        OutputEvent(index=0, reasoning=".", content="Yes", tool_calls=(ToolCallDelta(index=0, id="c", name="f"),)),
        OutputEvent(index=0, tool_calls=(ToolCallDelta(index=0, arguments='{"a":1}'),)),
        OutputEvent(index=0, finish_reason="tool_calls", usage=_usage(4, reasoning=2)),
    ]
    chunks = _objects(_renderer().render(events))
    deltas = [json.dumps(chunk["choices"][0]["delta"]) for chunk in chunks]
    assert deltas == [
        '{"role": "assistant", "reasoning_content": "Hm"}',
        '{"role": "assistant", "reasoning_content": ".", "content": "Yes", "tool_calls": '
        '[{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": ""}}]}',
        '{"role": "assistant", "tool_calls": [{"index": 0, "function": {"arguments": "{\\"a\\":1}"}}]}',
        '{"role": "assistant", "content": ""}',
    ]
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_logprobs_travel_with_their_token() -> None:
    entry = LogprobEntry(token="a", logprob=-0.25, bytes=(97,))
    (chunk,) = _objects(_renderer().render([OutputEvent(index=0, content="a", logprobs=(entry,))]))
    assert chunk["choices"][0]["logprobs"] == {
        "content": [{"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}]
    }


def test_text_is_utf8_and_never_breaks_the_framing() -> None:
    text = 'line\nbreak\r "quote" \u4f60\u597d \U0001f600 \x00'
    stream = _renderer().render([OutputEvent(index=0, content=text)])
    assert stream.count(b"\n") == 2
    assert "\u4f60\u597d \U0001f600".encode() in stream
    assert _objects(stream)[0]["choices"][0]["delta"]["content"] == text


def test_native_mode_has_role_once_and_usage_where_asked_for() -> None:
    renderer = _renderer(mode=ApiMode.NATIVE, include_usage=True)
    events = [
        OutputEvent(index=0, content="Hi"),
        OutputEvent(index=0, content=""),
        OutputEvent(index=1, content="Ho"),
        OutputEvent(index=0, content=" you", full_text="Hi you", finish_reason="stop", usage=_usage(3)),
        OutputEvent(index=1, finish_reason="length", usage=_usage(2)),
    ]
    chunks = _objects((renderer.render(events) + renderer.end()).removesuffix(DONE))
    assert [json.dumps(chunk["choices"][0]["delta"]) for chunk in chunks[:-1]] == [
        '{"role": "assistant", "content": "Hi"}',
        '{"role": "assistant", "content": "Ho"}',
        '{"content": " you"}',
        "{}",
    ]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 24,
        "completion_tokens": 5,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert "full_text" not in json.dumps(chunks)


def test_native_mode_is_silent_about_usage_otherwise() -> None:
    renderer = _renderer(mode=ApiMode.NATIVE)
    (chunk,) = _objects(renderer.render([OutputEvent(index=0, finish_reason="stop", usage=_usage(1))]))
    assert list(chunk) == ["id", "object", "created", "model", "choices"]
    assert renderer.end() == DONE


def test_frame_wraps_one_document() -> None:
    assert frame(b'{"error":"x"}') == b'data: {"error":"x"}\n\n'
