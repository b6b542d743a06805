"""tokenTimeout and e2eTimeout with one timer per request instead of one per token."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from mindserve.errors import GenerationTimeout

T = TypeVar("T")


class Watchdog:
    """Interrupts the wait for a request's next step once a deadline has passed.

    The timer looks at the deadlines only when it fires and then sleeps until the next of them, so a step costs two
    assignments. It interrupts as `asyncio.timeout` does: by a cancellation of the waiting task that `wait` turns into
    the timeout's error. Between waits only the end-to-end deadline counts: then the client is slow, not the engine.
    """

    def __init__(self, *, token_timeout_s: float, e2e_deadline: float) -> None:
        """`e2e_deadline` is in the event loop's time."""
        self._loop = asyncio.get_running_loop()
        self._token_timeout_s = token_timeout_s
        self._e2e_deadline = e2e_deadline
        self._waiting_since = self._loop.time()
        self._waiter: asyncio.Task[object] | None = None
        self._expired: GenerationTimeout | None = None
        self._timer = self._loop.call_at(self._deadline(), self._look)

    async def wait(self, step: Awaitable[T]) -> T:
        """Await the next step. Raises GenerationTimeout."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting_since = self._loop.time()
        self._waiter = task
        cancellations = task.cancelling()
        try:
            if self._expired is not None:
                raise self._expired
            return await step
        except asyncio.CancelledError:
            if self._expired is None or task.uncancel() > cancellations:
                raise
            raise self._expired from None
        finally:
            self._waiter = None

    def cancel(self) -> None:
        """Stop watching. Idempotent."""
        self._timer.cancel()

    def _deadline(self) -> float:
        return min(self._waiting_since + self._token_timeout_s, self._e2e_deadline)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._e2e_deadline:
            self._interrupt("e2eTimeout")
        elif self._waiter is not None and now >= self._deadline():
            self._interrupt("tokenTimeout")
        else:
            again = self._deadline() if self._waiter is not None else now + self._token_timeout_s
            self._timer = self._loop.call_at(min(again, self._e2e_deadline), self._look)

    def _interrupt(self, key: str) -> None:
        self._expired = timeout_error(key)
        if self._waiter is not None:
            self._waiter.cancel()


def timeout_error(key: str) -> GenerationTimeout:
    """The error for the configuration key whose time is up."""
    return GenerationTimeout(f"Engine callback timeout: server {key}")
