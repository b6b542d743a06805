"""Which replicas take part."""

import asyncio
import logging
from dataclasses import fields
from pathlib import Path

from mindserve.engine.base import EngineStats
from mindserve.engine.checks import no_adapter
from mindserve.engine.counters import Counters
from mindserve.engine.replicas.fleet import Fleet
from mindserve.engine.replicas.link import Link
from mindserve.engine.replicas.requests import Requests
from mindserve.engine.replicas.wire import Greeting
from mindserve.errors import MindserveError

log = logging.getLogger(__name__)


class Members:
    """Links every replica that greets, and lets go of those that are gone.

    A replica takes part when it has all adapters: one that was restarted gets them before its first request.
    """

    def __init__(self, fleet: Fleet, server: str, requests: Requests) -> None:
        self._fleet = fleet
        self._server = server
        self._requests = requests
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._counters = Counters()
        """Of the replicas that are gone."""
        self._adapters: dict[str, Path] = {}
        self._unfit: set[str] = set()
        """Replicas that could not load an adapter."""
        self._changes = asyncio.Lock()
        """Held while an adapter or a replica comes or goes."""
        self._is_closing = False

    @property
    def healthy(self) -> tuple[str, ...]:
        """Replicas that can answer."""
        return tuple(replica for replica, link in self._links.items() if link.is_healthy)

    @property
    def adapters(self) -> frozenset[str]:
        """Names of the adapters that requests may use."""
        return frozenset(self._adapters)

    def stats(self) -> EngineStats:
        """The sum over all replicas, as of their last parcels; counters with those of replicas that are gone."""
        totals = {
            field.name: sum(getattr(link.stats, field.name) for link in self._links.values())
            for field in fields(EngineStats)
        }
        return self._counters.with_past(EngineStats(**totals))

    async def refresh(self) -> list[Greeting]:
        """Greet all replicas; link new ones, give silent ones up."""
        for replica, link in self._links.items():
            if link.is_silent:
                log.warning("replica %s has fallen silent", replica)
                self._tasks[replica].cancel()
        greetings = await self._fleet.greet(self._server)
        for greeting in greetings:
            if greeting.failure is None and greeting.replica not in self._links:
                await self._join(greeting)
        self._unfit &= {greeting.replica for greeting in greetings}
        return greetings

    async def _join(self, greeting: Greeting) -> None:
        async with self._changes:
            try:
                for name, path in self._adapters.items():
                    await self._fleet.load_adapter(greeting.replica, name, path)
            except MindserveError as error:
                self._exclude(greeting, error)
                return
            self._link(greeting)

    def _exclude(self, greeting: Greeting, error: MindserveError) -> None:
        if greeting.replica not in self._unfit:
            log.error("replica %s on node %s does not take part: %s", greeting.replica, greeting.node, error.message)
        self._unfit.add(greeting.replica)

    def _link(self, greeting: Greeting) -> None:
        log.info("replica %s on node %s takes part", greeting.replica, greeting.node)
        link = self._links[greeting.replica] = Link(greeting.replica, self._requests)
        task = asyncio.get_running_loop().create_task(link.run(self._fleet.events(greeting.replica, self._server)))
        self._tasks[greeting.replica] = task
        task.add_done_callback(lambda ended: self._unlink(greeting.replica, ended))

    def _unlink(self, replica: str, ended: asyncio.Task[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if not self._is_closing:
            log.warning("replica %s is gone%s", replica, f": {type(error).__name__}" if error else "")
        self._counters.add(self._links.pop(replica).stats)
        del self._tasks[replica]
        self._requests.lose(replica)

    async def load_adapter(self, name: str, path: Path) -> None:
        """On all replicas or none. Raises ModelLoadError or InvalidRequest."""
        async with self._changes:
            loaded: list[str] = []
            try:
                for replica in list(self._links):
                    await self._fleet.load_adapter(replica, name, path)
                    loaded.append(replica)
            except MindserveError:
                await self._unload(name, loaded)
                raise
            self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Refuse it from now on. Raises InvalidRequest."""
        async with self._changes:
            if self._adapters.pop(name, None) is None:
                raise no_adapter(name, param="lora_name")
            await self._unload(name, list(self._links))

    async def _unload(self, name: str, replicas: list[str]) -> None:
        results = await asyncio.gather(
            *[self._fleet.unload_adapter(replica, name) for replica in replicas], return_exceptions=True
        )
        for replica, result in zip(replicas, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("adapter %s stays on replica %s: %s", name, replica, result)

    async def close(self) -> None:
        """Close all streams."""
        self._is_closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
