"""tokenTimeout and e2eTimeout with one timer per request instead of one per token."""

import asyncio
from types import TracebackType

from mindserve.errors import GenerationTimeout


class Watchdog:
    """Interrupts the wait for a request's next step, which is the block of a `with`, once a deadline has passed.

    The timer looks at the deadlines only when it fires and then sleeps until the next of them, so a step costs a few
    assignments. It interrupts as `asyncio.timeout` does: by a cancellation of the waiting task that the block turns
    into the timeout's error. Between waits only the end-to-end deadline counts: then the client is slow, not the
    engine.
    """

    def __init__(self, *, token_timeout_s: float, e2e_deadline: float) -> None:
        """`e2e_deadline` is in the event loop's time."""
        self._loop = asyncio.get_running_loop()
        self._token_timeout_s = token_timeout_s
        self._e2e_deadline = e2e_deadline
        self._waiting_since = self._loop.time()
        self._waiter: asyncio.Task[object] | None = None
        self._cancellations = 0
        self._expired: GenerationTimeout | None = None
        self._timer = self._loop.call_at(self._deadline(), self._look)

    def __enter__(self) -> None:
        """Begin to wait. Raises GenerationTimeout."""
        if self._expired is not None:
            raise self._expired
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._waiter = task
        self._cancellations = task.cancelling()
        self._waiting_since = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises GenerationTimeout where the wait was interrupted."""
        waiter, self._waiter = self._waiter, None
        if kind is None or self._expired is None or waiter is None:
            return
        if waiter.uncancel() <= self._cancellations and issubclass(kind, asyncio.CancelledError):
            raise self._expired from None

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
