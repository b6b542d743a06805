"""A fleet in this process: real replicas with engines of their own, and what can happen to them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from mindserve.engine.base import Engine
from mindserve.engine.replicas.affinity import Affinity
from mindserve.engine.replicas.fleet import lost
from mindserve.engine.replicas.replica import Replica
from mindserve.engine.replicas.wire import Greeting, Route
from mindserve.errors import MindserveError


class LocalFleet:
    """Implements `Fleet`."""

    def __init__(self, make: Callable[[], Engine], *, count: int = 2) -> None:
        self._make = make
        self._count = count
        self._made = 0
        self._affinity = Affinity()
        self._calls: dict[asyncio.Task[None], str] = {}
        self.replicas: dict[str, Replica] = {}
        self.engines: dict[str, Engine] = {}
        self.routes: list[Route] = []
        self.is_closed = False

    async def start(self) -> None:
        for _ in range(self._count):
            await self.add()

    async def add(self) -> str:
        """One more replica; its name."""
        name = f"replica-{self._made}"
        self._made += 1
        engine = self.engines[name] = self._make()
        replica = Replica(engine, name=name, node=f"node of {name}")
        await replica.start()
        self.replicas[name] = replica
        return name

    async def kill(self, name: str) -> None:
        """As a node dies: its calls fail, and its stream breaks."""
        replica = self.replicas.pop(name)
        for call, where in list(self._calls.items()):
            if where == name:
                call.cancel("lost")
        await replica.close()

    async def greet(self, server: str) -> list[Greeting]:
        return [await replica.hello(server) for replica in self.replicas.values()]

    async def events(self, replica: str, server: str) -> AsyncGenerator[bytes]:
        async for parcel in self._replica(replica).events(Route(to=replica), server):
            yield parcel

    async def answer(self, route: Route, server: str, number: int, request: bytes) -> None:
        self.routes.append(route)
        where = list(self._calls.values())
        loads = {name: where.count(name) for name in route.among if name in self.replicas}
        name = self._affinity.rank(route.keys, loads)[0]
        self._affinity.record(route.keys, name)
        call = asyncio.create_task(self.replicas[name].answer(route, server, number, request))
        self._calls[call] = name
        try:
            await call
        except asyncio.CancelledError:
            if name not in self.replicas:
                raise lost() from None
            raise
        finally:
            del self._calls[call]

    async def cancel(self, replica: str, server: str, number: int, index: int) -> None:
        await self._replica(replica).cancel(Route(to=replica), server, number, index)

    async def load_adapter(self, replica: str, name: str, path: Path) -> None:
        _raise(await self._replica(replica).load_adapter(Route(to=replica), name, path))

    async def unload_adapter(self, replica: str, name: str) -> None:
        _raise(await self._replica(replica).unload_adapter(Route(to=replica), name))

    async def close(self) -> None:
        self.is_closed = True
        for replica in self.replicas.values():
            await replica.close()
        self.replicas.clear()

    def _replica(self, name: str) -> Replica:
        if name not in self.replicas:
            raise lost()
        return self.replicas[name]


def _raise(failure: MindserveError | None) -> None:
    if failure is not None:
        raise failure
