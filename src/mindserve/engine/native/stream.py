"""The way of the events from the engine's thread to the request's reader on the event loop."""

from collections.abc import Callable

from mindserve.engine.queue import StepQueue


class Stream(StepQueue):
    """The TokenStream of one request. Lives on the event loop; the engine's thread never touches it."""

    def __init__(self, sequence_count: int, cancel: Callable[[int | None], None]) -> None:
        super().__init__(sequence_count)
        self._cancel = cancel

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        self._cancel(index)
