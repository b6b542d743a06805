"""Small JSON routes: a bounded body in, an encoded object out."""

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindserve.contract.bodies import parse_body
from mindserve.errors import InvalidRequest
from mindserve.server.asgi import ClientGone, parsed, read_body
from mindserve.server.state import ServerState

Body = TypeVar("Body", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


def json_response(value: object) -> Response:
    """A JSON answer."""
    return Response(_encode(value), media_type="application/json")


async def json_body(request: Request, state: ServerState, kind: type[Body]) -> Body:
    """The request's body. Raises InvalidRequest, PayloadTooLarge."""
    limits = state.settings.server.limits
    try:
        body = await read_body(request.scope, request.receive, max_bytes=limits.max_body_bytes)
    except ClientGone:
        raise InvalidRequest("The request ended before its body did.") from None
    return await parsed(body, lambda body: parse_body(body, kind, max_json_depth=limits.max_json_depth))
