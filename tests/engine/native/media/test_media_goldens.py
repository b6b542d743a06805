"""Conversations with images, videos and sounds through the whole engine: the reference implementation's tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from references import GOLDENS, TOLERANCE, Case, case, cases

from mindserve.engine.base import GenerateRequest, MediaInput, MediaKind, SamplingParams, TokenEvent
from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.kernels import EXACT
from mindserve.engine.native.load import load_runner
from mindserve.engine.native.media import RequestMedia
from mindserve.engine.native.models.loader import load_model
from mindserve.engine.native.step import StepBatch
from mindserve.engine.native.towers import NativeTowers
from mindserve.errors import InvalidRequest
from mindserve.settings.values import (
    CachePrecision,
    EngineSettings,
    ModelSettings,
    Precision,
    SchedulerSettings,
    Settings,
)

FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen2-audio"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@asynccontextmanager
async def running(
    family: str, prepared: Path, scheduler: SchedulerSettings | None = None, *, cache_bytes: int = 1 << 22
) -> AsyncIterator[NativeEngine]:
    settings = Settings(
        model=ModelSettings(name=family, path=GOLDENS / family / "model", max_seq_len=512, max_input_len=500),
        scheduler=scheduler or SchedulerSettings(),
        engine=EngineSettings(
            precision=Precision.F32,
            cache_precision=CachePrecision.F32,
            cache_bytes=cache_bytes,
            prepared_dir=prepared,
            threads=1,
        ),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def answer(engine: NativeEngine, asked: Case, *, max_tokens: int = 24, **fields: Any) -> list[TokenEvent]:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=0)
    request = GenerateRequest(
        request_id="r", prompt_token_ids=asked.ids, media=asked.media, sampling=sampling, **fields
    )
    return [event async for events in engine.submit(request) for event in events]


def tokens(events: list[TokenEvent], index: int = 0) -> list[int]:
    return [token for event in events if event.index == index for token in event.token_ids]


def check(asked: Case, events: list[TokenEvent]) -> None:
    assert tokens(events) == asked.greedy, asked.name
    ours = [each.logprob for event in events for each in event.logprobs or ()]
    assert np.abs(np.array(ours) - asked.facts["greedy"]["logprobs"]).max() < TOLERANCE, asked.name


@pytest.mark.parametrize("family", FAMILIES)
async def test_greedy_answers_are_those_of_the_reference(family: str, prepared: Path) -> None:
    async with running(family, prepared) as engine:
        for asked in cases(family):
            check(asked, await answer(engine, asked))


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_mixed_batch_changes_nothing(family: str, prepared: Path) -> None:
    """Media and text together, in steps so small that images are torn apart."""
    async with running(family, prepared, SchedulerSettings(step_token_budget=13, prefix_cache=False)) as engine:
        asked = cases(family) * 2
        answers = await asyncio.gather(*(answer(engine, each) for each in asked))
        for each, events in zip(asked, answers, strict=True):
            check(each, events)


@pytest.mark.parametrize("family", FAMILIES)
async def test_preempted_requests_find_their_media_again(family: str, prepared: Path) -> None:
    """So few blocks that prompts are computed several times, long after the towers have read the media."""
    scheduler = SchedulerSettings(prefix_cache=False)
    cache_bytes = 16 * 32768 if family == "qwen2-audio" else 13 * 24576
    async with running(family, prepared, scheduler, cache_bytes=cache_bytes) as engine:
        asked = [each for each in cases(family) if each.media][:4]
        alone = [tokens(await answer(engine, each, max_tokens=90)) for each in asked]
        together = await asyncio.gather(*(answer(engine, each, max_tokens=90) for each in asked))
        assert engine.stats().preemptions > 0
        assert [tokens(events) for events in together] == alone


def logits(asked: Case, family: str) -> np.ndarray:
    """All rows, in one step of the bare model."""
    model = load_model(GOLDENS / family / "model", Precision.F32, progress=lambda _what, _share: None)
    assert model.towers is not None
    towers = NativeTowers(model.towers, EXACT, threads=1)
    media = RequestMedia(
        asked.media, [towers.encode(each) for each in asked.media], towers.positions(len(asked.ids), asked.media)
    )
    compiled = CompiledModel(ov.Core(), model.graph, EXACT, threads=1)
    compiled.allocate_cache(8)
    return compiled.infer(whole_prompt(asked, media)).data


def whole_prompt(asked: Case, media: RequestMedia) -> StepBatch:
    count = len(asked.ids)
    embeddings, is_embedded = np.zeros((count, 64), np.float32), np.zeros(count, np.bool_)
    for offset, rows in media.embeddings(0, count):
        embeddings[offset : offset + len(rows)] = rows
        is_embedded[offset : offset + len(rows)] = True
    blocks = -(-count // 32)
    return StepBatch(
        token_ids=np.array(asked.ids, np.int64),
        positions=media.positions(0, count),
        past_lens=np.zeros(1, np.int32),
        subsequence_begins=np.array([0, count], np.int32),
        block_indices=np.arange(blocks, dtype=np.int32),
        block_indices_begins=np.array([0, blocks], np.int32),
        max_context_len=count,
        sample_rows=np.arange(count, dtype=np.int64),
        inverse_temperature=np.ones(count, np.float32),
        embeddings=embeddings,
        is_embedded=is_embedded,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_position_meet_the_reference(family: str) -> None:
    for asked in cases(family):
        ours = logits(asked, family)
        assert np.abs(ours[-1] - asked.arrays["last_logits"]).max() < TOLERANCE, asked.name
        if "all_logits" in asked.arrays:
            assert np.abs(ours - asked.arrays["all_logits"]).max() < TOLERANCE, asked.name


def other_picture(asked: Case) -> Case:
    """The same words about a picture of the same size."""
    (image,) = asked.media
    features = {**image.features, "pixel_values": -np.asarray(image.features["pixel_values"], np.float32)}
    return replace(asked, media=(replace(image, features=features, digest=b"another picture"),))


async def test_another_picture_is_another_prefix(prepared: Path) -> None:
    asked = case("qwen2-vl", "image_exact")
    async with running("qwen2-vl", prepared) as engine:
        first = await answer(engine, asked)
        other = await answer(engine, other_picture(asked))
        again = await answer(engine, asked)
    assert [events[0].cached_tokens for events in (first, other, again)] == [0, 0, 32]
    assert tokens(first) == tokens(again) == asked.greedy
    assert tokens(other) != asked.greedy


@pytest.mark.parametrize("fields", [{"n": 3}, {"n": 3, "use_beam_search": True}])
async def test_sequences_of_a_request_share_its_media(prepared: Path, fields: dict[str, Any]) -> None:
    asked = case("qwen2.5-vl", "image_and_video")
    async with running("qwen2.5-vl", prepared) as engine:
        events = await answer(engine, asked, **fields)
    sequences = [tokens(events, index) for index in range(3)]
    assert all(len(each) == 24 for each in sequences)
    if "use_beam_search" in fields:
        assert len({tuple(each) for each in sequences}) == 3
    else:
        assert all(each == asked.greedy for each in sequences)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("qwen2-vl", MediaKind.AUDIO), ("qwen2-audio", MediaKind.IMAGE), ("qwen2", MediaKind.IMAGE)],
)
async def test_media_that_a_model_does_not_take_are_refused(family: str, kind: MediaKind, prepared: Path) -> None:
    async with running(family, prepared) as engine:
        assert kind not in engine.info.media
        media = (MediaInput(kind=kind, offset=0, length=1, features={}, digest=b""),)
        with pytest.raises(InvalidRequest, match=f"does not take {kind} input"):
            engine.submit(GenerateRequest(request_id="r", prompt_token_ids=[1], media=media))


async def test_the_second_start_reads_the_stored_towers(tmp_path: Path) -> None:
    asked = case("qwen2-vl", "image_resized")
    for _ in range(2):
        async with running("qwen2-vl", tmp_path) as engine:
            check(asked, await answer(engine, asked))
    assert {"graph.bin", "vision.bin", "vision.xml", "manifest.json"} == stored_names(tmp_path) - {"graph.xml"}


def stored_names(store: Path) -> set[str]:
    (entry,) = store.glob("model-*")
    return {file.name for file in entry.iterdir()}
