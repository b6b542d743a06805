"""Output events as server-sent events: one `chat.completion.chunk` each."""

from collections.abc import Iterable
from typing import Any

from mindserve.output.events import ChoiceUsage, OutputEvent, ToolCallDelta
from mindserve.render.wire import Envelope, encode, logprobs_object, total_usage, usage_object
from mindserve.settings.values import ApiMode

DONE = b"data: [DONE]\n\n"
"""After the last choice's last chunk; never after an error."""


def frame(payload: bytes) -> bytes:
    """One JSON document as one server-sent event."""
    return b"data: " + payload + b"\n\n"


class ChunkRenderer:
    """Renders the events of one request, in order."""

    def __init__(self, envelope: Envelope, *, include_usage: bool = False) -> None:
        """`include_usage` is `stream_options.include_usage`; it counts in native mode only."""
        self._mode = envelope.mode
        self._is_native = envelope.mode is ApiMode.NATIVE
        self._include_usage = include_usage and self._is_native
        self._no_usage = b',"usage":null' if self._include_usage else b""
        self._prefix = b"data: " + encode(envelope.head("chat.completion.chunk"))[:-1]
        self._content_prefix = self._prefix + b',"choices":[{"index":'
        self._content_suffix = b'},"logprobs":null,"finish_reason":null}]' + self._no_usage + b"}\n\n"
        self._greeted: set[int] = set()
        self._usages: list[ChoiceUsage] = []

    def render(self, events: Iterable[OutputEvent]) -> bytes:
        """The chunks of some events; in native mode those that say nothing leave no chunk."""
        return b"".join(map(self._render, events))

    def end(self) -> bytes:
        """What follows when every choice has ended."""
        if not self._include_usage:
            return DONE
        usage = usage_object(total_usage(self._usages), self._mode)
        return self._join(b',"choices":[],"usage":' + encode(usage)) + DONE

    def _render(self, event: OutputEvent) -> bytes:
        has_more = event.finish_reason or event.logprobs is not None or event.reasoning is not None
        if not (has_more or event.tool_calls or event.full_text is not None):
            return self._content_chunk(event.index, event.content)
        return self._native_chunk(event) if self._is_native else self._chunk(event)

    def _content_chunk(self, index: int, content: str) -> bytes:
        """What nearly all chunks are, of parts that were encoded once."""
        role = b'"role":"assistant",'
        if self._is_native:
            if not content:
                return b""
            role = b"" if index in self._greeted else role
            self._greeted.add(index)
        return b'%b%d,"delta":{%b"content":%b%b' % (
            self._content_prefix,
            index,
            role,
            encode(content),
            self._content_suffix,
        )

    def _chunk(self, event: OutputEvent) -> bytes:
        """Role in every delta, usage before choices (contract: stream)."""
        extra = b""
        if event.finish_reason is not None:
            if event.full_text is not None:
                extra = b',"full_text":' + encode(event.full_text)
            if event.usage is not None:
                extra += b',"usage":' + encode(usage_object(event.usage, self._mode))
        content = event.content if event.full_text is None else event.full_text
        delta = {"role": "assistant", **_delta(event, content)}
        if len(delta) == 1:
            delta["content"] = ""
        return self._join(extra + b',"choices":[' + encode(_choice(event, delta)) + b"]")

    def _native_chunk(self, event: OutputEvent) -> bytes:
        """Role in a choice's first delta only, usage in a chunk of its own where asked for."""
        delta = _delta(event, event.content)
        if not delta and event.logprobs is None and event.finish_reason is None:
            return b""
        if event.index not in self._greeted:
            self._greeted.add(event.index)
            delta = {"role": "assistant", "content": "", **delta}
        if event.usage is not None:
            self._usages.append(event.usage)
        return self._join(b',"choices":[' + encode(_choice(event, delta)) + b"]" + self._no_usage)

    def _join(self, rest: bytes) -> bytes:
        return self._prefix + rest + b"}\n\n"


def _choice(event: OutputEvent, delta: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": event.index,
        "delta": delta,
        "logprobs": logprobs_object(event.logprobs),
        "finish_reason": event.finish_reason,
    }


def _delta(event: OutputEvent, content: str) -> dict[str, Any]:
    """Only what the event brought."""
    delta: dict[str, Any] = {}
    if event.reasoning is not None:
        delta["reasoning_content"] = event.reasoning
    if content:
        delta["content"] = content
    if event.tool_calls:
        delta["tool_calls"] = [_call_delta(call) for call in event.tool_calls]
    return delta


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    """First id, type and name, later arguments; `index` tells which call grows."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "index": call.index, "function": function}
