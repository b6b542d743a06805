"""vLLM keeps the contract of engines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine import contract

from mindserve.engine.base import Engine
from mindserve.engine.vllm.engine import VllmEngine
from tests_vllm.engines import settings_for


def traits(tiny: Path | None) -> contract.Traits:
    """A mask that raises in vLLM's process ends its answer there; nobody can say why."""
    return contract.Traits(
        tokens=range(20, 450),
        longest_prompt=500,
        cached_prompt=200,
        adapter=None if tiny is None else tiny / "rank4",
        isolates_broken_masks=False,
        patience_s=120,
    )


CHECKS = contract.checks_for(traits(Path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tiny: Path) -> AsyncIterator[contract.Running]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Engine]:
        yield VllmEngine(settings_for(tiny / "model", enable_lora=True, max_loras=4, max_lora_rank=16))

    async with contract.started(make, traits(tiny)) as engine:
        yield engine


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", CHECKS, ids=contract.name_of)
async def test_vllm(running: contract.Running, check: contract.Check) -> None:
    await contract.run(check, running)


@pytest.mark.parametrize("check", contract.life_checks(), ids=contract.name_of)
async def test_life_of_vllm(tiny: Path, check: contract.LifeCheck) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Engine]:
        yield VllmEngine(settings_for(tiny / "model"))

    await contract.run_life(check, make, traits(tiny))
