"""The error table: error class to HTTP status and body, in both modes. Used before the status line and inside SSE."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from mindserve import errors
from mindserve.errors import MindserveError
from mindserve.render import frame
from mindserve.settings.values import ApiMode

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000
RETRY_AFTER_S = 1
INTERNAL = "Server internal error"
"""All that a client hears of a fault of ours."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of errors looks on the wire."""

    status: int
    error_type: str
    """`error_type` in vLLM mode."""
    native_type: str
    """`error.type` in native mode."""


_INVALID = Row(422, "Input Validation Error", "invalid_request_error")
_FAILED = Row(500, "Incomplete Generation", "server_error")
TABLE: Mapping[type[Exception], Row] = {
    errors.InvalidRequest: _INVALID,
    errors.PromptTooLong: Row(424, "Generation Error", "invalid_request_error"),
    errors.PayloadTooLarge: Row(413, "Payload Too Large", "invalid_request_error"),
    errors.NotFound: Row(404, "NotFoundError", "invalid_request_error"),
    errors.MethodNotAllowed: Row(405, "Method Not Allowed", "invalid_request_error"),
    errors.Unauthorized: Row(401, "Unauthorized", "authentication_error"),
    errors.Overloaded: Row(429, "Overloaded", "rate_limit_error"),
    errors.NotReady: Row(503, "Service Unavailable", "server_error"),
    errors.ModelLoadError: _INVALID,
    MindserveError: _FAILED,
    Exception: _FAILED,
}
"""The nearest base class counts."""

_CODES = {"prompt_too_long": "context_length_exceeded"}
"""`error.code` in native mode where OpenAI's clients know another word than ours."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """A complete HTTP answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def error_reply(error: Exception, mode: ApiMode) -> ErrorReply:
    """The answer to a request that failed before its first byte."""
    row = row_of(error)
    body = error_body(error, mode)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, errors.Overloaded):
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    if isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return ErrorReply(status=row.status, headers=tuple(headers), body=body)


def error_event(error: Exception, mode: ApiMode) -> bytes:
    """The last event of a stream that failed; no `[DONE]` follows it."""
    return frame(error_body(error, mode))


def error_body(error: Exception, mode: ApiMode) -> bytes:
    """`{"error": text, "error_type": ...}`, or OpenAI's error object in native mode."""
    row = row_of(error)
    message = error.message if isinstance(error, MindserveError) else INTERNAL
    message = message[:MAX_MESSAGE_CHARS]
    if mode is ApiMode.VLLM:
        return _encode({"error": message, "error_type": row.error_type})
    word = error.word if isinstance(error, MindserveError) else "internal_error"
    param = error.param if isinstance(error, MindserveError) else None
    detail = {"message": message, "type": row.native_type, "param": param, "code": _CODES.get(word, word)}
    return _encode({"error": detail})


def row_of(error: Exception) -> Row:
    """The table's row for an error."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def note_unexpected(error: Exception, *, request_id: str = "") -> None:
    """Log the faults that the table does not know, with their traceback: the client only hears of a 500."""
    if not isinstance(error, MindserveError):
        log.error("unexpected error request_id=%s", request_id, exc_info=error)
