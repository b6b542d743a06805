"""Engines die in every way, and the supervisor goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.engine.mortal import DEATHS, MortalEngine, MortalStream, silently, with_errors

from mindserve.engine.base import Engine, EngineStats, FinishReason, GenerateRequest, TokenEvent, TokenStream
from mindserve.engine.supervised import Patience, SupervisedEngine
from mindserve.errors import EngineFailure, InvalidRequest, ModelLoadError, NotReady

PATIENCE = Patience(poll_s=0.005, shortest_delay_s=0.001, longest_delay_s=0.004, close_s=0.05)


@dataclass
class World:
    """A supervisor and the engines that it has made."""

    prepare: Callable[[int, MortalEngine], None]
    made: list[MortalEngine] = field(default_factory=list[MortalEngine])

    def make(self) -> Engine:
        engine = MortalEngine()
        self.made.append(engine)
        self.prepare(len(self.made) - 1, engine)
        return engine

    async def has_made(self, count: int) -> MortalEngine:
        await eventually(lambda: len(self.made) >= count)
        return self.made[count - 1]


def _first_starts(number: int, engine: MortalEngine) -> None:
    """The others start when the test says so."""
    if number == 0:
        engine.may_start.set()


def _all_start(number: int, engine: MortalEngine) -> None:
    engine.may_start.set()


@asynccontextmanager
async def supervised(
    prepare: Callable[[int, MortalEngine], None] = _first_starts, patience: Patience = PATIENCE
) -> AsyncIterator[tuple[SupervisedEngine, World]]:
    world = World(prepare)
    engine = SupervisedEngine(world.make, patience=patience)
    await engine.start()
    try:
        yield engine, world
    finally:
        await engine.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - the world has no events
            await asyncio.sleep(0.001)


def ask(n: int = 1, adapter: str | None = None) -> GenerateRequest:
    return GenerateRequest(request_id="r", prompt_token_ids=[1], n=n, adapter=adapter)


async def read(stream: TokenStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


def ends(events: list[TokenEvent]) -> dict[int, FinishReason]:
    """Each sequence's end; a second one is an error."""
    reasons: dict[int, FinishReason] = {}
    for event in events:
        assert event.index not in reasons
        if event.finish_reason is not None:
            reasons[event.index] = event.finish_reason
    return reasons


def _finish(stream: MortalStream) -> None:
    stream.say(5)
    stream.say(6, reason=FinishReason.LENGTH)


@pytest.mark.parametrize("die", DEATHS, ids=lambda death: death.__name__)
async def test_callers_hear_of_the_death_and_new_ones_get_the_next_engine(die: Callable[[MortalEngine], None]) -> None:
    async with supervised() as (engine, world):
        running, waiting, unread = engine.submit(ask(n=2)), engine.submit(ask()), engine.submit(ask())
        first = world.made[0]
        first.streams[0].say(3, index=1, reason=FinishReason.STOP)
        first.streams[0].say(4)
        _finish(first.streams[2])
        readers = [asyncio.create_task(read(stream)) for stream in (running, waiting)]
        await asyncio.sleep(0)
        die(first)
        told = await asyncio.gather(*readers)
        assert ends(told[0]) == {0: FinishReason.ERROR, 1: FinishReason.STOP}
        assert [event.token_ids for event in told[0]] == [(3,), (4,), ()]
        assert ends(told[1]) == {0: FinishReason.ERROR}
        assert all(isinstance(events[-1].error, EngineFailure) for events in told)

        second = await world.has_made(2)
        assert not engine.is_healthy
        with pytest.raises(NotReady, match="is being started again"):
            engine.submit(ask())
        assert engine.info.model_type == "mortal"
        assert first.closings == 1
        assert [event.token_ids for event in await read(unread)] == [(5,), (6,)]

        second.may_start.set()
        await eventually(lambda: engine.is_healthy)
        stream = engine.submit(ask())
        _finish(second.streams[0])
        assert ends(await read(stream)) == {0: FinishReason.LENGTH}
        assert engine.stats().restarts == 1
        assert len(world.made) == 2


async def test_what_a_caller_cancels_is_cancelled() -> None:
    async with supervised() as (engine, _):
        stream = engine.submit(ask(n=2))
        stream.cancel(1)
        stream.cancel()
        stream.cancel()
        assert ends(await read(stream)) == {0: FinishReason.CANCELLED, 1: FinishReason.CANCELLED}
        assert engine.is_healthy


async def test_a_failure_of_one_request_is_no_death() -> None:
    async with supervised() as (engine, world):
        stream = engine.submit(ask())
        world.made[0].streams[0].end(FinishReason.ERROR, error=EngineFailure("only this one"))
        events = await read(stream)
        assert events[-1].error is not None
        assert events[-1].error.message == "only this one"
        await asyncio.sleep(3 * PATIENCE.poll_s)
        assert engine.is_healthy
        assert len(world.made) == 1


async def test_a_failed_stream_is_looked_at_at_once() -> None:
    async with supervised(_all_start, Patience(poll_s=3600, shortest_delay_s=0.001)) as (engine, world):
        stream = engine.submit(ask())
        with_errors(world.made[0])
        await read(stream)
        await world.has_made(2)
        await eventually(lambda: engine.is_healthy)
        silently(world.made[1])
        with pytest.raises(NotReady):
            engine.submit(ask())
        await world.has_made(3)


