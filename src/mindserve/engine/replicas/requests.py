"""What runs on the replicas: every request's stream, the call that answers it, and which replica that is."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mindserve.engine.base import GenerateRequest
from mindserve.engine.replicas.fleet import Fleet, lost
from mindserve.engine.replicas.stream import ReplicaStream
from mindserve.engine.replicas.wire import Route, Steps, pack_request
from mindserve.errors import EngineFailure, MindserveError

log = logging.getLogger(__name__)

LAST_EVENTS_TIMEOUT_S = 5.0
"""How much later than the end of its call a request's last events may come."""


@dataclass(slots=True, kw_only=True)
class Running:
    """One request."""

    stream: ReplicaStream
    call: asyncio.Task[None] | None = None
    replica: str | None = None
    """Once one has it."""
    cancelled: list[int] = field(default_factory=list[int])
    """Sequences that were cancelled before that."""


class Requests:
    """Starts requests and brings events to their streams, each until its last event."""

    def __init__(self, fleet: Fleet, server: str) -> None:
        self._fleet = fleet
        self._server = server
        self._numbers = count()
        self._running: dict[int, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: GenerateRequest, route: Route) -> ReplicaStream:
        """Have a request answered by whichever replica the router chooses."""
        number = next(self._numbers)
        stream = ReplicaStream(request.n, lambda index: self._cancelled(number, index))
        running = self._running[number] = Running(stream=stream)
        running.call = self._spawn(self._answer(number, request, route))
        return stream

    def receive(self, replica: str, steps: Steps, *, offset_s: float) -> None:
        """What a replica sent; requests that have ended here are passed over."""
        for number, events in steps:
            running = self._running.get(number)
            if running is None:
                continue
            if events:
                running.stream.deliver(events, offset_s=offset_s)
                self._forget_complete(number)
            else:
                self._accepted(number, running, replica)

    def lose(self, replica: str) -> None:
        """The replica is gone: its requests fail."""
        for number, running in list(self._running.items()):
            if running.replica == replica:
                self._fail(number, lost())

    async def close(self) -> None:
        """Cancel everything."""
        for running in list(self._running.values()):
            running.stream.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, number: int, request: GenerateRequest, route: Route) -> None:
        try:
            data = await _packed(request)
            await self._fleet.answer(route, self._server, number, data)
        except MindserveError as error:
            self._fail(number, error)
        except Exception as error:
            log.exception("a request could not be sent to a replica")
            self._fail(number, EngineFailure(f"The request could not be sent to a replica: {type(error).__name__}"))
        else:
            if number in self._running:
                asyncio.get_running_loop().call_later(LAST_EVENTS_TIMEOUT_S, self._fail, number, lost())

    def _accepted(self, number: int, running: Running, replica: str) -> None:
        if running.replica is not None:
            # The call was lost on its way back, and tried again: what the first replica sent is no beginning of this.
            self._fail(number, lost())
            return
        running.replica = replica
        for index in running.cancelled:
            self._spawn(self._cancel(replica, number, index))

    def _cancelled(self, number: int, index: int) -> None:
        """The stream has ended a sequence: so must the replica, the whole request with the last one."""
        running = self._running[number]
        if running.stream.is_complete:
            del self._running[number]
            self._give_up(running)
        elif running.replica is None:
            running.cancelled.append(index)
        else:
            self._spawn(self._cancel(running.replica, number, index))

    def _give_up(self, running: Running) -> None:
        """End the call, unless that is what says so."""
        if running.call is not None and running.call is not asyncio.current_task():
            running.call.cancel()

    async def _cancel(self, replica: str, number: int, index: int) -> None:
        try:
            await self._fleet.cancel(replica, self._server, number, index)
        except MindserveError:
            log.debug("a replica that is gone was asked to cancel")

    def _fail(self, number: int, error: MindserveError) -> None:
        running = self._running.pop(number, None)
        if running is not None:
            running.stream.fail(error)
            self._give_up(running)

    def _forget_complete(self, number: int) -> None:
        if self._running[number].stream.is_complete:
            del self._running[number]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _packed(request: GenerateRequest) -> bytes:
    """Features of media are large; they are packed beside the event loop."""
    return await asyncio.to_thread(pack_request, request) if request.media else pack_request(request)
