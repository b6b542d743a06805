"""The application of one socket: the routes of the planes that share it, behind the API key."""

import hmac
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mindserve.errors import MethodNotAllowed, MindserveError, NotFound, Unauthorized
from mindserve.server.asgi import header, send_whole
from mindserve.server.docs import docs_routes
from mindserve.server.errors import error_reply
from mindserve.server.management_plane import management_routes
from mindserve.server.metrics_plane import metrics_routes
from mindserve.server.service_plane import service_routes
from mindserve.server.state import ServerState

OPEN_PREFIXES = ("/health", "/v2/health/", "/metrics", "/docs", "/openapi.json")
"""Probes, scrapers and the documentation carry no API key."""


class PlaneKind(StrEnum):
    """Which of the three planes."""

    SERVICE = "service"
    MANAGEMENT = "management"
    METRICS = "metrics"


_ROUTES: Mapping[PlaneKind, Callable[[ServerState], list[BaseRoute]]] = {
    PlaneKind.SERVICE: lambda state: [*service_routes(state), *docs_routes(state)],
    PlaneKind.MANAGEMENT: management_routes,
    PlaneKind.METRICS: metrics_routes,
}


def build_app(state: ServerState, planes: Iterable[PlaneKind]) -> ASGIApp:
    """The application for a socket that serves `planes`."""
    routes = [route for plane in planes for route in _ROUTES[plane](state)]
    handler = _error_handler(state)
    app = Starlette(
        routes=routes,
        exception_handlers={MindserveError: handler, HTTPException: handler, Exception: handler},
    )
    app.router.redirect_slashes = False
    api_key = state.settings.server.api_key
    return app if api_key is None else KeyCheck(app, api_key=api_key, state=state)


def _error_handler(state: ServerState) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> Response:
        reply = error_reply(_of_http(error), state.mode)
        response = Response(reply.body, status_code=reply.status)
        response.raw_headers = list(reply.headers)
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    return handle


def _of_http(error: Exception) -> Exception:
    """What the router refuses, as an error of the table."""
    if not isinstance(error, HTTPException):
        return error
    return MethodNotAllowed("Method Not Allowed") if error.status_code == 405 else NotFound("Not Found")


class KeyCheck:
    """Lets requests pass that carry the API key, or need none."""

    def __init__(self, app: ASGIApp, *, api_key: str, state: ServerState) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        path = cast(str, scope.get("path", ""))
        given = header(scope, b"authorization") or b""
        if path.startswith(OPEN_PREFIXES) or hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        reply = error_reply(Unauthorized("The API key is missing or wrong."), self._state.mode)
        await send_whole(send, status=reply.status, headers=reply.headers, body=reply.body)
