"""Messages of a request as chat templates expect them: plain dictionaries."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from mindserve.contract.request import MediaPart, Message, PartKind, TextPart

STANDARD_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})

_PART_TYPES: Final = {
    PartKind.IMAGE_URL: "image",
    PartKind.VIDEO_URL: "video",
    PartKind.AUDIO_URL: "audio",
    PartKind.INPUT_AUDIO: "audio",
}
"""What templates call the kinds of media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTaste:
    """What a template can work with."""

    wants_parts: bool = False
    """Content must be lists of parts; otherwise text-only lists become one string (contract: request.md 4.3)."""
    wants_objects: bool = True
    """Arguments of earlier calls are objects where they are JSON objects; otherwise they stay strings."""


def template_messages(messages: Sequence[Message], taste: TemplateTaste) -> list[dict[str, Any]]:
    """The conversation for a template."""
    return [_template_message(message, taste) for message in messages]


def _template_message(message: Message, taste: TemplateTaste) -> dict[str, Any]:
    content = _content(message)
    if taste.wants_parts and isinstance(content, str) and content:
        content = [{"type": "text", "text": content}]
    result: dict[str, Any] = {**message.extra, "role": message.role, "content": content}
    if message.tool_calls:
        result["tool_calls"] = [_tool_call(call, taste.wants_objects) for call in message.tool_calls]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    return result


def _content(message: Message) -> str | list[dict[str, str]]:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    if not any(isinstance(part, MediaPart) for part in content):
        return message_text(message)
    return [_part(part) for part in content]


def _part(part: TextPart | MediaPart) -> dict[str, str]:
    """Media sources (up to megabytes) stay out of the template; it only marks the place."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind = _PART_TYPES[part.kind]
    return {"type": kind, kind: ""}


def _tool_call(call: Mapping[str, Any], wants_objects: bool) -> dict[str, Any]:
    function = cast("Mapping[str, Any]", call["function"])
    arguments = function["arguments"]
    if wants_objects:
        arguments = _parsed(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return cast("Any", value) if isinstance(value, dict) else arguments


def message_text(message: Message) -> str:
    """All text of a message."""
    content = message.content or ""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))


def media_parts(messages: Sequence[Message]) -> list[MediaPart]:
    """All media of a conversation, in order."""
    contents = [message.content for message in messages if isinstance(message.content, tuple)]
    return [part for content in contents for part in content if isinstance(part, MediaPart)]
