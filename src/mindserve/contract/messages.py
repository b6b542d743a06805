"""`messages`: the rules of each role, and the size of the whole."""

from dataclasses import dataclass
from typing import Any

import msgspec

from mindserve.contract.context import ValidationContext
from mindserve.contract.failure import failure, read_each
from mindserve.contract.function_name import check_function_name
from mindserve.contract.json_values import is_array, is_object
from mindserve.contract.parts import PartReader
from mindserve.contract.request import MediaPart, Message, TextPart
from mindserve.errors import InvalidRequest

MISSING = "Request param contains not messages or messages null"
NOT_ARRAY = "Request param messages not arr or arr is empty"
MISSING_BESIDE_TOOLS = "Request param messages is null"
NOT_ARRAY_BESIDE_TOOLS = "Request param messages is not arr or arr is empty"
ROLE_MISSING = "Request param contains not role or role null"
ROLE_NOT_STRING = "Request param role must be string"
ROLE_EMPTY = "Request param role must be not empty"
CONTENT_MISSING = "Request param contains not content or content null"
CONTENT_WRONG_TYPE = "The type of inputs is abnormal"
CONTENT_EMPTY = "Request param content len should not be 0"
CONTENT_NO_PARTS = "Inputs arr is empty"
ASSISTANT_CONTENT_WRONG_TYPE = 'Request param "content" arguments expected to be a string'
ASSISTANT_CONTENT_EMPTY = 'Request param "content" should not be empty'
MEDIA_BESIDE_TOOLS = "Check open ai req parameter error: with tools the content of messages must be text"
ID_MISSING = "Request param contains not tool_call_id or tool_call_id null while role is tool"
ID_EMPTY = "Request param tool_call_id len should not be 0 while role is tool"
ID_NOT_STRING = "The type of tool_call_id is abnormal"
CALLS_NOT_ARRAY = "Tool call param must be an array of objects"
CALL_ID_MISSING = "Tool call param contains no id."
CALL_ID_NOT_STRING = 'Tool call param "id" arguments expected to be a string'
CALL_TYPE_WRONG = "The type of the tool. Currently, only function is supported."
CALL_FUNCTION_MISSING = "Tool call param contains no function that the model called."
CALL_NAME_MISSING = "Tool call param contains no function name"
CALL_NAME_NOT_STRING = "Tool call param function name expected to be a string"
CALL_ARGUMENTS_MISSING = "Tool call param contains no function arguments"
CALL_ARGUMENTS_NOT_STRING = "Tool call param function arguments expected to be a string"
TOO_LONG = "Messages len not in (0, {limit}], but the length of inputs is {length}"

MIN_MESSAGE_CHARS = len('{"role":"x","content":"x"}')
"""So many messages that these alone exceed the limit are not even read."""