async def test_it_is_tried_forever_and_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    def prepare(number: int, engine: MortalEngine) -> None:
        engine.may_start.set()
        if 0 < number < 6:
            engine.start_failure = ModelLoadError("no memory") if number % 2 else ValueError("odd")

    caplog.set_level(logging.INFO, "mindserve")
    async with supervised(prepare) as (engine, world):
        silently(world.made[0])
        await eventually(lambda: engine.stats().restarts == 1)
        assert engine.is_healthy
        assert [one.closings for one in world.made] == [1] * 6 + [0]
        delays = [record.args for record in caplog.records if "is started again in" in record.message]
        assert delays == [(0.001,), (0.002,), (0.004,), (0.004,), (0.004,), (0.004,)]
        assert [record.message for record in caplog.records if "did not start" in record.message] == [
            f"The engine did not start: {why}" for why in ("no memory", "odd", "no memory", "odd", "no memory")
        ]


@pytest.mark.parametrize(("stable_s", "second_delay"), [(3600.0, 0.002), (0.0, 0.001)])
async def test_a_long_life_makes_the_delay_short_again(
    caplog: pytest.LogCaptureFixture, stable_s: float, second_delay: float
) -> None:
    caplog.set_level(logging.INFO, "mindserve")
    patience = Patience(poll_s=0.005, shortest_delay_s=0.001, stable_s=stable_s)
    async with supervised(_all_start, patience) as (engine, world):
        for number in (0, 1):
            silently(world.made[number])
            await eventually(lambda: engine.stats().restarts == number + 1)  # noqa: B023 - awaited here
        delays = [record.args for record in caplog.records if "is started again in" in record.message]
        assert delays == [(0.001,), (second_delay,)]


async def test_a_first_start_that_fails_is_an_error() -> None:
    def prepare(number: int, engine: MortalEngine) -> None:
        engine.may_start.set()
        engine.start_failure = ModelLoadError("no such file")

    world = World(prepare)
    engine = SupervisedEngine(world.make, patience=PATIENCE)
    with pytest.raises(ModelLoadError, match="no such file"):
        await engine.start()
    assert world.made[0].closings == 1
    assert not engine.is_healthy
    with pytest.raises(NotReady):
        engine.submit(ask())
    await engine.close()
    assert len(world.made) == 1


async def test_nothing_works_before_the_start() -> None:
    engine = SupervisedEngine(World(_all_start).make)
    for use in (lambda: engine.submit(ask()), lambda: engine.info):
        with pytest.raises(NotReady, match="not running"):
            use()
    assert engine.stats() == EngineStats()
    await engine.close()


async def test_adapters_come_back() -> None:
    def prepare(number: int, engine: MortalEngine) -> None:
        _first_starts(number, engine)
        engine.lost_adapters = frozenset({"lost"} if number else ())

    async with supervised(prepare) as (engine, world):
        for name in ("kept", "lost", "left", "late"):
            await engine.load_adapter(name, Path(name))
        await engine.unload_adapter("left")
        silently(world.made[0])
        second = await world.has_made(2)
        with pytest.raises(NotReady):
            await engine.load_adapter("new", Path("new"))
        await engine.unload_adapter("late")
        with pytest.raises(InvalidRequest, match="nobody"):
            await engine.unload_adapter("nobody")
        second.may_start.set()
        await eventually(lambda: engine.is_healthy)
        assert second.adapters == {"kept": Path("kept")}
        engine.submit(ask(adapter="kept"))
        with pytest.raises(InvalidRequest, match="lost"):
            engine.submit(ask(adapter="lost"))


async def test_counters_go_on() -> None:
    async with supervised() as (engine, world):
        world.made[0].counted = EngineStats(running=3, total_blocks=9, free_blocks=1, prefix_queries=10, prefix_hits=4)
        assert engine.stats() == world.made[0].counted
        silently(world.made[0])
        second = await world.has_made(2)
        assert engine.stats() == EngineStats(prefix_queries=10, prefix_hits=4)
        second.counted = EngineStats(running=1, total_blocks=9, prefix_queries=5, preemptions=2)
        second.may_start.set()
        await eventually(lambda: engine.is_healthy)
        expected = EngineStats(running=1, total_blocks=9, prefix_queries=15, prefix_hits=4, preemptions=2, restarts=1)
        assert engine.stats() == expected


async def test_close_ends_what_runs() -> None:
    async with supervised() as (engine, world):
        stream = engine.submit(ask(n=2))
        reader = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        await engine.close()
        assert ends(await reader) == {0: FinishReason.CANCELLED, 1: FinishReason.CANCELLED}
        assert not engine.is_healthy
        with pytest.raises(NotReady, match="stopped"):
            engine.submit(ask())
        await engine.close()
        assert world.made[0].closings == 1


async def test_close_between_two_engines_closes_the_one_that_is_starting() -> None:
    async with supervised() as (engine, world):
        silently(world.made[0])
        second = await world.has_made(2)
        await engine.close()
        assert second.closings == 1
        second.may_start.set()
        await asyncio.sleep(3 * PATIENCE.longest_delay_s)
        assert len(world.made) == 2
        assert not engine.is_healthy


async def test_close_while_a_dead_engine_hangs_ends_its_streams() -> None:
    async with supervised(patience=Patience(poll_s=0.005, close_s=3600)) as (engine, world):
        reader = asyncio.create_task(read(engine.submit(ask())))
        await asyncio.sleep(0)
        first = world.made[0]
        first.is_healthy, first.hangs_in_close = False, True
        await eventually(lambda: first.closings == 1)
        first.hangs_in_close = False
        await engine.close()
        assert ends(await reader) == {0: FinishReason.ERROR}
        assert first.closings == 2
        assert len(world.made) == 1


async def test_cancelling_a_reader_is_not_mistaken_for_a_death() -> None:
    async with supervised() as (engine, _):
        reader = asyncio.create_task(read(engine.submit(ask())))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert engine.is_healthy
