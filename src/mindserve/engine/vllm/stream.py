"""The stream of one request, and the steps by which all streams are fed."""

import asyncio
from collections.abc import Callable
from itertools import zip_longest
from time import perf_counter
from typing import cast

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.engine.queue import StepQueue
from mindserve.engine.vllm.sequence import Sequence, Token
from mindserve.errors import MindserveError

Posts = list[tuple[Sequence, list[Token]]]
"""What a step brought for one request."""
Row = tuple[tuple[Sequence, Token] | None, ...]
"""One token of each sequence that still has one."""


class Stream(StepQueue):
    """The TokenStream of one request. Every sequence gets its end from whoever knows of it first."""

    def __init__(self, sequences: list[Sequence], steps: "Steps") -> None:
        super().__init__(len(sequences))
        self.sequences = sequences
        self.last_step = StepInfo(batch_size=0, queue_wait_us=0, time_s=perf_counter())
        self.cached_tokens = 0
        """Of the prompt, when the first of the sequences was scheduled; the others find what that one has computed."""
        self._gathering = steps
        self._has_begun = False

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all; vLLM is told by the task that reads it."""
        self._end(index, FinishReason.CANCELLED)

    def fail(self, error: MindserveError, index: int | None = None) -> None:
        """The engine cannot go on with one sequence, or any."""
        self._end(index, FinishReason.ERROR, error)

    def step(self, posts: Posts, *, batch_size: int, time_s: float) -> None:
        """Hand out what a step brought. Several tokens of one sequence were several steps, whose figures are lost."""
        wait_us = 0 if self._has_begun else self._begin()
        self.last_step = StepInfo(batch_size=batch_size, queue_wait_us=wait_us, time_s=time_s)
        later = StepInfo(batch_size=batch_size, queue_wait_us=0, time_s=time_s)
        columns = [[(sequence, token) for token in tokens] for sequence, tokens in posts]
        for number, row in enumerate(zip_longest(*columns)):
            info = later if number else self.last_step
            self.put([self._event(*cell, info) for cell in cast("Row", row) if cell is not None])

    def _begin(self) -> int:
        """How long the request waited to be scheduled. vLLM tells it once: later waits count as 0."""
        started = [one for one in self.sequences if one.queue_wait_us is not None]
        self.cached_tokens = min((one.cached_tokens for one in started), default=0)
        self._has_begun = True
        return max((one.queue_wait_us or 0 for one in started), default=0)

    def _end(self, index: int | None, reason: FinishReason, error: MindserveError | None = None) -> None:
        going_on = [one for one in self.sequences if not one.is_over and index in (None, one.index)]
        if not going_on:
            return
        self._gathering.flush()
        info = StepInfo(batch_size=0, queue_wait_us=0, time_s=perf_counter())
        self.put([self._event(one, one.end(reason, error), info) for one in going_on])
        for task in {one.task for one in going_on}:
            is_needed = any(one.task is task and not one.is_over for one in self.sequences)
            if task is not None and not is_needed and task is not asyncio.current_task():
                task.cancel()

    def _event(self, sequence: Sequence, token: Token, info: StepInfo) -> TokenEvent:
        return TokenEvent(
            index=sequence.index,
            token_ids=() if token.token_id is None else (token.token_id,),
            step=info,
            logprobs=None if token.logprob is None else (token.logprob,),
            finish_reason=token.finish_reason,
            cached_tokens=self.cached_tokens,
            cumulative_logprob=token.cumulative_logprob,
            error=token.error,
        )


class Steps:
    """Gathers what the sequences bring until all of an engine's step is there, and hands it out with its figures.

    vLLM wakes the readers of all sequences of a step together, so they have all run when the event loop comes to what
    the first of them has scheduled.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._posts: dict[Stream, Posts] = {}

    def post(self, stream: Stream, sequence: Sequence, tokens: list[Token]) -> None:
        """Part of the present step; without tokens the request is only counted."""
        if not self._posts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._posts.setdefault(stream, []).append((sequence, tokens))

    def flush(self) -> None:
        """The step is complete."""
        posts, self._posts = self._posts, {}
        time_s = self._clock()
        for stream, of_stream in posts.items():
            stream.step(of_stream, batch_size=len(posts), time_s=time_s)
