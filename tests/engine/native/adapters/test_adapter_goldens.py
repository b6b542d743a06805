"""Adapters in the engine: the reference's tokens and log-probabilities, alone and many in one batch."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.base import GenerateRequest, SamplingParams, TokenEvent
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.settings.values import EngineSettings, ModelSettings, Precision, SchedulerSettings, Settings

GOLDENS = Path(__file__).parents[3] / "data" / "goldens"
ADAPTERS = ("lora-r4", "lora-r8")
TOLERANCE = 2e-3


@asynccontextmanager
async def running(
    model: Path, prepared: Path, scheduler: SchedulerSettings | None = None
) -> AsyncIterator[NativeEngine]:
    settings = Settings(
        model=ModelSettings(name="base", path=model, max_seq_len=512, max_input_len=500),
        scheduler=scheduler or SchedulerSettings(),
        engine=EngineSettings(precision=Precision.F32, cache_bytes=1 << 22, prepared_dir=prepared, threads=1),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def facts_of(family: str) -> dict[str, Any]:
    return json.loads((GOLDENS / family / "golden.json").read_text())


def expectations(facts: dict[str, Any]) -> list[tuple[str | None, list[int], dict[str, Any]]]:
    """Adapter (None: the model alone), prompt, greedy answer; the three take turns."""
    ids = {prompt["name"]: prompt["ids"] for prompt in facts["prompts"]}
    cases = [(None, prompt["ids"], prompt["greedy"]) for prompt in facts["prompts"]]
    for name in ADAPTERS:
        lora = facts["lora"][name]
        cases += [(name, ids[p], greedy) for p, greedy in zip(lora["prompts"], lora["greedy"], strict=True)]
    return sorted(cases, key=lambda case: len(case[1]))


async def answer(engine: NativeEngine, adapter: str | None, ids: list[int], **sampling: Any) -> list[TokenEvent]:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 5} | sampling)
    request = GenerateRequest(request_id="r", prompt_token_ids=ids, sampling=params, adapter=adapter)
    return [event async for events in engine.submit(request) for event in events]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def check(events: list[TokenEvent], greedy: dict[str, Any]) -> None:
    assert tokens(events) == greedy["ids"]
    logprobs = [entry.logprob for event in events for entry in event.logprobs or ()]
    assert logprobs == pytest.approx(greedy["logprobs"], abs=TOLERANCE)


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(SchedulerSettings(), id="wide"),
        pytest.param(SchedulerSettings(step_token_budget=16, max_batch_size=5, max_ngram_draft=4), id="narrow"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
async def test_a_mix_in_one_batch_meets_the_reference(
    family: str, scheduler: SchedulerSettings, tmp_path: Path
) -> None:
    async with running(GOLDENS / family / "model", tmp_path, scheduler) as engine:
        for name in ADAPTERS:
            await engine.load_adapter(name, GOLDENS / family / name)
        cases = expectations(facts_of(family))
        answers = await asyncio.gather(*[answer(engine, adapter, ids) for adapter, ids, _ in cases])
        assert {adapter for adapter, _, _ in cases} == {None, *ADAPTERS}
        for events, (_, _, greedy) in zip(answers, cases, strict=True):
            check(events, greedy)
