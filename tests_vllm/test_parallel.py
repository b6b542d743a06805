"""One engine over two processes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine.contract.masks import OnlyTokens

from mindserve.engine.base import Engine
from tests_vllm.engines import events_of, request, settings_for, started, tokens_of
from tests_vllm.tiny import Reference

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tiny: Path) -> AsyncIterator[Engine]:
    """Tensor parallel. Without the binding vLLM wants two NUMA nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"0|{max(os.sched_getaffinity(0))}")
        settings = settings_for(tiny / "model", adapters=(tiny / "rank4", tiny / "rank8"), tensor=2)
        async with started(settings) as running:
            yield running


async def test_two_ranks_answer_as_one(pair: Engine, reference: Reference, prompts: list[list[int]]) -> None:
    asked = prompts[:24]
    answers = await asyncio.gather(*[events_of(pair.submit(request(prompt))) for prompt in asked])
    for prompt, events in zip(asked, answers, strict=True):
        assert tokens_of(events) == reference.greedy(prompt, 24)[0]


async def test_both_ranks_obey_a_mask(pair: Engine, prompts: list[list[int]]) -> None:
    """Each draws for itself: if only one did, their caches would part."""
    allowed = frozenset(range(60, 80))
    mask = OnlyTokens(allowed)
    asked = [request(prompt, mask=mask, temperature=1.0, seed=4, n=2) for prompt in prompts[:6]]
    first, second = [await asyncio.gather(*[events_of(pair.submit(one)) for one in asked]) for _ in range(2)]
    for events, again in zip(first, second, strict=True):
        for index in range(2):
            assert set(tokens_of(events, index)) <= allowed
            assert tokens_of(events, index) == tokens_of(again, index)


async def test_adapters_are_shared_out(
    pair: Engine, reference: Reference, prompts: list[list[int]], tiny: Path
) -> None:
    merged = reference.with_adapter(tiny / "rank8")
    asked = [prompt for prompt in prompts if merged.greedy(prompt, 12)[2] > 0.05][:6]
    for prompt in asked:
        events = await events_of(pair.submit(request(prompt, adapter="rank8", max_tokens=12)))
        assert tokens_of(events) == merged.greedy(prompt, 12)[0]
