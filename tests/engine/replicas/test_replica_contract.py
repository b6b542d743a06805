"""Replicas keep the contract that every engine keeps, over a fleet in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine import contract
from tests.engine.replicas.local_fleet import LocalFleet

from mindserve.engine.base import Engine
from mindserve.engine.replicas import ReplicaEngine
from mindserve.engine.scripted import Script, ScriptedEngine
from mindserve.settings.values import EngineKind, EngineSettings, ModelSettings, Settings
from mindserve.text.bytes_tokenizer import ByteTokenizer

TRAITS = contract.Traits(tokens=range(97, 123), longest_prompt=511, samples=False)

SETTINGS = Settings(
    model=ModelSettings(name="scripted", path=Path("scripted")),
    engine=EngineSettings(kind=EngineKind.SCRIPTED, instances=2),
)


def _scripted() -> Engine:
    """Its steps take longer than none: otherwise a whole answer fits into the first parcel, and cancels come late."""
    return ScriptedEngine(Script(max_context_len=512, step_interval_s=0.001), codec=ByteTokenizer(), eos_token_id=258)


@asynccontextmanager
async def make_replicas() -> AsyncIterator[Engine]:
    yield ReplicaEngine(SETTINGS, make=lambda settings: _scripted(), fleet=LocalFleet(_scripted))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas() -> AsyncIterator[contract.Running]:
    async with contract.started(make_replicas, TRAITS) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", contract.checks_for(TRAITS), ids=contract.name_of)
async def test_replicas(replicas: contract.Running, check: contract.Check) -> None:
    await contract.run(check, replicas)


@pytest.mark.parametrize("check", contract.life_checks(), ids=contract.name_of)
async def test_life_of_replicas(check: contract.LifeCheck) -> None:
    await contract.run_life(check, make_replicas, TRAITS)
