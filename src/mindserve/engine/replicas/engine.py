"""Replicas behind the `Engine` protocol."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from mindserve.engine.base import Engine, EngineStats, GenerateRequest, ModelInfo
from mindserve.engine.checks import loaded, no_adapter, refuse_too_long, refuse_unknown
from mindserve.engine.replicas.affinity import prefix_keys
from mindserve.engine.replicas.fleet import Fleet
from mindserve.engine.replicas.members import Members
from mindserve.engine.replicas.requests import Requests
from mindserve.engine.replicas.stream import ReplicaStream
from mindserve.engine.replicas.wire import Route
from mindserve.errors import ConfigError, MindserveError, NotReady
from mindserve.settings.values import Settings

log = logging.getLogger(__name__)

REFRESH_S = 1.0
"""How often replicas are looked for."""

FIRST_LOOK_S = 0.2
"""The same while starting."""

STRAGGLERS_S = 60.0
"""How long after the first replica the start waits for the others."""


class ReplicaEngine:
    """Refuses what no replica would answer and has the rest answered; healthy as long as one replica is."""

    def __init__(self, settings: Settings, *, make: Callable[[Settings], Engine], fleet: Fleet | None = None) -> None:
        """`make` makes a replica's engine on its node: importable there. `fleet`: Ray's if None."""
        self._settings = settings
        self._make = make
        self._fleet = fleet
        self._server = uuid.uuid4().hex
        self._info: ModelInfo | None = None
        self._requests: Requests | None = None
        self._members: Members | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def info(self) -> ModelInfo:
        """Facts about the model, from the first replica. Raises NotReady before `start`."""
        return loaded(self._info)

    @property
    def is_healthy(self) -> bool:
        """Whether a replica can answer."""
        return self._members is not None and bool(self._members.healthy)

    async def start(self) -> None:
        """Have the replicas made and wait for them. Raises ModelLoadError, or ConfigError where Ray is missing."""
        fleet = self._fleet = self._fleet or _ray_fleet(self._settings, self._make)
        self._requests = Requests(fleet, self._server)
        self._members = Members(fleet, self._server, self._requests)
        try:
            await fleet.start()
            await self._gather(self._members)
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._look_after(self._members))

    def submit(self, request: GenerateRequest) -> ReplicaStream:
        """Send a request to a replica. Raises NotReady, InvalidRequest, PromptTooLong."""
        if self._members is None or self._requests is None:
            raise NotReady("The engine is not running.")
        replicas = self._members.healthy
        if not replicas:
            raise NotReady("No replica can answer at the moment.")
        self._refuse(request, self._members)
        return self._requests.start(request, Route(among=replicas, keys=prefix_keys(request)))

    def _refuse(self, request: GenerateRequest, members: Members) -> None:
        """What the replicas would refuse for reasons that are known here."""
        if request.adapter is not None and request.adapter not in members.adapters:
            raise no_adapter(request.adapter, param="model")
        refuse_unknown(request, self.info)
        model = self._settings.model
        context_len = min(self.info.max_context_len, model.max_seq_len)
        refuse_too_long(len(request.prompt_token_ids), self.info, model, context_len=context_len)

    def stats(self) -> EngineStats:
        """The sum over the replicas."""
        return EngineStats() if self._members is None else self._members.stats()

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load it on all replicas, and on those to come. Raises ModelLoadError or InvalidRequest."""
        if self._members is None:
            raise NotReady("The engine is not running.")
        await self._members.load_adapter(name, path)

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for it. Raises InvalidRequest."""
        if self._members is None:
            raise NotReady("The engine is not running.")
        await self._members.unload_adapter(name)

    async def close(self) -> None:
        """Cancel what runs, then end the replicas. Idempotent."""
        watch, self._watch = self._watch, None
        members, self._members = self._members, None
        requests, self._requests = self._requests, None
        if watch is not None:
            watch.cancel()
        if requests is not None:
            await requests.close()
        if members is not None:
            await members.close()
        if self._fleet is not None:
            await self._fleet.close()

    async def _gather(self, members: Members) -> None:
        """Wait for the first replica, and a while for the others."""
        gives_up_s: float | None = None
        while True:
            for greeting in await members.refresh():
                if greeting.failure is not None:
                    raise greeting.failure
                self._info = self._info or greeting.info
            count, wanted = len(members.healthy), self._settings.engine.instances
            if count >= wanted:
                return
            now = time.monotonic()
            if count:
                gives_up_s = gives_up_s or now + STRAGGLERS_S
            if gives_up_s is not None and now > gives_up_s:
                log.warning("only %d of %d replicas could be started so far", count, wanted)
                return
            await asyncio.sleep(FIRST_LOOK_S)

    async def _look_after(self, members: Members) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await members.refresh()
            except MindserveError as error:
                log.error("replicas cannot be reached: %s", error.message)
            except Exception:
                log.exception("replicas cannot be reached")


def _ray_fleet(settings: Settings, make: Callable[[Settings], Engine]) -> Fleet:
    """Raises ConfigError where Ray is not installed."""
    try:
        from mindserve.engine.replicas.cluster import RayFleet  # noqa: PLC0415 - most installations have no Ray
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError(
            "More than one engine instance (BackendConfig.modelInstanceNumber, --instances) needs Ray: "
            "pip install 'mindserve[ray]'",
            param="BackendConfig.modelInstanceNumber",
        ) from error
    return RayFleet(settings, make)
