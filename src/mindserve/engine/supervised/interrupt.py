"""Ending a task's wait from outside."""

import asyncio
from types import TracebackType


class Interrupt:
    """Ends the wait that is the block of a `with`; the task goes on behind the block.

    It works as `asyncio.timeout` does, by a cancellation that the block takes back, for a tenth of the cost, which
    counts where every token passes.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Task[object] | None = None
        self._cancellations = 0
        self._is_used = False

    def __enter__(self) -> None:
        """The running task begins to wait."""
        task = asyncio.current_task()
        assert task is not None
        self._waiter, self._cancellations = task, task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """True, which swallows the cancellation, where it was ours alone."""
        waiter, self._waiter = self._waiter, None
        if not self._is_used or waiter is None:
            return False
        self._is_used = False
        is_ours_alone = waiter.uncancel() <= self._cancellations
        return is_ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError)

    def use(self) -> None:
        """End the wait, if there is one."""
        if self._waiter is not None and not self._is_used:
            self._is_used = True
            self._waiter.cancel()
