"""Replicas over a fleet in this process: loss, return, adapters, routing, refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.replicas.local_fleet import LocalFleet

from mindserve.engine.base import Engine, EngineStats, FinishReason, GenerateRequest, SamplingParams, TokenEvent
from mindserve.engine.replicas import ReplicaEngine
from mindserve.engine.replicas import engine as engine_module
from mindserve.engine.scripted import Answer, Script, ScriptedEngine
from mindserve.errors import EngineFailure, InvalidRequest, ModelLoadError, NotReady, PromptTooLong
from mindserve.settings.values import EngineKind, EngineSettings, ModelSettings, Settings
from mindserve.text.bytes_tokenizer import ByteTokenizer

CODEC = ByteTokenizer()
LONG = 100_000


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "REFRESH_S", 0.01)
    monkeypatch.setattr(engine_module, "FIRST_LOOK_S", 0.01)


def _settings(count: int) -> Settings:
    return Settings(
        model=ModelSettings(name="scripted", path=Path("scripted"), max_seq_len=10**6, max_input_len=4096),
        engine=EngineSettings(kind=EngineKind.SCRIPTED, instances=count),
    )


@asynccontextmanager
async def _replicas(*answers: Answer, count: int = 2) -> AsyncIterator[tuple[ReplicaEngine, LocalFleet]]:
    script = Script(answers=answers or (Answer(text="abc"),), max_context_len=10**6, step_interval_s=0.001)

    def make() -> Engine:
        return ScriptedEngine(script, codec=CODEC, eos_token_id=258)

    fleet = LocalFleet(make, count=count)
    engine = ReplicaEngine(_settings(count), make=lambda settings: make(), fleet=fleet)
    await engine.start()
    try:
        yield engine, fleet
    finally:
        await engine.close()
        assert fleet.is_closed


def _request(prompt: str = "hi", *, n: int = 1, adapter: str | None = None, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt_token_ids=CODEC.encode(prompt),
        sampling=SamplingParams(**sampling),
        n=n,
        adapter=adapter,
    )


async def _events(engine: ReplicaEngine, request: GenerateRequest) -> list[TokenEvent]:
    return [event async for events in engine.submit(request) for event in events]


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - conditions of other tasks
            await asyncio.sleep(0.01)


def _running(engine: Engine) -> int:
    return engine.stats().running


async def test_many_requests_are_spread_over_all_replicas() -> None:
    async with _replicas() as (engine, fleet):
        answers = await asyncio.gather(*[_events(engine, _request(f"prompt {i}")) for i in range(64)])
        for events in answers:
            assert [token for event in events for token in event.token_ids] == [97, 98, 99, 258]
            assert events[-1].finish_reason is FinishReason.STOP
        greetings = await fleet.greet("another")
    assert sum(greeting.answered for greeting in greetings) == 64
    assert all(greeting.answered >= 16 for greeting in greetings)


async def test_equal_beginnings_go_to_the_same_replica() -> None:
    async with _replicas() as (engine, fleet):
        for i in range(6):
            for name in ("first", "second"):
                await _events(engine, _request(name * 30 + str(i)))
        assert sorted(greeting.answered for greeting in await fleet.greet("another")) in ([6, 6], [0, 12])
        assert len({route.keys[0] for route in fleet.routes}) == 2


async def test_a_lost_replica_fails_its_own_requests_and_no_others() -> None:
    endless = {"max_tokens": LONG, "ignore_eos": True}
    async with _replicas() as (engine, fleet):
        tasks = [asyncio.create_task(_events(engine, _request(str(i), **endless))) for i in range(8)]
        await _until(lambda: all(_running(one) == 4 for one in fleet.engines.values()))
        gone, stays = fleet.replicas
        await fleet.kill(gone)
        await _until(lambda: sum(task.done() for task in tasks) == 4)
        for task in tasks:
            if task.done():
                *_, end = task.result()
                assert end.finish_reason is FinishReason.ERROR
                assert isinstance(end.error, EngineFailure)
                assert "lost" in end.error.message
        assert engine.is_healthy
        assert _running(fleet.engines[stays]) == 4
        assert (await _events(engine, _request()))[-1].finish_reason is FinishReason.STOP
        assert sum(not task.done() for task in tasks) == 4


async def test_a_replica_that_comes_back_takes_part_again() -> None:
    async with _replicas() as (engine, fleet):
        for name in list(fleet.replicas):
            await fleet.kill(name)
        await _until(lambda: not engine.is_healthy)
        with pytest.raises(NotReady):
            engine.submit(_request())
        name = await fleet.add()
        await _until(lambda: engine.is_healthy)
        assert (await _events(engine, _request()))[-1].finish_reason is FinishReason.STOP
        assert [greeting.replica for greeting in await fleet.greet("another")] == [name]


async def test_cancelling_frees_the_replica() -> None:
    async with _replicas(count=1) as (engine, fleet):
        (inner,) = fleet.engines.values()
        stream = engine.submit(_request(n=2, max_tokens=LONG, ignore_eos=True))
        await anext(aiter(stream))
        assert _running(inner) == 2
        stream.cancel(0)
        await _until(lambda: _running(inner) == 1)
        stream.cancel()
        await _until(lambda: _running(inner) == 0)
        unread = engine.submit(_request(max_tokens=LONG, ignore_eos=True))
        unread.cancel()
        assert [event.finish_reason async for events in unread for event in events] == [FinishReason.CANCELLED]
        await _until(lambda: _running(inner) == 0)


async def test_a_sequence_cancelled_before_a_replica_has_the_request() -> None:
    async with _replicas(count=1) as (engine, fleet):
        (inner,) = fleet.engines.values()
        stream = engine.submit(_request(n=2, max_tokens=LONG, ignore_eos=True))
        stream.cancel(1)
        await _until(lambda: _running(inner) == 1)
        stream.cancel(0)
        await _until(lambda: _running(inner) == 0)
        assert {event.index async for events in stream for event in events if event.finish_reason} == {0, 1}


async def test_what_only_the_engine_can_refuse_ends_every_sequence() -> None:
    async with _replicas(Answer(match="no", refuse="not today"), Answer()) as (engine, _):
        events = await _events(engine, _request("no", n=2))
        assert [(event.index, event.finish_reason) for event in events] == [
            (0, FinishReason.ERROR),
            (1, FinishReason.ERROR),
        ]
        assert isinstance(events[0].error, NotReady)
        assert events[0].error.message == "not today"


async def test_what_can_be_known_here_is_refused_here() -> None:
    async with _replicas() as (engine, fleet):
        with pytest.raises(PromptTooLong, match="the input ids length is 5000"):
            engine.submit(_request("a" * 5000))
        with pytest.raises(InvalidRequest, match="Invalid Input Ids"):
            engine.submit(GenerateRequest(request_id="r", prompt_token_ids=[10**6]))
        with pytest.raises(InvalidRequest, match="There is no adapter nobody"):
            engine.submit(_request(adapter="nobody"))
        assert fleet.routes == []


async def test_adapters_reach_replicas_that_come_later() -> None:
    async with _replicas() as (engine, fleet):
        await engine.load_adapter("poet", Path("poet"))
        for name in list(fleet.replicas):
            await fleet.kill(name)
        await _until(lambda: not engine.is_healthy)
        await fleet.add()
        await _until(lambda: engine.is_healthy)
        assert (await _events(engine, _request(adapter="poet")))[-1].finish_reason is FinishReason.STOP
        await engine.unload_adapter("poet")
        with pytest.raises(InvalidRequest, match="poet"):
            engine.submit(_request(adapter="poet"))
        with pytest.raises(InvalidRequest, match="poet"):
            await engine.unload_adapter("poet")


class _Picky(ScriptedEngine):
    """Takes no adapters."""

    async def load_adapter(self, name: str, path: Path) -> None:
        raise ModelLoadError(f"{path} is no adapter")


async def test_an_adapter_that_one_replica_cannot_load_is_loaded_nowhere() -> None:
    async with _replicas() as (engine, fleet):
        first, second = fleet.engines.values()
        second.__class__ = _Picky
        with pytest.raises(ModelLoadError, match="poet is no adapter"):
            await engine.load_adapter("poet", Path("poet"))
        assert isinstance(first, ScriptedEngine)
        assert first._adapters == set()
        with pytest.raises(InvalidRequest, match="poet"):
            engine.submit(_request(adapter="poet"))


class _Unloadable(ScriptedEngine):
    async def start(self) -> None:
        raise ModelLoadError("config.json is missing")


async def test_a_model_that_cannot_be_loaded_is_an_error_of_the_start() -> None:
    def make() -> Engine:
        return _Unloadable(Script(), codec=CODEC, eos_token_id=258)

    fleet = LocalFleet(make)
    engine = ReplicaEngine(_settings(2), make=lambda settings: make(), fleet=fleet)
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        await engine.start()
    assert fleet.is_closed
    assert not engine.is_healthy


async def test_the_start_does_not_wait_for_stragglers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STRAGGLERS_S", 0.05)
    fleet = LocalFleet(lambda: ScriptedEngine(Script(), codec=CODEC, eos_token_id=258), count=1)
    engine = ReplicaEngine(_settings(2), make=lambda settings: next(iter(fleet.engines.values())), fleet=fleet)
    await engine.start()
    assert engine.is_healthy
    await engine.close()


async def test_figures_are_sums() -> None:
    async with _replicas() as (engine, fleet):
        streams = [engine.submit(_request(str(i), max_tokens=LONG, ignore_eos=True)) for i in range(6)]
        await _until(lambda: engine.stats().running == 6)
        assert [_running(one) for one in fleet.engines.values()] == [3, 3]
        for stream in streams:
            stream.cancel()
        await _until(lambda: engine.stats().running == 0)


class _Counting(ScriptedEngine):
    """Says that it has counted, and how much runs."""

    def stats(self) -> EngineStats:
        return replace(super().stats(), prefix_hits=5, total_blocks=7)


async def test_counters_keep_what_a_lost_replica_has_counted() -> None:
    async with _replicas() as (engine, fleet):
        for one in fleet.engines.values():
            one.__class__ = _Counting
        await _until(lambda: engine.stats().prefix_hits == 10)
        await fleet.kill(next(iter(fleet.engines)))
        await _until(lambda: engine.stats().total_blocks == 7)
        assert engine.stats().prefix_hits == 10


async def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    engine = ReplicaEngine(_settings(2), make=lambda settings: ScriptedEngine(Script(), codec=CODEC, eos_token_id=258))
    with pytest.raises(Exception, match=r"modelInstanceNumber.*pip install 'mindserve\[ray\]'"):
        await engine.start()
