"""The engines of this process keep the contract."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine import contract

from mindserve.engine.base import Engine
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.engine.scripted import Script, ScriptedEngine
from mindserve.engine.supervised import SupervisedEngine
from mindserve.settings.values import CachePrecision, EngineSettings, ModelSettings, Precision, Settings
from mindserve.text.bytes_tokenizer import ByteTokenizer

LLAMA = Path(__file__).parents[1] / "data" / "goldens" / "llama"

SCRIPTED = contract.Traits(tokens=range(97, 123), longest_prompt=512, samples=False)
NATIVE = contract.Traits(
    tokens=range(20, 450), longest_prompt=500, cached_prompt=200, adapter=LLAMA / "lora-r4", long_answer=300
)


@asynccontextmanager
async def make_scripted() -> AsyncIterator[Engine]:
    yield ScriptedEngine(Script(max_context_len=512), codec=ByteTokenizer(), eos_token_id=258)


@asynccontextmanager
async def make_supervised() -> AsyncIterator[Engine]:
    async with make_scripted() as engine:
        yield SupervisedEngine(lambda: engine)


@asynccontextmanager
async def make_native() -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as prepared:
        settings = Settings(
            model=ModelSettings(name="llama", path=LLAMA / "model", max_seq_len=512, max_input_len=500),
            engine=EngineSettings(
                precision=Precision.F32,
                cache_precision=CachePrecision.F32,
                cache_bytes=1 << 22,
                prepared_dir=Path(prepared),
                threads=1,
            ),
        )
        yield NativeEngine(settings, load=load_runner)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted() -> AsyncIterator[contract.Running]:
    async with contract.started(make_scripted, SCRIPTED) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def supervised() -> AsyncIterator[contract.Running]:
    async with contract.started(make_supervised, SCRIPTED) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def native() -> AsyncIterator[contract.Running]:
    async with contract.started(make_native, NATIVE) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", contract.checks_for(SCRIPTED), ids=contract.name_of)
async def test_scripted(scripted: contract.Running, check: contract.Check) -> None:
    await contract.run(check, scripted)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", contract.checks_for(SCRIPTED), ids=contract.name_of)
async def test_supervised(supervised: contract.Running, check: contract.Check) -> None:
    await contract.run(check, supervised)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", contract.checks_for(NATIVE), ids=contract.name_of)
async def test_native(native: contract.Running, check: contract.Check) -> None:
    await contract.run(check, native)


@pytest.mark.parametrize("make", [make_scripted, make_supervised])
@pytest.mark.parametrize("check", contract.life_checks(), ids=contract.name_of)
async def test_life_of_scripted(check: contract.LifeCheck, make: contract.Factory) -> None:
    await contract.run_life(check, make, SCRIPTED)


@pytest.mark.parametrize("check", contract.life_checks(), ids=contract.name_of)
async def test_life_of_native(check: contract.LifeCheck) -> None:
    await contract.run_life(check, make_native, NATIVE)
