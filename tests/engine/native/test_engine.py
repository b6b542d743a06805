"""The engine as the service sees it: streams on the event loop, the model on its own thread."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from fake_runner import FakeRunner, fake_info

from mindserve.engine.base import (
    Engine,
    FinishReason,
    GenerateRequest,
    MediaInput,
    MediaKind,
    ModelInfo,
    SamplingParams,
    TokenEvent,
    TokenStream,
)
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.scheduler import Scheduler
from mindserve.errors import InvalidRequest, ModelLoadError, NotReady, PromptTooLong
from mindserve.settings.values import ModelSettings, Settings

SETTINGS = Settings(model=ModelSettings(name="fake", path=Path("fake"), max_seq_len=1000, max_input_len=900))


def loader(runner: FakeRunner, **facts: int) -> Callable[[Settings], tuple[FakeRunner, ModelInfo]]:
    return lambda settings: (runner, fake_info(**facts))


@asynccontextmanager
async def running(runner: FakeRunner | None = None, **facts: int) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(SETTINGS, load=loader(runner or FakeRunner(), **facts))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def ask(prompt: list[int], *, n: int = 1, max_tokens: int = 6) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0 if n == 1 else 1.0, max_tokens=max_tokens)
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling, n=n)


async def read(stream: TokenStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


async def test_is_an_engine_and_answers() -> None:
    async with running() as native:
        engine: Engine = native
        events = await read(engine.submit(ask([1, 2, 3])))
        assert [len(event.token_ids) for event in events] == [1] * 6
        assert [event.finish_reason for event in events] == [None] * 5 + [FinishReason.LENGTH]
        assert engine.is_healthy
        assert engine.info.vocab_size == 200


async def test_many_streams_at_once() -> None:
    async with running() as engine:
        streams = [engine.submit(ask([i, 2, 3], n=2)) for i in range(20)]
        results = await asyncio.gather(*(read(stream) for stream in streams))
        for events in results:
            assert sorted(event.index for event in events if event.finish_reason) == [0, 1]
            assert sum(len(event.token_ids) for event in events) == 12


async def test_cancel_ends_each_sequence_once() -> None:
    async with running() as engine:
        stream = engine.submit(ask([1, 2, 3], n=2, max_tokens=500))
        seen: list[TokenEvent] = []
        async for events in stream:
            seen += events
            stream.cancel()
        ends = [(event.index, event.finish_reason) for event in seen if event.finish_reason]
        assert ends == [(0, FinishReason.CANCELLED), (1, FinishReason.CANCELLED)]
        stream.cancel()
        await read(engine.submit(ask([1])))
        stats = engine.stats()
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


async def test_close_ends_what_runs_and_refuses_the_rest() -> None:
    runner = FakeRunner()
    async with running(runner) as engine:
        streams = [engine.submit(ask([i], max_tokens=900)) for i in range(3)]
    for stream in streams:
        events = await read(stream)
        assert events[-1].finish_reason is FinishReason.CANCELLED
    assert runner.is_closed
    with pytest.raises(NotReady):
        engine.submit(ask([1]))
    assert not engine.is_healthy


async def test_not_ready_before_start() -> None:
    engine = NativeEngine(SETTINGS, load=loader(FakeRunner()))
    with pytest.raises(NotReady):
        engine.submit(ask([1]))
    with pytest.raises(NotReady):
        _ = engine.info
    await engine.close()


async def test_load_error_is_told() -> None:
    def fail(settings: Settings) -> tuple[FakeRunner, ModelInfo]:
        raise OSError("no such file")

    engine = NativeEngine(SETTINGS, load=fail)
    with pytest.raises(ModelLoadError, match="no such file"):
        await engine.start()
    assert not engine.is_healthy
    with pytest.raises(NotReady):
        engine.submit(ask([1]))
    await engine.close()


async def test_prompt_limits() -> None:
    async with running() as engine:
        with pytest.raises(PromptTooLong, match=r"cannot be greater than 900,the input ids length is 901$"):
            engine.submit(ask([1] * 901))
    async with running(max_context_len=500) as engine:
        with pytest.raises(PromptTooLong, match=r"greater than maxPositionEmbeddings 500,the input ids length is 501$"):
            engine.submit(ask([1] * 501))
        with pytest.raises(PromptTooLong, match="cannot be greater than 499,"):
            engine.submit(ask([1] * 500))
        events = await read(engine.submit(ask([1] * 499)))
        assert [event.finish_reason for event in events] == [FinishReason.LENGTH]
    async with running(FakeRunner(block_count=4)) as engine:
        with pytest.raises(PromptTooLong, match="cannot be greater than 127,"):
            engine.submit(ask([1] * 128))
        assert len(await read(engine.submit(ask([1] * 120, max_tokens=100)))) == 8


async def test_unknown_things_are_refused() -> None:
    picture = MediaInput(kind=MediaKind.IMAGE, offset=0, length=1, features={}, digest=b"x")
    async with running() as engine:
        for wrong in (
            GenerateRequest(request_id="r", prompt_token_ids=[1], adapter="poet"),
            GenerateRequest(request_id="r", prompt_token_ids=[1], media=(picture,)),
            ask([200]),
            ask([-1]),
            ask([]),
        ):
            with pytest.raises(InvalidRequest):
                engine.submit(wrong)
        with pytest.raises(InvalidRequest):
            await engine.load_adapter("poet", Path("poet"))


async def test_health_follows_the_steps() -> None:
    async with running(FakeRunner(fails_at={1, 2, 3})) as engine:
        for healthy in (True, True, False):
            events = await read(engine.submit(ask([1, 2])))
            assert [event.finish_reason for event in events] == [FinishReason.ERROR]
            assert engine.is_healthy == healthy
        events = await read(engine.submit(ask([1, 2])))
        assert events[-1].finish_reason is FinishReason.LENGTH
        assert engine.is_healthy


class _BrokenMask:
    """Fails in one of its methods."""

    def __init__(self, broken: str) -> None:
        self._broken = broken

    def allowed(self) -> np.ndarray | None:
        return self._fail_in("allowed")

    def advance(self, token_id: int) -> None:
        self._fail_in("advance")

    def fork(self) -> "_BrokenMask":
        self._fail_in("fork")
        return self

    def _fail_in(self, method: str) -> None:
        if method == self._broken:
            raise ValueError("broken")


@pytest.mark.parametrize(("method", "tokens"), [("allowed", 0), ("advance", 1), ("fork", 0)])
@pytest.mark.parametrize("is_search", [False, True])
async def test_a_mask_that_fails_ends_its_own_request(method: str, tokens: int, is_search: bool) -> None:
    async with running() as engine:
        mask = _BrokenMask(method)
        bad = engine.submit(
            GenerateRequest(request_id="r", prompt_token_ids=[1, 2], mask=mask, n=2, use_beam_search=is_search)
        )
        good = engine.submit(ask([1, 2, 3]))
        events = await read(bad)
        ends = [event for event in events if event.finish_reason]
        assert [(end.index, end.finish_reason) for end in ends] == [(0, FinishReason.ERROR), (1, FinishReason.ERROR)]
        assert all(end.error is not None for end in ends)
        assert sum(len(event.token_ids) for event in events) == (0 if is_search else 2 * tokens)
        assert (await read(good))[-1].finish_reason is FinishReason.LENGTH


async def test_when_the_thread_dies_everything_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        running_stream = engine.submit(ask([1, 2], n=2, max_tokens=500))
        monkeypatch.setattr(Scheduler, "schedule", lambda *args, **options: 1 / 0)
        ends = [event.finish_reason for event in await read(running_stream) if event.finish_reason]
        assert ends == [FinishReason.ERROR] * 2
        assert not engine.is_healthy
        with pytest.raises(NotReady):
            engine.submit(ask([1]))


async def test_close_while_loading() -> None:
    may_go_on = Event()

    def load(settings: Settings) -> tuple[FakeRunner, ModelInfo]:
        may_go_on.wait(10)
        return runner, fake_info()

    runner = FakeRunner()
    engine = NativeEngine(SETTINGS, load=load)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    starting.cancel()
    may_go_on.set()
    await engine.close()
    assert runner.is_closed
    with pytest.raises(asyncio.CancelledError):
        await starting
