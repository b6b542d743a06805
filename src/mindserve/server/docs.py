"""The OpenAPI page: `/openapi.json` and `/docs`, for the mode in force."""

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindserve.contract.openapi import openapi_document
from mindserve.server.json_api import json_response
from mindserve.server.state import ServerState


def docs_routes(state: ServerState) -> list[BaseRoute]:
    """Both routes."""

    async def document(request: Request) -> Response:
        return json_response(openapi_document(state.mode))

    async def page(request: Request) -> Response:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="mindserve")

    return [Route("/openapi.json", document), Route("/docs", page)]
