"""Engines over the real vLLM, and reading their answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mindserve.engine.base import Engine, GenerateRequest, SamplingParams, TokenEvent, TokenStream
from mindserve.engine.vllm.engine import VllmEngine
from mindserve.settings.values import (
    AdapterSettings,
    EngineKind,
    EngineSettings,
    ModelSettings,
    ParallelSettings,
    Precision,
    Settings,
)

EAGER = {"enforce_eager": True, "block_size": 32}


def settings_for(
    model: Path, *, adapters: tuple[Path, ...] = (), tensor: int = 1, cache_bytes: int = 1 << 26, **vllm: Any
) -> Settings:
    """float32, eager, sequences of up to 512 tokens."""
    return Settings(
        model=ModelSettings(
            name="m",
            path=model,
            max_seq_len=512,
            max_input_len=500,
            adapters=tuple(AdapterSettings(name=path.name, path=path) for path in adapters),
        ),
        engine=EngineSettings(
            kind=EngineKind.VLLM,
            precision=Precision.F32,
            cache_bytes=cache_bytes,
            parallel=ParallelSettings(tensor=tensor),
            vllm={**EAGER, **vllm},
        ),
    )


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[Engine]:
    engine = VllmEngine(settings)
    await engine.start()
    try:
        for adapter in settings.model.adapters:
            await engine.load_adapter(adapter.name, adapter.path)
        yield engine
    finally:
        await engine.close()


def request(prompt: list[int], *, n: int = 1, **options: Any) -> GenerateRequest:
    """Greedy and without ends, unless `options` say otherwise."""
    names = ("mask", "adapter", "use_beam_search", "media")
    fields = {name: options.pop(name) for name in names if name in options}
    sampling = SamplingParams(**({"temperature": 0.0, "ignore_eos": True, "max_tokens": 24} | options))
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling, n=n, **fields)


async def events_of(stream: TokenStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


def tokens_of(events: list[TokenEvent], index: int = 0) -> list[int]:
    return [token for event in events if event.index == index for token in event.token_ids]
