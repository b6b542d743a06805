"""The answers as types, one set per API mode, for documentation and for tests that hold `render` to them.

Keys that default to UNSET are there only when the answer has something to say.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, description="Milliseconds.")]
Microseconds: TypeAlias = Annotated[int, Meta(ge=0, description="Microseconds.")]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Byte: TypeAlias = Annotated[int, Meta(ge=0, le=255)]


class _Wire(Struct, forbid_unknown_fields=True):
    """Base of all: nothing but the named keys."""


class CandidateLogprob(_Wire):
    """A token that could have come, and its log-probability."""

    token: str
    logprob: float
    bytes: list[Byte]


class TokenLogprob(_Wire):
    """A generated token, its log-probability and its rivals."""

    token: str
    logprob: float
    bytes: list[Byte]
    top_logprobs: list[CandidateLogprob]


class Logprobs(_Wire):
    """One entry per generated token, the end token included."""

    content: list[TokenLogprob]


class FunctionCall(_Wire):
    """What the model wants called; `arguments` is JSON in a string."""

    name: str
    arguments: str


class ToolCall(_Wire):
    """One call of a full answer."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionCallDelta(_Wire):
    """First the name with empty arguments, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(_Wire):
    """A piece of the call at `index`; id and type come with the first."""

    index: Count
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class PromptTokensDetails(_Wire):
    """How much of the prompt the prefix cache held."""

    cached_tokens: Count


class CompletionTokensDetails(_Wire):
    """How much of the answer was thought; only for models that think."""

    reasoning_tokens: Count


class NativeUsage(_Wire):
    """Token counts."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class VllmUsage(_Wire):
    """Token counts, and per engine step the batch's size and the wait before it."""

    prompt_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens: Count
    total_tokens: Count
    batch_size: list[Count]
    queue_wait_time: list[Microseconds]
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class VllmMessage(_Wire):
    """The whole text; `tool_calls` is empty without calls."""

    role: Literal["assistant"]
    content: str
    tool_calls: list[ToolCall]
    reasoning_content: str | UnsetType = UNSET


class NativeMessage(_Wire):
    """The whole text; content is null beside calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class VllmChoice(_Wire):
    """One answer."""

    index: Count
    message: VllmMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class NativeChoice(_Wire):
    """One answer."""

    index: Count
    message: NativeMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class VllmCompletion(_Wire):
    """The full answer."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[VllmChoice]
    usage: VllmUsage
    prefill_time: Milliseconds
    decode_time_arr: list[Milliseconds]


class NativeCompletion(_Wire):
    """The full answer."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[NativeChoice]
    usage: NativeUsage


class VllmDelta(_Wire):
    """What one token added."""

    role: Literal["assistant"]
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class NativeDelta(_Wire):
    """What one token added; the role comes with a choice's first delta only."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class VllmChunkChoice(_Wire):
    """One answer's share of a chunk."""

    index: Count
    delta: VllmDelta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class NativeChunkChoice(_Wire):
    """One answer's share of a chunk."""

    index: Count
    delta: NativeDelta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class VllmChunk(_Wire):
    """One server-sent event; `usage` in each answer's last one, `full_text` there with fullTextEnabled."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: Annotated[list[VllmChunkChoice], Meta(min_length=1, max_length=1)]
    full_text: str | UnsetType = UNSET
    usage: VllmUsage | UnsetType = UNSET


class NativeChunk(_Wire):
    """One server-sent event; with `stream_options.include_usage` the last one has the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: Annotated[list[NativeChunkChoice], Meta(max_length=1)]
    usage: NativeUsage | UnsetType | None = UNSET


class VllmError(_Wire):
    """Any error, before a stream begins or as its last event."""

    error: str
    error_type: str


class NativeErrorDetails(_Wire):
    """What went wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class NativeError(_Wire):
    """Any error, before a stream begins or as its last event."""

    error: NativeErrorDetails
