"""A request with a seed gets the same answer alone and among others.

To the last bit on processors whose kernels work row by row; here in f32 with a tolerance, since not all may.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.native.companion import with_companion
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.engine.native.step import StepBatch
from mindserve.settings.values import EngineSettings, ModelSettings, Precision, Settings

MODEL = Path(__file__).parents[3] / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_LENGTHS = (20, 47, 71, 100)


def lone(*, adapters: tuple[str | None, ...] = ()) -> StepBatch:
    return StepBatch(
        token_ids=np.array([9]),
        positions=np.array([40]),
        past_lens=np.array([40], np.int32),
        subsequence_begins=np.array([0, 1], np.int32),
        block_indices=np.array([3, 5], np.int32),
        block_indices_begins=np.array([0, 2], np.int32),
        max_context_len=41,
        sample_rows=np.array([0]),
        inverse_temperature=np.ones(1, np.float32),
        adapters=adapters,
    )


def test_the_companion_is_a_sequence_of_its_own_that_nobody_samples() -> None:
    pair = with_companion(lone(adapters=("a",)), 7)
    assert pair.token_ids.tolist() == [9, 0] and pair.positions.tolist() == [40, 0]
    assert pair.past_lens.tolist() == [40, 0] and pair.subsequence_begins.tolist() == [0, 1, 2]
    assert pair.block_indices.tolist() == [3, 5, 7] and pair.block_indices_begins.tolist() == [0, 2, 3]
    assert pair.sample_rows.tolist() == [0] and pair.adapters == ("a", None)
    assert pair.past_lens.dtype == pair.block_indices.dtype == np.int32
    assert with_companion(lone(), 7).adapters == ()


async def tokens(engine: NativeEngine, prompt: list[int], seed: int) -> list[tuple[int, float]]:
    sampling = SamplingParams(seed=seed, max_tokens=24, ignore_eos=True, logprobs=0)
    stream = engine.submit(GenerateRequest(request_id=str(seed), prompt_token_ids=prompt, sampling=sampling))
    events = [event async for step in stream for event in step]
    return [(event.token_ids[0], event.logprobs[0].logprob) for event in events if event.logprobs]


@pytest.fixture
async def engine(tmp_path: Path):
    settings = Settings(
        model=ModelSettings(name="demo", path=MODEL),
        engine=EngineSettings(precision=Precision.F32, cache_bytes=1 << 28, prepared_dir=tmp_path),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    yield engine
    await engine.close()


async def test_same_seed_same_tokens_alone_and_among_others(engine: NativeEngine) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(100, 40000, length).tolist() for length in PROMPT_LENGTHS]
    alone = [await tokens(engine, prompt, seed) for seed, prompt in enumerate(prompts)]
    together = await asyncio.gather(*(tokens(engine, prompt, seed) for seed, prompt in enumerate(prompts)))
    for lone_answer, answer in zip(alone, together, strict=True):
        assert len(answer) == 24
        assert [token for token, _ in answer] == [token for token, _ in lone_answer]
        assert [logprob for _, logprob in answer] == pytest.approx([logprob for _, logprob in lone_answer], abs=1e-3)
