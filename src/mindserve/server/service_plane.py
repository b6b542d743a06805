"""Routes of the service plane: chat, models, tokenizer, ending a request."""

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindserve.contract.bodies import StopRequest, TokenizerRequest, TokenizerResponse
from mindserve.errors import NotFound
from mindserve.server.chat import ChatEndpoint
from mindserve.server.json_api import json_body, json_response
from mindserve.server.state import OWNER, ServerState
from mindserve.text.base import Tokenizer


def service_routes(state: ServerState) -> list[BaseRoute]:
    """The plane's routes."""
    routes = ServiceRoutes(state)
    return [
        Route("/v1/chat/completions", ChatEndpoint(state), methods=["POST"]),
        Route("/v1/models", routes.models),
        Route("/v1/models/{name}", routes.model),
        Route("/v1/tokenizer", routes.tokenize, methods=["POST"]),
        Route("/v2/models/{name}/stopInfer", routes.stop_infer, methods=["POST"]),
    ]


class ServiceRoutes:
    """Everything but chat."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`: the model and its adapters."""
        return json_response({"object": "list", "data": [self._entry(name) for name in self._state.model_names]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`."""
        name = request.path_params["name"]
        if name not in self._state.model_names:
            raise NotFound(f"Model {name[:200]} not found.", param="model")
        return json_response(self._entry(name))

    async def tokenize(self, request: Request) -> Response:
        """`POST /v1/tokenizer`: how many tokens a text has, and which."""
        body = await json_body(request, self._state, TokenizerRequest)
        tokenizer = self._state.tokenizer
        token_ids = await asyncio.to_thread(tokenizer.encode, body.inputs)
        tokens = [] if body.do_decode is False else await asyncio.to_thread(spelled, tokenizer, token_ids)
        return json_response(TokenizerResponse(token_number=len(token_ids), tokens=tokens))

    async def stop_infer(self, request: Request) -> Response:
        """`POST /v2/models/{name}/stopInfer`: end a running request with what it has."""
        name = request.path_params["name"]
        if name not in self._state.model_names:
            raise NotFound(f"Model {name[:200]} not found.", param="model")
        body = await json_body(request, self._state, StopRequest)
        if not self._state.service.stop(body.id):
            raise NotFound(f"RequestId is {body.id[:200]} not found.", param="id")
        return json_response(body)

    def _entry(self, name: str) -> Mapping[str, object]:
        """One model; an adapter's `parent` is the model, the model has none."""
        base = self._state.settings.model.name
        return {
            "id": name,
            "object": "model",
            "created": self._state.started_at,
            "owned_by": OWNER,
            "root": base,
            "parent": None if name == base else base,
        }


def spelled(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """The text piece by piece; tokens that share a character come as one piece."""
    pieces: list[str] = []
    pending = b""
    for token_id in token_ids:
        pending += tokenizer.token_bytes(token_id)
        try:
            pieces.append(pending.decode("utf-8"))
        except UnicodeDecodeError as error:
            if len(pending) - error.start < 4:
                continue  # perhaps a character's first bytes
            pieces.append(pending.decode("utf-8", "replace"))
        pending = b""
    if pending:
        pieces.append(pending.decode("utf-8", "replace"))
    return pieces
