"""The last stretch of an engine's events: to the request's reader, both on one event loop."""

import asyncio
from collections import deque

from mindserve.engine.base import TokenEvent


class StepQueue:
    """The reading half of a TokenStream: waits only when nothing has been put, and then for one bare future.

    Iteration ends after every sequence has had its terminal event.
    """

    def __init__(self, sequence_count: int) -> None:
        self._unfinished = sequence_count
        self._steps: deque[list[TokenEvent]] = deque()
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every sequence has had its terminal event."""
        return self._unfinished == 0

    def put(self, events: list[TokenEvent]) -> None:
        """Hand over what a step brought."""
        for event in events:
            if event.finish_reason is not None:
                self._unfinished -= 1
        self._steps.append(events)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> "StepQueue":
        return self

    async def __anext__(self) -> list[TokenEvent]:
        while not self._steps:
            if not self._unfinished:
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            await self._reader
        return self._steps.popleft()
