"""The documented types of answers are what `render` sends."""

import json
from typing import Any

import msgspec
import pytest

from mindserve.contract import response
from mindserve.errors import InvalidRequest
from mindserve.output.events import ChoiceUsage, LogprobCandidate, LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.render import ChunkRenderer, Completion, Envelope
from mindserve.server.errors import error_body
from mindserve.settings.values import ApiMode

USAGE = ChoiceUsage(
    prompt_tokens=3,
    cached_tokens=0,
    completion_tokens=2,
    reasoning_tokens=1,
    batch_sizes=(1, 1),
    queue_waits_us=(50, 7),
    prefill_ms=4,
    decode_ms=(2,),
)
ENTRY = LogprobEntry(
    token="a", logprob=-0.5, bytes=(97,), top=(LogprobCandidate(token="b", logprob=-9999.0, bytes=(98,)),)
)
CALLS = (
    (ToolCallDelta(index=0, id="call_abcdefgh", name="f"),),
    (ToolCallDelta(index=0, arguments='{"a":1}'),),
)
EVENTS = (
    OutputEvent(index=0, reasoning="hm"),
    OutputEvent(index=0, content="Hi", logprobs=(ENTRY,)),
    OutputEvent(index=0, tool_calls=CALLS[0]),
    OutputEvent(index=0, tool_calls=CALLS[1]),
    OutputEvent(index=0, content="!", finish_reason="tool_calls", usage=USAGE, full_text="Hi!"),
)
PLAIN = (OutputEvent(index=0, content="Hi", finish_reason="stop", usage=USAGE),)

TYPES = {
    ApiMode.VLLM: (response.VllmCompletion, response.VllmChunk),
    ApiMode.NATIVE: (response.NativeCompletion, response.NativeChunk),
}


def envelope(mode: ApiMode) -> Envelope:
    return Envelope(request_id="endpoint_common_0", created=1, model="m", mode=mode)


@pytest.mark.parametrize("mode", ApiMode)
@pytest.mark.parametrize("events", [EVENTS, PLAIN])
def test_completion(mode: ApiMode, events: tuple[OutputEvent, ...]) -> None:
    completion = Completion(envelope(mode))
    completion.feed(events)
    answer = msgspec.json.decode(completion.render(), type=TYPES[mode][0])
    assert answer.choices[0].message.content.startswith("Hi")


@pytest.mark.parametrize("mode", ApiMode)
@pytest.mark.parametrize("events", [EVENTS, PLAIN])
@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks(mode: ApiMode, events: tuple[OutputEvent, ...], include_usage: bool) -> None:
    renderer = ChunkRenderer(envelope(mode), include_usage=include_usage)
    stream = b"".join(renderer.render([event]) for event in events) + renderer.end()
    *payloads, done = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]
    assert done == b"[DONE]"
    chunks = [msgspec.json.decode(payload, type=TYPES[mode][1]) for payload in payloads]
    assert len(chunks) >= len(events)
    assert chunks[-1].object == "chat.completion.chunk"


def test_types_refuse_what_is_not_documented() -> None:
    completion = Completion(envelope(ApiMode.VLLM))
    completion.feed(PLAIN)
    answer: dict[str, Any] = json.loads(completion.render())
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**answer, "extra": 1}, response.VllmCompletion)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({key: value for key, value in answer.items() if key != "usage"}, response.VllmCompletion)


def test_errors_as_the_server_sends_them() -> None:
    error = InvalidRequest("wrong", param="n")
    vllm = msgspec.json.decode(error_body(error, ApiMode.VLLM), type=response.VllmError)
    assert (vllm.error, vllm.error_type) == ("wrong", "Input Validation Error")
    native = msgspec.json.decode(error_body(error, ApiMode.NATIVE), type=response.NativeError)
    assert (native.error.message, native.error.param) == ("wrong", "n")
