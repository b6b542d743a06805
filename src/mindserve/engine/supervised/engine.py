"""The supervisor: watches the engine that lives at present, and replaces it when it has died."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from mindserve.engine.base import Engine, EngineStats, GenerateRequest, ModelInfo
from mindserve.engine.checks import no_adapter
from mindserve.engine.counters import Counters
from mindserve.engine.supervised.stream import SupervisedStream
from mindserve.errors import EngineFailure, MindserveError, NotReady

logger = logging.getLogger(__name__)

RESTARTING = "The engine has failed and is being started again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a supervisor waits for what."""

    poll_s: float = 0.5
    """Between two looks at a running engine's health."""
    shortest_delay_s: float = 1.0
    """Before another engine is made; it doubles with every one that does not live long."""
    longest_delay_s: float = 60.0
    stable_s: float = 60.0
    """Who lived that long has lived long."""
    close_s: float = 30.0
    """For a dead engine to free what it holds."""


class SupervisedEngine:
    """Stands in for whichever engine lives at present. A first start that fails is an error; later ones are retried."""

    def __init__(self, make: Callable[[], Engine], *, patience: Patience | None = None) -> None:
        """`make` makes an engine that has not been started."""
        self._make = make
        self._patience = patience or Patience()
        self._engine: Engine | None = None
        """None before the start, between two engines, and after the end."""
        self._newest: Engine | None = None
        """The one that was made last, it may be starting; to be closed."""
        self._info: ModelInfo | None = None
        self._refusal = "The engine is not running."
        """Why there is no engine."""
        self._streams: WeakSet[SupervisedStream] = WeakSet()
        """Of the present engine."""
        self._adapters: dict[str, Path] = {}
        self._counters = Counters()
        self._delay_s = self._patience.shortest_delay_s
        self._alarm = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def info(self) -> ModelInfo:
        """Facts about the model, also between two engines. Raises NotReady before `start`."""
        if self._info is None:
            raise NotReady(self._refusal)
        return self._info

    @property
    def is_healthy(self) -> bool:
        """Whether there is an engine that can answer."""
        return self._engine is not None and self._engine.is_healthy

    async def start(self) -> None:
        """Start the first engine. Raises what it raises."""
        try:
            engine = await self._started()
        except Exception:
            await self._close_newest()
            raise
        self._engine, self._info = engine, engine.info
        self._watcher = asyncio.create_task(self._watch(), name="engine-supervisor")

    def submit(self, request: GenerateRequest) -> SupervisedStream:
        """Hand a request to the engine. Raises what it raises, and NotReady while there is none."""
        if self._engine is None:
            raise NotReady(self._refusal)
        if not self._engine.is_healthy:
            self._alarm.set()
            raise NotReady(RESTARTING)
        stream = SupervisedStream(self._engine.submit(request), request.n, on_failure=self._alarm.set)
        self._streams.add(stream)
        return stream

    def stats(self) -> EngineStats:
        """The present engine's figures; counters go on from those of the engines before it."""
        return self._counters.with_past(EngineStats() if self._engine is None else self._engine.stats())

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load it now, and into every engine to come. Raises what the engine raises, and NotReady."""
        if self._engine is None:
            raise NotReady(self._refusal)
        await self._engine.load_adapter(name, path)
        self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Take it away, between two engines too. Raises what the engine raises."""
        was_loaded = self._adapters.pop(name, None) is not None
        if self._engine is not None:
            await self._engine.unload_adapter(name)
        elif not was_loaded:
            raise no_adapter(name, param="lora_name")

    async def close(self) -> None:
        """Stop watching, close the engine. Idempotent."""
        self._refusal = "The engine has been stopped."
        self._engine = None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        newest, self._newest = self._newest, None
        try:
            if newest is not None:
                await newest.close()
        finally:
            _abandon(self._streams)

    async def _watch(self) -> None:
        lived_since = asyncio.get_running_loop().time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alarm.wait(), self._patience.poll_s)
            self._alarm.clear()
            if not self.is_healthy:
                now = asyncio.get_running_loop().time()
                await self._bury()
                self._engine = await self._successor(is_first_in_long=now - lived_since >= self._patience.stable_s)
                lived_since = asyncio.get_running_loop().time()

    async def _bury(self) -> None:
        """From here on there is no engine; everybody who waits for the dead one hears of it."""
        logger.error("The engine has failed.")
        self._refusal = RESTARTING
        dead, self._engine = self._engine, None
        streams, self._streams = self._streams, WeakSet[SupervisedStream]()
        for stream in streams:
            stream.fail(EngineFailure("The engine has failed. The request can be sent again."))
        try:
            if dead is not None:
                self._keep_figures(dead)
                await self._close_newest()
        finally:
            _abandon(streams)

    def _keep_figures(self, dead: Engine) -> None:
        try:
            self._counters.add(dead.stats())
        except Exception:
            logger.exception("The dead engine's figures are lost")

    async def _successor(self, *, is_first_in_long: bool) -> Engine:
        if is_first_in_long:
            self._delay_s = self._patience.shortest_delay_s
        while True:
            logger.info("The engine is started again in %g s.", self._delay_s)
            await asyncio.sleep(self._delay_s)
            self._delay_s = min(2 * self._delay_s, self._patience.longest_delay_s)
            try:
                engine = await self._started()
                await self._load_adapters(engine)
            except Exception as error:
                _log_failure("The engine did not start", error)
                await self._close_newest()
            else:
                self._counters.add_restart()
                logger.info("The engine runs again.")
                return engine

    async def _started(self) -> Engine:
        engine = self._newest = self._make()
        await engine.start()
        return engine

    async def _load_adapters(self, engine: Engine) -> None:
        """One that does not load any more is given up: the model can do without."""
        for name, path in list(self._adapters.items()):
            if name not in self._adapters:
                continue  # taken away while others were loaded
            try:
                await engine.load_adapter(name, path)
            except MindserveError as error:
                _log_failure(f"The adapter {name} did not load again", error)
                self._adapters.pop(name, None)
                continue
            if name not in self._adapters:
                await engine.unload_adapter(name)

    async def _close_newest(self) -> None:
        """Of something dead nothing is expected, but it may hold memory that the next one needs."""
        if self._newest is None:
            return
        try:
            await asyncio.wait_for(self._newest.close(), self._patience.close_s)
        except Exception as error:
            _log_failure("The dead engine could not be closed", error)
        self._newest = None


def _abandon(streams: Iterable[SupervisedStream]) -> None:
    for stream in streams:
        stream.abandon()


def _log_failure(what: str, error: Exception) -> None:
    """With its traceback, unless it says itself what is wrong."""
    is_plain = isinstance(error, MindserveError)
    logger.error("%s: %s", what, str(error) or type(error).__name__, exc_info=None if is_plain else error)
