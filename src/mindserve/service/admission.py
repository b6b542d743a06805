"""Who may run: at most `maxLinkNum` requests, twice as many wait in line, more are turned away."""

import asyncio

from mindserve.errors import NotReady, Overloaded

WAITING_PER_RUNNING = 2
"""The waiting line holds this many times `maxLinkNum` (decisions: 429 overload)."""


class Admission:
    """First come, first served. Every `enter` that returns needs one `leave`. Used on one event loop."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._max_waiting = WAITING_PER_RUNNING * max_running
        self._running = 0
        self._line: dict[str, asyncio.Future[None]] = {}
        """By request id, first come first."""
        self._is_closed = False

    @property
    def running(self) -> int:
        """Requests that have entered and not left."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    async def enter(self, request_id: str) -> None:
        """Wait for a place. Raises Overloaded when the line is full, NotReady after `close`."""
        if self._is_closed:
            raise NotReady("The service has been stopped")
        if self._running < self._max_running and not self._line:
            self._running += 1
            return
        if len(self._line) >= self._max_waiting:
            raise Overloaded("Model is overloaded")
        await self._wait_in_line(request_id)

    async def _wait_in_line(self, request_id: str) -> None:
        turn = self._line[request_id] = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # the place was handed over in the very moment of the cancellation
            else:
                self._line.pop(request_id, None)
            raise

    def let_in(self, request_id: str) -> None:
        """Give a request in line a place beyond the limit: it only wants to end."""
        turn = self._line.pop(request_id, None)
        if turn is not None and not turn.done():
            self._running += 1
            turn.set_result(None)

    def leave(self) -> None:
        """Give the place back; the first in line takes it over, unless there were more places than the limit allows."""
        while self._line and self._running <= self._max_running:
            turn = self._line.pop(next(iter(self._line)))
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1

    def close(self) -> None:
        """Turn away everyone in line and everyone to come."""
        self._is_closed = True
        line, self._line = self._line, {}
        for turn in line.values():
            if not turn.done():
                turn.set_exception(NotReady("The service has been stopped"))
