"""A request's stream that ends even if the engine behind it cannot end it any more."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from msgspec.structs import replace

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent, TokenStream
from mindserve.engine.supervised.interrupt import Interrupt
from mindserve.errors import EngineFailure


class SupervisedStream:
    """Passes events on. Once the engine has failed, sequences that it breaks off have failed and were not cancelled."""

    def __init__(self, tokens: TokenStream, sequence_count: int, *, on_failure: Callable[[], None]) -> None:
        """`on_failure` is called when a sequence ends in an error."""
        self._tokens = tokens
        self._steps = aiter(tokens)
        self._live = set(range(sequence_count))
        self._on_failure = on_failure
        self._failure: EngineFailure | None = None
        self._is_abandoned = False
        self._interrupt = Interrupt()

    def __aiter__(self) -> "SupervisedStream":
        return self

    async def __anext__(self) -> list[TokenEvent]:
        while self._live:
            if self._is_abandoned:
                return await self._last_look()
            try:
                with self._interrupt:
                    return self._passed(await anext(self._steps))
            except StopAsyncIteration:
                return self._missing_ends()
        raise StopAsyncIteration

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        self._tokens.cancel(index)

    def fail(self, failure: EngineFailure) -> None:
        """The engine has died. It may still end its sequences."""
        self._failure = failure

    def abandon(self) -> None:
        """The engine is gone. What it has said is still read, and nothing more is waited for."""
        self._is_abandoned = True
        self._interrupt.use()

    async def _last_look(self) -> list[TokenEvent]:
        """Without waiting."""
        try:
            async with asyncio.timeout(0):
                return self._passed(await anext(self._steps))
        except (StopAsyncIteration, TimeoutError):
            return self._missing_ends()

    def _passed(self, events: list[TokenEvent]) -> list[TokenEvent]:
        for event in events:
            if event.finish_reason is not None:
                self._live.discard(event.index)
                if event.finish_reason is FinishReason.ERROR:
                    self._on_failure()
        return events if self._failure is None else [self._failed(event) for event in events]

    def _failed(self, event: TokenEvent) -> TokenEvent:
        if event.finish_reason is not FinishReason.CANCELLED:
            return event
        return replace(event, finish_reason=FinishReason.ERROR, error=self._failure)

    def _missing_ends(self) -> list[TokenEvent]:
        """What the engine owes."""
        live, self._live = self._live, set[int]()
        self._on_failure()
        reason = FinishReason.CANCELLED if self._failure is None and self._is_abandoned else FinishReason.ERROR
        error = self._failure or EngineFailure("The engine has lost the request.")
        step = StepInfo(batch_size=1, queue_wait_us=0, time_s=perf_counter())
        return [
            TokenEvent(
                index=index,
                token_ids=(),
                step=step,
                finish_reason=reason,
                error=error if reason is FinishReason.ERROR else None,
            )
            for index in sorted(live)
        ]
