"""An engine that says what it is told to say, and dies in the ways in which engines die."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from mindserve.engine.base import EngineStats, FinishReason, GenerateRequest, ModelInfo, StepInfo, TokenEvent
from mindserve.engine.queue import StepQueue
from mindserve.errors import EngineFailure, InvalidRequest, MindserveError, ModelLoadError


class MortalStream(StepQueue):
    """Filled by the test."""

    def __init__(self, sequence_count: int) -> None:
        super().__init__(sequence_count)
        self.live = set(range(sequence_count))

    def say(self, token: int, *, index: int = 0, reason: FinishReason | None = None) -> None:
        self.put([_event(index, (token,), reason)])
        if reason is not None:
            self.live.discard(index)

    def end(self, reason: FinishReason, index: int | None = None, error: MindserveError | None = None) -> None:
        ended = [i for i in sorted(self.live) if index is None or i == index]
        self.live -= set(ended)
        if ended:
            self.put([_event(i, (), reason, error) for i in ended])

    def break_off(self) -> None:
        """End without a word."""
        self._unfinished = 0
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def cancel(self, index: int | None = None) -> None:
        self.end(FinishReason.CANCELLED, index)


def _event(
    index: int, tokens: tuple[int, ...], reason: FinishReason | None, error: MindserveError | None = None
) -> TokenEvent:
    step = StepInfo(batch_size=1, queue_wait_us=0, time_s=perf_counter())
    return TokenEvent(index=index, token_ids=tokens, step=step, finish_reason=reason, error=error)


@dataclass(eq=False)
class MortalEngine:
    """One life."""

    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    start_failure: Exception | None = None
    close_failure: Exception | None = None
    hangs_in_close: bool = False
    lost_adapters: frozenset[str] = frozenset()
    counted: EngineStats = field(default_factory=EngineStats)
    is_healthy: bool = False
    streams: list[MortalStream] = field(default_factory=list[MortalStream])
    adapters: dict[str, Path] = field(default_factory=dict[str, Path])
    closings: int = 0
    info: ModelInfo = field(default_factory=lambda: ModelInfo(model_type="mortal", vocab_size=9, max_context_len=99))

    async def start(self) -> None:
        await self.may_start.wait()
        if self.start_failure is not None:
            raise self.start_failure
        self.is_healthy = True

    def submit(self, request: GenerateRequest) -> MortalStream:
        if request.adapter is not None and request.adapter not in self.adapters:
            raise InvalidRequest(f"There is no adapter {request.adapter}.")
        self.streams.append(MortalStream(request.n))
        return self.streams[-1]

    def stats(self) -> EngineStats:
        return self.counted

    async def load_adapter(self, name: str, path: Path) -> None:
        if name in self.lost_adapters:
            raise ModelLoadError(f"{path} is gone")
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    async def close(self) -> None:
        self.closings += 1
        self.is_healthy = False
        if self.hangs_in_close:
            await asyncio.Event().wait()
        if self.close_failure is not None:
            raise self.close_failure
        for stream in self.streams:
            stream.cancel()


def with_errors(engine: MortalEngine) -> None:
    """As it should be: everybody hears of it."""
    engine.is_healthy = False
    for stream in engine.streams:
        stream.end(FinishReason.ERROR, error=EngineFailure("boom"))


def silently(engine: MortalEngine) -> None:
    """It can still be closed, and then ends its streams."""
    engine.is_healthy = False


def breaking_off(engine: MortalEngine) -> None:
    """Its streams end without an end."""
    engine.is_healthy = False
    for stream in engine.streams:
        stream.break_off()


def unclosable(engine: MortalEngine) -> None:
    """Its streams never end."""
    engine.is_healthy = False
    engine.close_failure = RuntimeError("no such process")


def hanging(engine: MortalEngine) -> None:
    """Neither do they here."""
    engine.is_healthy = False
    engine.hangs_in_close = True


DEATHS: tuple[Callable[[MortalEngine], None], ...] = (with_errors, silently, breaking_off, unclosable, hanging)
