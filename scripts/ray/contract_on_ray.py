"""Replicas on a Ray cluster keep the contract that every engine keeps; scripts/test-ray runs it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine import contract

from mindserve.cli.engines import make_engine
from mindserve.engine.base import Engine
from mindserve.engine.replicas import ReplicaEngine
from mindserve.settings.values import (
    CachePrecision,
    EngineKind,
    EngineSettings,
    ModelSettings,
    Precision,
    Settings,
)

LLAMA = Path(__file__).parents[2] / "tests" / "data" / "goldens" / "llama"

SCRIPTED = contract.Traits(tokens=range(97, 123), longest_prompt=511, samples=False)
NATIVE = contract.Traits(
    tokens=range(20, 450), longest_prompt=500, cached_prompt=200, adapter=LLAMA / "lora-r4", long_answer=300
)


@asynccontextmanager
async def make_scripted(folder: Path) -> AsyncIterator[Engine]:
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": [{}], "max_context_len": 512, "step_interval_s": 0.005}))
    settings = Settings(
        model=ModelSettings(name="scripted", path=Path("scripted")),
        engine=EngineSettings(kind=EngineKind.SCRIPTED, instances=2, threads=1, script=script),
    )
    yield ReplicaEngine(settings, make=make_engine)


@asynccontextmanager
async def make_native(folder: Path) -> AsyncIterator[Engine]:
    settings = Settings(
        model=ModelSettings(name="llama", path=LLAMA / "model", max_seq_len=512, max_input_len=500),
        engine=EngineSettings(
            precision=Precision.F32,
            cache_precision=CachePrecision.F32,
            cache_bytes=1 << 22,
            prepared_dir=folder,
            threads=1,
        ),
    )
    yield ReplicaEngine(settings, make=make_engine)


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def scripted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[contract.Running]:
    folder = tmp_path_factory.mktemp("scripted")
    async with contract.started(lambda: make_scripted(folder), SCRIPTED) as running:
        yield running


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def native(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[contract.Running]:
    folder = tmp_path_factory.mktemp("native")
    async with contract.started(lambda: make_native(folder), NATIVE) as running:
        yield running


class TestTwoScriptedReplicas:
    @pytest.mark.asyncio(loop_scope="class")
    @pytest.mark.parametrize("check", contract.checks_for(SCRIPTED), ids=contract.name_of)
    async def test_contract(self, scripted: contract.Running, check: contract.Check) -> None:
        await contract.run(check, scripted)


class TestNativeReplica:
    @pytest.mark.asyncio(loop_scope="class")
    @pytest.mark.parametrize("check", contract.checks_for(NATIVE), ids=contract.name_of)
    async def test_contract(self, native: contract.Running, check: contract.Check) -> None:
        await contract.run(check, native)


class TestLife:
    @pytest.mark.parametrize("check", contract.life_checks(), ids=contract.name_of)
    async def test_contract(self, check: contract.LifeCheck, tmp_path: Path) -> None:
        await contract.run_life(check, lambda: make_scripted(tmp_path), SCRIPTED)
