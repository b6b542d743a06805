"""What the rest of this room needs of vLLM, without importing it: `library` gives the real thing, tests a small one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mindserve.engine.base import MediaInput
from mindserve.errors import MindserveError


class Logprob(Protocol):
    """A candidate's entry."""

    logprob: float
    rank: int | None
    """From 1."""


class Completion(Protocol):
    """What is new of one sequence."""

    token_ids: Sequence[int]
    """Usually one; several where the reader was late."""
    logprobs: Sequence[Mapping[int, Logprob]] | None
    """One per token, each with the chosen one and its best rivals."""
    finish_reason: str | None
    """stop, length, abort, error, ..."""


class Timing(Protocol):
    """Seconds of the engine's own clock; 0.0: not yet."""

    queued_ts: float
    scheduled_ts: float


class Output(Protocol):
    """One message about a request with one sequence."""

    outputs: Sequence[Completion]
    num_cached_tokens: int | None
    metrics: Timing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter as vLLM knows it."""

    number: int
    """From 1; never used twice."""
    key: str
    """Never used twice either: cached blocks hang on it."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request with one sequence."""

    token_ids: list[int]
    sampling: Mapping[str, object]
    """Fields of vLLM's SamplingParams."""
    media: tuple[MediaInput, ...] = ()
    adapter: Adapter | None = None


class Core(Protocol):
    """A running vLLM."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        ...

    @property
    def max_context_len(self) -> int:
        """Tokens of prompt and answer together."""
        ...

    @property
    def block_count(self) -> int:
        """KV blocks of all its engines."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of one."""
        ...

    @property
    def takes_adapters(self) -> bool:
        """Whether it was started for LoRA."""
        ...

    @property
    def max_adapters(self) -> int:
        """How many may be loaded at a time."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether it can answer nothing any more."""
        ...

    async def connect(self) -> None:
        """Tie it to the running event loop."""
        ...

    def ask(self, question: Question, request_id: str) -> AsyncIterator[Output]:
        """Submitted with the first iteration, aborted when that is cancelled. Raises InvalidRequest."""
        ...

    def failure(self, error: Exception) -> MindserveError:
        """What an exception out of `ask`'s iteration or of an adapter means to the client."""
        ...

    async def load_adapter(self, adapter: Adapter) -> None:
        """Raises whatever vLLM raises; goes on living."""
        ...

    async def unload_adapter(self, adapter: Adapter) -> None:
        """No request uses it any more."""
        ...

    async def close(self) -> None:
        """Free everything, of a dead one too."""
        ...
