"""Small JSON routes: a bounded body in, an encoded object out."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindserve.errors import InvalidRequest, PayloadTooLarge
from mindserve.server.asgi import ClientGone, read_body
from mindserve.server.state import ServerState

_encode = msgspec.json.Encoder().encode


def json_response(value: object, *, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_encode(value), status_code=status, media_type="application/json")


async def json_object(request: Request, state: ServerState) -> Mapping[str, Any]:
    """The body as a JSON object. Raises InvalidRequest, PayloadTooLarge."""
    max_bytes = state.settings.server.limits.max_body_bytes
    try:
        body = await read_body(request.scope, request.receive, max_bytes=max_bytes)
    except ClientGone:
        raise InvalidRequest("The request ended before its body did.") from None
    try:
        value: object = await asyncio.to_thread(msgspec.json.decode, body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidRequest("Failed to parse request context to json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return cast(dict[str, Any], value)


def string_field(body: Mapping[str, Any], name: str, *, max_chars: int) -> str:
    """A mandatory string. Raises InvalidRequest, PayloadTooLarge."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"Parameter {name} must be a non-empty string.", param=name)
    if len(value) > max_chars:
        raise PayloadTooLarge(
            f"Parameter {name} must have at most {max_chars} characters, got {len(value)}.", param=name
        )
    return value
