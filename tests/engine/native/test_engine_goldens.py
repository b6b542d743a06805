"""The whole engine on small real models: tokens, log-probabilities and beams of the reference implementation."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.base import GenerateRequest, SamplingParams, TokenEvent, TokenStream
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.settings.values import (
    CachePrecision,
    EngineSettings,
    ModelSettings,
    Precision,
    SchedulerSettings,
    Settings,
)

GOLDENS = Path(__file__).parents[2] / "data" / "goldens"
TOLERANCE = 2e-3


async def read(stream: TokenStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


async def start(family: str, prepared: Path, scheduler: SchedulerSettings) -> NativeEngine:
    settings = Settings(
        model=ModelSettings(name=family, path=GOLDENS / family / "model", max_seq_len=512, max_input_len=500),
        scheduler=scheduler,
        engine=EngineSettings(
            precision=Precision.F32,
            cache_precision=CachePrecision.F32,
            cache_bytes=1 << 22,
            prepared_dir=prepared,
            threads=1,
        ),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    return engine


def greedy(ids: list[int], *, logprobs: int | None) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=logprobs)
    return GenerateRequest(request_id="r", prompt_token_ids=ids, sampling=sampling)


def beams(ids: list[int], end: int | None) -> GenerateRequest:
    stop = frozenset[int]() if end is None else frozenset({end})
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=stop)
    return GenerateRequest(request_id="r", prompt_token_ids=ids, sampling=sampling, n=3, use_beam_search=True)


async def check_greedy(engine: NativeEngine, facts: dict[str, Any]) -> None:
    """All at once, each with and without log-probabilities."""
    asked = [(p["greedy"], greedy(p["ids"], logprobs=k)) for p in facts["prompts"] for k in (None, 5)]
    answers = await asyncio.gather(*[read(engine.submit(request)) for _, request in asked])
    for (expected, request), events in zip(asked, answers, strict=True):
        assert [token for event in events for token in event.token_ids] == expected["ids"]
        if request.sampling.logprobs is not None:
            entries = [entry for event in events for entry in event.logprobs or ()]
            assert [entry.logprob for entry in entries] == pytest.approx(expected["logprobs"], abs=TOLERANCE)
            assert [entry.top[0][0] for entry in entries] == expected["ids"]


async def check_beams(engine: NativeEngine, facts: dict[str, Any]) -> None:
    ids = {prompt["name"]: prompt["ids"] for prompt in facts["prompts"]}
    asked = [
        (name, kind, case[kind])
        for name, case in facts.get("beam_search", {}).items()
        for kind in ("no_eos", "with_eos")
    ]
    requests = [beams(ids[name], case.get("eos_token_id")) for name, _, case in asked]
    answers = await asyncio.gather(*[read(engine.submit(request)) for request in requests])
    for (_, _, case), events in zip(asked, answers, strict=True):
        assert [list(event.token_ids) for event in events] == [one["ids"] for one in case["mean"]]
        sums = [event.cumulative_logprob for event in events]
        assert sums == pytest.approx([one["sum_logprob"] for one in case["mean"]], abs=TOLERANCE)


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(SchedulerSettings(), id="wide"),
        pytest.param(SchedulerSettings(step_token_budget=16, max_batch_size=5, max_ngram_draft=4), id="narrow"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "glm", "mistral", "gemma3", "phi3"])
async def test_engine_meets_the_reference(family: str, scheduler: SchedulerSettings, tmp_path: Path) -> None:
    facts = json.loads((GOLDENS / family / "golden.json").read_text())
    engine = await start(family, tmp_path, scheduler)
    try:
        await asyncio.gather(check_greedy(engine, facts), check_beams(engine, facts))
        stats = engine.stats()
        assert stats.prefix_hits > 0
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    finally:
        await engine.close()


async def test_seeded_sampling_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    facts = json.loads((GOLDENS / "llama" / "golden.json").read_text())
    engine = await start("llama", tmp_path, SchedulerSettings())
    sampling = SamplingParams(seed=7, top_k=50, top_p=0.9, max_tokens=20, ignore_eos=True)
    asked = [
        GenerateRequest(request_id="r", prompt_token_ids=prompt["ids"], sampling=sampling, n=2)
        for prompt in facts["prompts"]
    ]
    try:
        alone = [await read(engine.submit(request)) for request in asked]
        together = await asyncio.gather(*[read(engine.submit(request)) for request in asked])
        for one, other in zip(alone, together, strict=True):
            for index in (0, 1):
                tokens = [[t for e in events if e.index == index for t in e.token_ids] for events in (one, other)]
                assert tokens[0] == tokens[1]
                assert len(tokens[0]) == 20
    finally:
        await engine.close()
