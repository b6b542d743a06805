"""An engine under test: what it can do, and asking it."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.engine.contract.reading import Reading, read

from mindserve.engine.base import Engine, GenerateRequest, SamplingParams

Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]
"""Makes an engine that has not been started, and takes away whatever it needs; the checks start and close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine can do, and values that suit its model."""

    tokens: range
    """Ordinary token ids, to make prompts of; at least a dozen."""
    longest_prompt: int
    """Tokens of the longest prompt that is accepted."""
    samples: bool = True
    """Whether tokens depend on the sampling parameters."""
    max_logprobs: int = 5
    cached_prompt: int | None = None
    """Length of a prompt that the prefix cache finds again, at least in part; None: no prefix cache."""
    has_beam_search: bool = True
    isolates_broken_masks: bool = True
    """Whether a mask that raises ends only its own request."""
    adapter: Path | None = None
    """A LoRA adapter that fits the model."""
    long_answer: int = 200
    """Tokens that take long enough to be cancelled meanwhile."""
    patience_s: float = 60.0
    """How long one check may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started engine."""

    engine: Engine
    traits: Traits

    def request(self, *, length: int = 6, salt: int = 0, **options: Any) -> GenerateRequest:
        """Greedy, without ends, unless `options` say otherwise; `salt` makes another prompt."""
        fields = {name: options.pop(name) for name in ("n", "mask", "adapter", "use_beam_search") if name in options}
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8} | options)
        prompt = random.Random(salt).choices(self.traits.tokens, k=length)
        return GenerateRequest(request_id=secrets.token_hex(8), prompt_token_ids=prompt, sampling=sampling, **fields)

    async def answer(self, **options: Any) -> Reading:
        """The whole answer to `request(**options)`."""
        request = self.request(**options)
        return await read(self.engine.submit(request), request, self.engine.info)

    async def rests(self) -> None:
        """Nothing runs, waits or holds memory any more. An engine counts at its steps, so it gets one."""
        await self.answer(max_tokens=1)
        while not self._is_at_rest():  # noqa: ASYNC110 - nothing tells when the figures change
            await asyncio.sleep(0.01)

    def _is_at_rest(self) -> bool:
        stats = self.engine.stats()
        available = stats.free_blocks + stats.cached_blocks
        return stats.running == stats.waiting == 0 and available == stats.total_blocks


Check: TypeAlias = Callable[[Running], Awaitable[None]]
LifeCheck: TypeAlias = Callable[[Factory, Traits], Awaitable[None]]


@asynccontextmanager
async def started(make: Factory, traits: Traits) -> AsyncIterator[Running]:
    """A running engine, closed at the end."""
    async with make() as engine:
        await engine.start()
        try:
            yield Running(engine=engine, traits=traits)
        finally:
            await engine.close()