_Content = str | tuple[TextPart | MediaPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReader:
    """Reads the messages of one request."""

    has_tools: bool
    parts: PartReader

    def read(self, messages: Any) -> tuple[Message, ...]:
        """All of them, checked in order."""
        if messages is None:
            raise _failure(MISSING_BESIDE_TOOLS if self.has_tools else MISSING)
        if not is_array(messages) or not messages:
            raise _failure(NOT_ARRAY_BESIDE_TOOLS if self.has_tools else NOT_ARRAY)
        return read_each(messages, self._read_message, param="messages")

    def _read_message(self, message: Any) -> Message:
        role = _read_role(message)
        extra = {key: value for key, value in message.items() if key not in ("role", "content", "tool_call_id")}
        calls = _read_tool_calls(extra.pop("tool_calls", None)) if role == "assistant" else ()
        return Message(
            role=role,
            content=self._read_content(message.get("content"), role=role, is_optional=bool(calls)),
            tool_calls=calls,
            tool_call_id=_read_tool_call_id(message.get("tool_call_id"), role=role),
            extra=extra,
        )

    def _read_content(self, content: Any, *, role: str, is_optional: bool) -> _Content | None:
        is_assistant = role == "assistant"
        if content is None:
            if is_optional:
                return None
            raise _failure(CONTENT_MISSING)
        if isinstance(content, str):
            if not content and not is_optional:
                raise _failure(ASSISTANT_CONTENT_EMPTY if is_assistant else CONTENT_EMPTY)
            return content
        if not is_array(content):
            raise _failure(ASSISTANT_CONTENT_WRONG_TYPE if is_assistant else CONTENT_WRONG_TYPE)
        return self._read_parts(content, is_assistant=is_assistant)

    def _read_parts(self, content: list[Any], *, is_assistant: bool) -> _Content:
        """A list of text alone becomes one string, joined without a separator."""
        if not content:
            raise _failure(CONTENT_NO_PARTS)
        parts = tuple(self.parts.read(part) for part in content)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if len(texts) == len(parts):
            return "".join(texts)
        if is_assistant:
            raise _failure(ASSISTANT_CONTENT_WRONG_TYPE)
        if self.has_tools:
            raise _failure(MEDIA_BESIDE_TOOLS)
        return parts


def read_messages(
    messages: Any, context: ValidationContext, *, has_tools: bool, body_chars: int
) -> tuple[Message, ...]:
    """The conversation. `body_chars`: length of the whole body; only a long one has its messages measured."""
    limit = context.max_messages_chars
    parts = PartReader(taken=context.media)
    if is_array(messages) and len(messages) * MIN_MESSAGE_CHARS > limit:
        _check_length(messages, limit=limit, payload_chars=0)
    conversation = ConversationReader(has_tools=has_tools, parts=parts).read(messages)
    if body_chars > limit:
        _check_length(messages, limit=limit, payload_chars=parts.payload_chars)
    return conversation


def _check_length(messages: Any, *, limit: int, payload_chars: int) -> None:
    """Characters of the compact JSON without base64 payloads."""
    length = len(msgspec.json.encode(messages).decode()) - payload_chars
    if length > limit:
        raise failure(TOO_LONG, param="messages", limit=limit, length=length)


def _read_role(message: Any) -> str:
    role = message.get("role") if is_object(message) else None
    if role is None:
        raise _failure(ROLE_MISSING)
    if not isinstance(role, str):
        raise _failure(ROLE_NOT_STRING)
    if not role:
        raise _failure(ROLE_EMPTY)
    return role


def _read_tool_call_id(call_id: Any, *, role: str) -> str | None:
    if call_id is None:
        if role == "tool":
            raise _failure(ID_MISSING)
        return None
    if not isinstance(call_id, str):
        raise _failure(ID_NOT_STRING)
    if not call_id and role == "tool":
        raise _failure(ID_EMPTY)
    return call_id


def _read_tool_calls(calls: Any) -> tuple[dict[str, Any], ...]:
    """Calls of an assistant message, as sent. Their ids are not matched against the answers'."""
    if calls is None:
        return ()
    if not is_array(calls):
        raise _failure(CALLS_NOT_ARRAY)
    for call in calls:
        _check_tool_call(call)
    return tuple(calls)


def _check_tool_call(call: Any) -> None:
    if not is_object(call):
        raise _failure(CALLS_NOT_ARRAY)
    _check_string(call.get("id"), missing=CALL_ID_MISSING, not_string=CALL_ID_NOT_STRING)
    if call.get("type") != "function":
        raise _failure(CALL_TYPE_WRONG)
    function = call.get("function")
    if not is_object(function):
        raise _failure(CALL_FUNCTION_MISSING)
    name = _check_string(function.get("name"), missing=CALL_NAME_MISSING, not_string=CALL_NAME_NOT_STRING)
    check_function_name(name, param="messages")
    arguments = function.get("arguments")
    _check_string(arguments, missing=CALL_ARGUMENTS_MISSING, not_string=CALL_ARGUMENTS_NOT_STRING)


def _check_string(value: Any, *, missing: str, not_string: str) -> str:
    if value is None:
        raise _failure(missing)
    if not isinstance(value, str):
        raise _failure(not_string)
    return value


def _failure(text: str) -> InvalidRequest:
    return failure(text, param="messages")
