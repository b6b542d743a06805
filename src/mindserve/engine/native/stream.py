"""The way of the events from the engine's thread to the request's reader on the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from mindserve.engine.base import TokenEvent


class Stream:
    """The TokenStream of one request. Lives on the event loop; the engine's thread never touches it."""

    def __init__(self, sequence_count: int, cancel: Callable[[int | None], None]) -> None:
        self._unfinished = sequence_count
        self._cancel = cancel
        self._events: deque[list[TokenEvent]] = deque()
        self._has_news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether every sequence has had its terminal event."""
        return self._unfinished == 0

    def put(self, events: list[TokenEvent]) -> None:
        """Hand over what a step brought."""
        self._unfinished -= sum(event.finish_reason is not None for event in events)
        self._events.append(events)
        self._has_news.set()

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        self._cancel(index)

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        """Ends after every sequence has had its terminal event."""
        while self._events or self._unfinished:
            while not self._events:
                self._has_news.clear()
                await self._has_news.wait()
            yield self._events.popleft()
