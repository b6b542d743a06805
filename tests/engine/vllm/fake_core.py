"""A vLLM without vLLM: logits are a function of all tokens, and every sequence of a step is woken together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np

from mindserve.engine.vllm.border import Adapter, Output, Question
from mindserve.engine.vllm.figures import Figures
from mindserve.errors import EngineFailure, InvalidRequest, MindserveError

VOCAB = 200
EOS = 199


def logits_after(tokens: tuple[int, ...]) -> np.ndarray:
    seed = int.from_bytes(blake2b(repr(tokens).encode(), digest_size=8).digest())
    logits = np.random.default_rng(seed).normal(0, 3, VOCAB)
    logits[EOS] = -50
    return logits


def logprobs_after(tokens: tuple[int, ...]) -> np.ndarray:
    logits = logits_after(tokens)
    return logits - np.log(np.exp(logits).sum())


@dataclass
class FakeCore:
    """See above."""

    figures: Figures = field(default_factory=Figures)
    vocab_size: int = VOCAB
    max_context_len: int = 512
    block_count: int = 100
    block_size: int = 16
    takes_adapters: bool = True
    max_adapters: int = 3
    is_dead: bool = False
    stride: int = 1
    """Tokens per message."""
    asked: list[tuple[str, Question]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    loaded: dict[str, Adapter] = field(default_factory=dict)
    gives_up: set[str] = field(default_factory=set)
    """Ids of requests that end with `abort`."""
    is_connected: bool = False
    is_closed: bool = False
    _step: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        self.is_connected = True

    def ask(self, question: Question, request_id: str) -> AsyncIterator[Output]:
        if question.sampling.get("temperature", 0) == 1.5:
            raise InvalidRequest("the fake does not like 1.5")
        self.asked.append((request_id, question))
        return self._generate(question, request_id)

    def failure(self, error: Exception) -> MindserveError:
        if isinstance(error, MindserveError):
            return error
        return EngineFailure("The engine stopped working." if self.is_dead else "The engine failed at the request.")

    async def load_adapter(self, adapter: Adapter) -> None:
        if "bad" in adapter.path.name:
            raise RuntimeError("no such weights")
        self.loaded[adapter.key] = adapter

    async def unload_adapter(self, adapter: Adapter) -> None:
        del self.loaded[adapter.key]

    async def close(self) -> None:
        self.is_closed = True

    def die(self) -> None:
        self.is_dead = True

    async def _generate(self, question: Question, request_id: str) -> AsyncIterator[Output]:
        self.running.add(request_id)
        try:
            async for output in self._answer(question, request_id):
                yield output
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)

    async def _answer(self, question: Question, request_id: str) -> AsyncIterator[Output]:
        sampling: dict[str, Any] = dict(question.sampling)
        tokens = tuple(question.token_ids)
        rng = np.random.default_rng(sampling.get("seed"))
        new: list[int] = []
        entries: list[dict[int, SimpleNamespace]] = []
        count = 0
        while True:
            await self._next_step()
            if self.is_dead:
                raise RuntimeError("dead")
            if request_id in self.gives_up:
                yield _output([], None, "abort")
                return
            logprobs = logprobs_after(tokens)
            token = int(logprobs.argmax())
            if sampling.get("temperature"):
                token = int(rng.choice(VOCAB, p=np.exp(logprobs) / np.exp(logprobs).sum()))
            tokens, count = (*tokens, token), count + 1
            new.append(token)
            if sampling.get("logprobs") is not None:
                entries.append(_entry(logprobs, token, sampling["logprobs"]))
            reason = "stop" if token in sampling["stop_token_ids"] else None
            reason = reason or ("length" if count == sampling["max_tokens"] else None)
            if reason or len(new) == self.stride:
                yield _output(new, entries or None, reason)
                new, entries = [], []
            if reason:
                return

    async def _next_step(self) -> None:
        if self._step is None:
            loop = asyncio.get_running_loop()
            self._step = loop.create_future()
            loop.call_later(0.0005, self._end_step)
        await asyncio.shield(self._step)

    def _end_step(self) -> None:
        if self._step is not None:
            step, self._step = self._step, None
            self.figures.record(0, self._scheduler_stats(), SimpleNamespace(num_preempted_reqs=0))
            with contextlib.suppress(asyncio.InvalidStateError):
                step.set_result(None)

    def _scheduler_stats(self) -> Any:
        return SimpleNamespace(
            num_running_reqs=len(self.running),
            num_waiting_reqs=0,
            num_skipped_waiting_reqs=0,
            kv_cache_usage=len(self.running) / 100,
            prefix_cache_stats=SimpleNamespace(queries=3, hits=1),
        )


def _entry(logprobs: np.ndarray, token: int, count: int) -> dict[int, SimpleNamespace]:
    """The chosen one first, as vLLM has it."""
    order = np.argsort(-logprobs)
    chosen = int(np.flatnonzero(order == token)[0]) + 1
    entry = {token: SimpleNamespace(logprob=float(logprobs[token]), rank=chosen)}
    for rank, i in enumerate(order[:count], start=1):
        entry[int(i)] = SimpleNamespace(logprob=float(logprobs[i]), rank=rank)
    return entry


def _output(tokens: list[int], entries: list[Any] | None, reason: str | None) -> Any:
    completion = SimpleNamespace(token_ids=tokens, logprobs=entries, finish_reason=reason)
    timing = SimpleNamespace(queued_ts=10.0, scheduled_ts=10.25)
    return SimpleNamespace(outputs=[completion], num_cached_tokens=2, metrics=timing)
