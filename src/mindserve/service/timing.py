"""The per-token figures of a request: batch sizes, queue waits, prefill time and decode gaps."""

from mindserve.engine.base import StepInfo


class StepLog:
    """Collects what the steps of one request cost, one entry per token of its longest sequence.

    A step that lengthens the longest sequence by m tokens makes m entries: its batch size m times, its wait on the
    first of them and 0 on the others, and the gap since the entry before spread evenly (contract: usage, timing).
    """

    def __init__(self, started_s: float) -> None:
        self._last_s = started_s
        self.batch_sizes: list[int] = []
        self.queue_waits_us: list[int] = []
        self.decode_ms: list[int] = []
        self.prefill_ms = 0

    def record(self, step: StepInfo, *, longest: int) -> None:
        """Take in a step after which the longest sequence has `longest` tokens."""
        grown = longest - len(self.batch_sizes)
        if grown <= 0:
            return
        gap_ms = max(0.0, step.time_s - self._last_s) * 1000
        self._last_s = step.time_s
        if not self.batch_sizes:
            # All tokens of a first step are there at the time of the first token: no gaps between them.
            self.prefill_ms = round(gap_ms)
            self.decode_ms += [0] * (grown - 1)
        elif grown == 1:
            self.decode_ms.append(round(gap_ms))
        else:
            self.decode_ms += [round(gap_ms / grown)] * grown
        self.batch_sizes += (step.batch_size,) * grown
        self.queue_waits_us += (step.queue_wait_us, *(0,) * (grown - 1))
