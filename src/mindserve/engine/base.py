"""What every engine speaks: token ids in, token events out.

Text, stop strings, reasoning and tools are not the engine's business. All methods of `Engine` and `TokenStream` are
called on one event loop; the engine keeps its own thread to itself.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mindserve.errors import MindserveError

LOGPROB_OF_EXCLUDED = -9999.0
"""Log-probability of a candidate that temperature, top_k and top_p left no chance (decisions: logprobs)."""


class FinishReason(StrEnum):
    """Why the engine ended a sequence."""

    STOP = "stop"
    """An end token or one of `stop_token_ids` was generated (it is among the event's tokens)."""
    LENGTH = "length"
    """`max_tokens` or the model's length was reached; wins over STOP when both happen on one token."""
    CANCELLED = "cancelled"
    ERROR = "error"


class MediaKind(StrEnum):
    """What a media part of a prompt is."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class TokenMask(Protocol):
    """Constrains one sequence, token by token. The engine forks the request's mask once per sequence.

    Called on the engine's thread only. It can be pickled in the state of its beginning, for engines that run in other
    processes: the copy prepares its vocabulary from the model's files there.
    """

    def allowed(self) -> NDArray[np.uint32] | None:
        """Bits of the tokens that may come next, `[ceil(vocab_size / 32)]`, lowest bit first; None: all of them."""
        ...

    def advance(self, token_id: int) -> None:
        """Record that `token_id` was generated."""
        ...

    def fork(self) -> "TokenMask":
        """An independent copy in the same state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. Defaults change nothing: plain sampling from the model's distribution."""

    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 means off."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """[0, 2^64-1]; None: fresh entropy. Sequence i > 0 of a request uses a seed derived from it."""
    max_tokens: int = 512
    """New tokens per sequence, the end token included."""
    stop_token_ids: frozenset[int] = frozenset()
    """Besides the model's end tokens; they stop even with `ignore_eos`."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no logprobs; k >= 0: the chosen token's and the k best candidates'."""

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken (`top_k: 1` counts as greedy everywhere)."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMedia:
    """An image, video or sound as it was decoded, for engines that prepare media themselves."""

    data: NDArray[np.generic]
    """Image: uint8 `[height, width, 3]`; video: uint8 `[frames, height, width, 3]`; audio: float32 `[samples]`."""
    rate: float = 0.0
    """Video: frames per second of `data`; audio: samples per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaInput:
    """One decoded image, video or sound at its place in the prompt."""

    kind: MediaKind
    offset: int
    """Index in `prompt_token_ids` of its first placeholder."""
    length: int
    """Number of placeholder tokens."""
    features: Mapping[str, NDArray[np.generic]]
    """What the model's tower takes (`pixel_values`, `grid_thw`, `input_features`, ...)."""
    digest: bytes
    """Hash of the content, part of the prefix cache's key."""
    decoded: DecodedMedia | None = None
    """What the features were made from; kept only where the engine asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Everything the engine needs to answer one request."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    """Number of sequences, all returned. With `use_beam_search` the number of beams and of returned hypotheses."""
    use_beam_search: bool = False
    adapter: str | None = None
    media: tuple[MediaInput, ...] = ()
    mask: TokenMask | None = None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A generated token's log-probability, and its best rivals' (best first)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """Pairs of token id and log-probability; LOGPROB_OF_EXCLUDED for candidates without a chance."""


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The engine step that made an event; shared by all events of one request in that step."""

    batch_size: int
    """Requests (not sequences) answered in the step."""
    queue_wait_us: int
    """First step: arrival to first scheduling. Later: the previous step's result to this step's scheduling."""
    time_s: float
    """`time.perf_counter()` when the step's result was there."""


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one step brought for one sequence. The last event of a sequence carries `finish_reason`, exactly once."""

    index: int
    """Which of the request's sequences, from 0."""
    token_ids: tuple[int, ...]
    """Usually one; several with speculation; all of a hypothesis at the end of a beam search; none when an end comes
    without a token (cancel, error)."""
    step: StepInfo
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token, when asked for."""
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the request's first scheduling."""
    cumulative_logprob: float = 0.0
    """Sum of the sequence's token log-probabilities so far (ranks `best_of`; 0.0 where n is 1 and none were asked)."""
    error: MindserveError | None = None
    """Set with FinishReason.ERROR."""


class TokenStream(Protocol):
    """The events of one request, in lists: one list per engine step that concerns it."""

    def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        """Ends after every sequence has had its terminal event."""
        ...

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all: their blocks are freed at the next step. Idempotent, returns at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about the loaded model."""

    model_type: str
    """`model_type` of config.json (qwen2, llama, chatglm, ...)."""
    vocab_size: int
    """Rows of the output head; may exceed the tokenizer's."""
    max_context_len: int
    """Tokens of prompt and output together that the model and configuration allow."""
    eos_token_ids: frozenset[int] = frozenset()
    block_size: int = 32
    """Tokens of a KV block."""
    default_top_k: int | None = None
    """top_k of generation_config.json, else config.json."""
    media_token_ids: Mapping[MediaKind, int] = field(default_factory=dict[MediaKind, int])
    """The kinds of media that the model takes, and the token that stands for each in the prompt, repeated as often as
    the tower makes tokens of it."""

    @property
    def media(self) -> frozenset[MediaKind]:
        """The kinds of media that the model takes."""
        return frozenset(self.media_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot for metrics, health checks and tests."""

    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences not yet admitted, or preempted."""
    total_blocks: int = 0
    free_blocks: int = 0
    """Blocks that hold nothing."""
    cached_blocks: int = 0
    """Blocks that no sequence uses but the prefix cache keeps (they count as available)."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_hits: int = 0
    """Of those, found."""
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    restarts: int = 0
    """How often an engine that had died was replaced."""


class Engine(Protocol):
    """A model that answers requests."""

    @property
    def info(self) -> ModelInfo:
        """Facts about the model, valid after `start`."""
        ...

    @property
    def is_healthy(self) -> bool:
        """False once the engine cannot answer any more."""
        ...

    async def start(self) -> None:
        """Load and be ready. Raises ModelLoadError."""
        ...

    def submit(self, request: GenerateRequest) -> TokenStream:
        """Queue a request. Raises (PromptTooLong, NotReady, InvalidRequest) before any event; never blocks."""
        ...

    def stats(self) -> EngineStats:
        """Counters as of the last step."""
        ...

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make a LoRA adapter available. Raises ModelLoadError, or InvalidRequest where the engine has none."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Take it away; running requests finish with it."""
        ...

    async def close(self) -> None:
        """Cancel what runs (each sequence gets its terminal event) and free everything."""
        ...
