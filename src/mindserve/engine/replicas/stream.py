"""The events of one request as they come from a replica."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.engine.queue import StepQueue
from mindserve.errors import MindserveError


class ReplicaStream(StepQueue):
    """The TokenStream of one request. Ends made here (cancel, loss) are final: what comes later is dropped."""

    def __init__(self, sequence_count: int, on_cancel: Callable[[int], None]) -> None:
        """`on_cancel` is told of each sequence that was cancelled."""
        super().__init__(sequence_count)
        self._on_cancel = on_cancel
        self._last: dict[int, TokenEvent | None] = dict.fromkeys(range(sequence_count))
        """Of the sequences that have not ended, the last event."""
        self._offset_s: float | None = None
        self._latest_s = 0.0

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        for live in list(self._last) if index is None else [index]:
            if live in self._last:
                self._end(live, FinishReason.CANCELLED)
                self._on_cancel(live)

    def fail(self, error: MindserveError) -> None:
        """End what has not ended with an error."""
        for index in list(self._last):
            self._end(index, FinishReason.ERROR, error)

    def deliver(self, events: list[TokenEvent], *, offset_s: float) -> None:
        """Hand over what a replica sent. The first `offset_s` translates its clock throughout: intervals stay true."""
        if self._offset_s is None:
            self._offset_s = offset_s
        wanted = [event for event in events if event.index in self._last]
        if not wanted:
            return
        for event in wanted:
            if event.finish_reason is None:
                self._last[event.index] = event
            else:
                del self._last[event.index]
        shifted = _shifted(wanted, self._offset_s)
        self._latest_s = shifted[-1].step.time_s
        self.put(shifted)

    def _end(self, index: int, reason: FinishReason, error: MindserveError | None = None) -> None:
        last = self._last.pop(index)
        # The two clocks are equal to within the network's latency only; times must not go backwards.
        step = StepInfo(batch_size=1, queue_wait_us=0, time_s=max(time.perf_counter(), self._latest_s))
        last = last or TokenEvent(index=index, token_ids=(), step=step)
        self.put([replace(last, token_ids=(), logprobs=None, step=step, finish_reason=reason, error=error)])


def _shifted(events: list[TokenEvent], offset_s: float) -> list[TokenEvent]:
    """With the steps' times in our clock; events of one step share it again."""
    shifted: list[TokenEvent] = []
    before = after = None
    for event in events:
        if after is None or event.step != before:
            before, after = event.step, replace(event.step, time_s=event.step.time_s + offset_s)
        shifted.append(replace(event, step=after))
    return shifted
