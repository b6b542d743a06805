"""The side of the replica, as a server sees it."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from mindserve.engine.base import EngineStats, GenerateRequest, SamplingParams
from mindserve.engine.replicas import replica as replica_module
from mindserve.engine.replicas.replica import Replica
from mindserve.engine.replicas.wire import Parcel, ParcelCodec, Route, pack_request
from mindserve.engine.scripted import Script, ScriptedEngine
from mindserve.errors import EngineFailure, ModelLoadError
from mindserve.text.bytes_tokenizer import ByteTokenizer

CODEC = ByteTokenizer()
ENDLESS = pack_request(
    GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=10**6, ignore_eos=True))
)


async def _replica(engine: ScriptedEngine | None = None) -> tuple[Replica, ScriptedEngine]:
    engine = engine or ScriptedEngine(
        Script(step_interval_s=0.001, max_context_len=10**7), codec=CODEC, eos_token_id=258
    )
    replica = Replica(engine, name="name", node="node")
    await replica.start()
    return replica, engine


async def _next(parcels: Any) -> Parcel:
    return ParcelCodec().decode(await anext(parcels))


async def test_the_first_parcel_comes_at_once_and_tells_of_the_engine() -> None:
    replica, _ = await _replica()
    async with aclosing(replica.events(Route(), "server")) as parcels, asyncio.timeout(0.4):
        parcel = await _next(parcels)
    assert (parcel.steps, parcel.stats, parcel.is_healthy) == ([], EngineStats(), True)
    await replica.close()


async def test_all_requests_of_a_step_share_a_parcel() -> None:
    replica, _ = await _replica()
    async with aclosing(replica.events(Route(), "server")) as parcels:
        await _next(parcels)
        calls = [asyncio.create_task(replica.answer(Route(), "server", number, ENDLESS)) for number in range(8)]
        for _ in range(20):
            parcel = await _next(parcels)
        assert {number for number, events in parcel.steps if events} == set(range(8))
    await asyncio.gather(*calls)
    await replica.close()


async def test_requests_end_with_the_stream_of_their_server() -> None:
    replica, engine = await _replica()
    async with (
        aclosing(replica.events(Route(), "server")) as parcels,
        aclosing(replica.events(Route(), "other")) as others,
    ):
        await _next(parcels)
        await _next(others)
        calls = [asyncio.create_task(replica.answer(Route(), name, 1, ENDLESS)) for name in ("server", "other")]
        while not (await _next(others)).steps:
            pass
        await asyncio.sleep(0.05)
        assert engine.stats().running == 2
        await parcels.aclose()
        await calls[0]
        assert engine.stats().running == 1
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        assert engine.stats().running == 0
    await replica.close()


async def test_a_server_that_is_not_heard_of_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, engine = await _replica()
    await replica.hello("server")
    async with aclosing(replica.events(Route(), "server")) as parcels:
        await _next(parcels)
        call = asyncio.create_task(replica.answer(Route(), "server", 1, ENDLESS))
        while not (await _next(parcels)).steps:
            pass
        await replica.check_health()
        assert not call.done()
        monkeypatch.setattr(replica_module, "SERVER_TIMEOUT_S", -1.0)
        await replica.check_health()
        await call
        assert engine.stats().running == 0
        async for _ in parcels:
            pass
    await replica.close()


async def test_a_request_waits_for_its_servers_stream_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "LISTENER_TIMEOUT_S", 0.02)
    replica, engine = await _replica()
    with pytest.raises(TimeoutError):
        await replica.answer(Route(), "nobody", 1, ENDLESS)
    assert engine.stats().running == 0
    await replica.close()


class _Unloadable(ScriptedEngine):
    async def start(self) -> None:
        raise ModelLoadError("config.json is missing")


async def test_a_failed_load_is_told_and_makes_it_unhealthy() -> None:
    replica, _ = await _replica(_Unloadable(Script(), codec=CODEC, eos_token_id=258))
    greeting = await replica.hello("server")
    assert greeting.info is None
    assert isinstance(greeting.failure, ModelLoadError)
    with pytest.raises(EngineFailure):
        await replica.check_health()


async def test_health_is_the_engines() -> None:
    replica, engine = await _replica()
    await replica.check_health()
    await engine.close()
    with pytest.raises(EngineFailure):
        await replica.check_health()
