"""An engine on its node, and what servers ask of it. Ray Serve runs it; it knows nothing of Ray.

What servers call is `async` throughout: Serve runs other methods on threads.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from mindserve.engine.base import Engine, FinishReason, GenerateRequest, StepInfo, TokenEvent
from mindserve.engine.replicas.outbox import Outbox
from mindserve.engine.replicas.wire import Greeting, Parcel, ParcelCodec, Route, Steps, unpack_request
from mindserve.errors import EngineFailure, MindserveError

SERVER_TIMEOUT_S = 30.0
"""A server that has not greeted for so long is gone, and its requests end."""

LISTENER_TIMEOUT_S = 10.0
"""How long a request may wait for its server's stream to be opened."""


class Replica:
    """Answers requests of any number of servers, each of which has its own stream of events."""

    def __init__(self, engine: Engine, *, name: str, node: str) -> None:
        self._engine = engine
        self._name = name
        self._node = node
        self._failure: MindserveError | None = None
        self._codec = ParcelCodec()
        self._outboxes: dict[str, Outbox] = {}
        self._heard_s: dict[str, float] = {}
        """Per server, when it last greeted."""
        self._opened = asyncio.Condition()
        self._answered = 0

    async def start(self) -> None:
        """Load the model. A failure is kept for whoever greets, and makes the replica unhealthy."""
        try:
            await self._engine.start()
        except MindserveError as error:
            self._failure = error

    async def check_health(self) -> None:
        """Raises EngineFailure where the engine cannot answer. Lets go of servers that are gone."""
        for server, heard_s in list(self._heard_s.items()):
            if time.monotonic() - heard_s > SERVER_TIMEOUT_S:
                del self._heard_s[server]
                self._close_outbox(server)
        if self._failure is not None or not self._engine.is_healthy:
            raise EngineFailure("The engine of this replica cannot answer.")

    async def hello(self, server: str) -> Greeting:
        """Who this is. The server counts as alive for a while."""
        self._heard_s[server] = time.monotonic()
        return Greeting(
            replica=self._name,
            node=self._node,
            info=None if self._failure else self._engine.info,
            failure=self._failure,
            answered=self._answered,
        )

    async def events(self, route: Route, server: str) -> AsyncGenerator[bytes]:
        """All events for `server`, as parcels. A new stream replaces an older one, whose requests end with it."""
        self._close_outbox(server)
        outbox = Outbox()
        async with self._opened:
            self._outboxes[server] = outbox
            self._opened.notify_all()
        try:
            async for parcel in outbox.flow(self._pack):
                yield parcel
        finally:
            outbox.close()
            if self._outboxes.get(server) is outbox:
                del self._outboxes[server]

    async def answer(self, route: Route, server: str, number: int, request: bytes) -> None:
        """Answer a request with events in the server's stream. Cancelled, it ends the request."""
        outbox = await self._outbox(server)
        outbox.put(number, [])
        self._answered += 1
        unpacked = await asyncio.to_thread(unpack_request, request)
        try:
            stream = self._engine.submit(unpacked)
        except MindserveError as error:
            outbox.put(number, _refusal(unpacked, error))
            return
        outbox.streams[number] = stream
        try:
            async for events in stream:
                outbox.put(number, events)
        finally:
            del outbox.streams[number]
            stream.cancel()

    async def cancel(self, route: Route, server: str, number: int, index: int) -> None:
        """End one sequence."""
        outbox = self._outboxes.get(server)
        if outbox is not None and number in outbox.streams:
            outbox.streams[number].cancel(index)

    async def load_adapter(self, route: Route, name: str, path: Path) -> MindserveError | None:
        """Returns what went wrong."""
        try:
            await self._engine.load_adapter(name, path)
        except MindserveError as error:
            return error
        return None

    async def unload_adapter(self, route: Route, name: str) -> MindserveError | None:
        """Returns what went wrong."""
        try:
            await self._engine.unload_adapter(name)
        except MindserveError as error:
            return error
        return None

    async def close(self) -> None:
        """End everything."""
        for server in list(self._outboxes):
            self._close_outbox(server)
        await self._engine.close()

    async def _outbox(self, server: str) -> Outbox:
        async with self._opened, asyncio.timeout(LISTENER_TIMEOUT_S):
            await self._opened.wait_for(lambda: server in self._outboxes)
        return self._outboxes[server]

    def _close_outbox(self, server: str) -> None:
        outbox = self._outboxes.pop(server, None)
        if outbox is not None:
            outbox.close()

    def _pack(self, steps: Steps) -> bytes:
        parcel = Parcel(
            sent_s=time.perf_counter(),
            steps=steps,
            stats=self._engine.stats(),
            is_healthy=self._engine.is_healthy,
        )
        return self._codec.encode(parcel)


def _refusal(request: GenerateRequest, error: MindserveError) -> list[TokenEvent]:
    step = StepInfo(batch_size=1, queue_wait_us=0, time_s=time.perf_counter())
    return [
        TokenEvent(index=index, token_ids=(), step=step, finish_reason=FinishReason.ERROR, error=error)
        for index in range(request.n)
    ]
