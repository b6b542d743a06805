"""Models and engines. Starting vLLM takes half a minute, so an engine serves all tests of a module."""

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mindserve.engine.base import Engine
from tests_vllm.engines import settings_for, started
from tests_vllm.tiny import Reference, make_adapter, make_model

os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # needs a C++ compiler, and takes longer than it saves here

MARGIN = 0.02
"""Between the best two logits of a prompt's every step: far beyond the errors of float32."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `model`, `rank4` and `rank8`."""
    directory = tmp_path_factory.mktemp("tiny")
    make_model(directory / "model")
    make_adapter(directory / "rank4", rank=4, seed=1)
    make_adapter(directory / "rank8", rank=8, seed=2)
    return directory


@pytest.fixture(scope="session")
def reference(tiny: Path) -> Reference:
    return Reference(tiny / "model")


@pytest.fixture(scope="session")
def prompts(reference: Reference) -> list[list[int]]:
    """Whose greedy answers hang on no small difference."""
    found: list[list[int]] = []
    for salt in range(300):
        prompt = random.Random(salt).choices(range(20, 450), k=5 + salt % 60)
        if reference.greedy(prompt, 24)[2] > MARGIN:
            found.append(prompt)
        if len(found) == 50:
            return found
    raise AssertionError("too few prompts")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny: Path) -> AsyncIterator[Engine]:
    """The tiny model with both of its adapters, and room for some 20 sequences of full length."""
    settings = settings_for(tiny / "model", adapters=(tiny / "rank4", tiny / "rank8"), cache_bytes=1 << 24)
    async with started(settings) as running:
        yield running
