"""Routes of the management plane: health, stopping, adapters, facts about the server."""

import asyncio
import secrets
from ipaddress import ip_address
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from mindserve.contract.bodies import LoadAdapterRequest, UnloadAdapterRequest
from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams
from mindserve.errors import EngineFailure, InvalidRequest, MindserveError, NotFound, NotReady, Unauthorized
from mindserve.server.asgi import header
from mindserve.server.json_api import json_body, json_response
from mindserve.server.state import ServerState
from mindserve.settings.values import ServerSettings

MAX_PROBE_WAIT_S = 600
PROBE_TEXT = "Hello"


def management_routes(state: ServerState) -> list[BaseRoute]:
    """The plane's routes."""
    routes = ManagementRoutes(state)
    return [
        Route("/health", routes.health),
        Route("/health/timed", routes.probe),
        Route("/health/timed-{wait}", routes.probe),
        Route("/v2/health/live", routes.live),
        Route("/v2/health/ready", routes.ready),
        Route("/v2/models/{name}/ready", routes.model_ready),
        Route("/v2/models/{name}/getSlotCount", routes.slots),
        Route("/v1/config", routes.config),
        Route("/stopService", routes.stop_service, methods=["GET", "POST"]),
        Route("/v1/load_lora_adapter", routes.load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", routes.unload_adapter, methods=["POST"]),
    ]


class ManagementRoutes:
    """The plane's handlers."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        """`GET /health`: 200 without a body, 503 while stopping, 500 when the engine is broken."""
        self._check_running()
        if not self._state.service.engine.is_healthy:
            raise EngineFailure("The engine has failed.")
        return Response()

    async def live(self, request: Request) -> Response:
        """`GET /v2/health/live`: the process can still answer requests, however busy it is."""
        return await self.health(request)

    async def ready(self, request: Request) -> Response:
        """`GET /v2/health/ready`: a request sent now would start at once (503 when the places are taken)."""
        await self.health(request)
        admission = self._state.service.admission
        if admission.running >= self._state.settings.server.limits.max_link_num:
            raise NotReady("The service is busy")
        return Response()

    async def model_ready(self, request: Request) -> Response:
        """`GET /v2/models/{name}/ready`."""
        self._check_model(request)
        return await self.ready(request)

    async def probe(self, request: Request) -> Response:
        """`GET /health/timed[-seconds]`: a real one-token answer in time."""
        wait_s = _wait_s(request.path_params.get("wait"))
        self._check_running()
        try:
            async with asyncio.timeout(wait_s):
                await self._generate_one()
        except TimeoutError:
            raise EngineFailure(f"No token within {wait_s} seconds.") from None
        return json_response({"status": "healthy"})

    async def slots(self, request: Request) -> Response:
        """`GET /v2/models/{name}/getSlotCount`."""
        self._check_model(request)
        engine, settings = self._state.service.engine, self._state.settings
        stats = engine.stats()
        total = settings.scheduler.max_batch_size * settings.engine.instances
        available = (stats.free_blocks + stats.cached_blocks) * engine.info.block_size
        free = max(total - stats.running, 0)
        return json_response({"total_slots": total, "free_slots": free, "available_tokens_length": available})

    async def config(self, request: Request) -> Response:
        """`GET /v1/config`: static facts."""
        settings, info = self._state.settings, self._state.service.engine.info
        max_seq_len = min(settings.model.max_seq_len, info.max_context_len)
        parallel = settings.engine.parallel
        return json_response(
            {
                "modelName": settings.model.name,
                "maxSeqLen": max_seq_len,
                "maxOutputLen": min(settings.scheduler.max_iter_times, max_seq_len),
                "cacheBlockSize": info.block_size,
                "worldSize": parallel.tensor * parallel.pipeline * parallel.data,
            }
        )

    async def stop_service(self, request: Request) -> Response:
        """`GET /stopService`: answers when the last request has ended; `?mode=Force` cuts them short."""
        self._check_operator(request)
        if self._state.is_stopping:
            raise EngineFailure("The service is stopping already.")
        is_forced = request.query_params.get("mode") == "Force"
        self._state.request_stop(0 if is_forced else self._state.settings.server.limits.drain_timeout_s)
        await self._state.drained.wait()
        return json_response({"status": "stopped"})

    async def load_adapter(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter` with `lora_name` and `lora_path`."""
        self._check_operator(request)
        body = await json_body(request, self._state, LoadAdapterRequest)
        path = Path(body.lora_path)
        if not await asyncio.to_thread(path.exists):
            raise InvalidRequest("The adapter's path does not exist.", param="lora_path")
        await self._state.service.load_adapter(body.lora_name, path)
        return json_response({"status": "loaded", "lora_name": body.lora_name})

    async def unload_adapter(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter` with `lora_name`."""
        self._check_operator(request)
        body = await json_body(request, self._state, UnloadAdapterRequest)
        await self._state.service.unload_adapter(body.lora_name)
        return json_response({"status": "unloaded", "lora_name": body.lora_name})

    def _check_operator(self, request: Request) -> None:
        server = self._state.settings.server
        if not is_operator(request.scope, server):
            raise Unauthorized("Only the operator may do this: from this machine, with the API key, or over TLS.")

    def _check_running(self) -> None:
        if self._state.is_stopping:
            raise NotReady("The service has been stopped")

    def _check_model(self, request: Request) -> None:
        name = request.path_params["name"]
        if name not in self._state.model_names:
            raise NotFound(f"Model {name[:200]} not found.", param="model")

    async def _generate_one(self) -> None:
        prompt = self._state.tokenizer.encode(PROBE_TEXT) or [0]
        request = GenerateRequest(
            request_id=f"health_{secrets.token_hex(8)}",
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0, max_tokens=1),
        )
        tokens = self._state.service.engine.submit(request)
        try:
            async for events in tokens:
                for event in events:
                    if event.finish_reason is FinishReason.ERROR:
                        raise event.error or MindserveError("The engine has failed.")
        finally:
            tokens.cancel()


def is_operator(scope: Scope, server: ServerSettings) -> bool:
    """Whether a request may change the server.

    A management plane of its own is the operator's, as with MindIE. On a socket that it shares with the service plane
    anyone can ask, web pages in the operator's browser among them.
    """
    is_shared = (server.management.host, server.management.port) == (server.service.host, server.service.port)
    if not is_shared or server.api_key is not None or scope["scheme"] == "https":
        return True
    client = scope.get("client")
    is_web_page = header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") not in (None, b"none")
    return client is not None and ip_address(client[0]).is_loopback and not is_web_page


def _wait_s(text: str | None) -> int:
    """Seconds to wait: 1 to 600. Raises NotFound, for the number is part of the path."""
    if text is None:
        return MAX_PROBE_WAIT_S
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_PROBE_WAIT_S):
        raise NotFound(f"The wait must be 1 to {MAX_PROBE_WAIT_S} seconds.")
    return int(text)
