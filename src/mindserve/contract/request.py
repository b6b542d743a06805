"""A request after validation: what the rest of the house reads. `contract.validate` makes these, nobody else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class PartKind(StrEnum):
    """`type` of a media part on the wire."""

    IMAGE_URL = "image_url"
    VIDEO_URL = "video_url"
    AUDIO_URL = "audio_url"
    INPUT_AUDIO = "input_audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A text part of a content list."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """An image, video or sound, not fetched yet."""

    kind: PartKind
    source: str
    """Path, file://, http(s):// or data: address, or raw base64."""
    format: str | None = None
    """`format` of input_audio: mp3, wav or flac."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation."""

    role: str
    content: str | tuple[TextPart | MediaPart, ...] | None
    """None only for an assistant message with tool calls."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """As sent: id, type, function{name, arguments}."""
    tool_call_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other keys that templates may read (name, reasoning_content, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] | None
    """JSON schema of the arguments."""
    strict: bool
    raw: Mapping[str, Any]
    """The tool as sent, for the chat template."""


class ToolChoiceMode(StrEnum):
    """`tool_choice`; NONE whenever no tools came."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether the model may, must or must not call, and which function when NAMED."""

    mode: ToolChoiceMode = ToolChoiceMode.NONE
    name: str | None = None


class ResponseFormatKind(StrEnum):
    """`response_format.type`."""

    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """What the content must look like."""

    kind: ResponseFormatKind = ResponseFormatKind.TEXT
    schema: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """`POST /v1/chat/completions`, valid. None means the client left it out (or sent null)."""

    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    include_usage: bool = False
    """`stream_options.include_usage` (native mode only)."""

    temperature: float | None = None
    top_k: int | None = None
    """-1: off."""
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None

    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool = False
    logprobs: int | None = None
    """None: off; k: chosen tokens with their k best candidates (`top_logprobs`)."""

    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat = ResponseFormat()

    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`chat_template_kwargs`, enable_thinking included."""
    enable_thinking: bool | None = None
    thinking_budget: int | None = None

    @property
    def sequences(self) -> int:
        """How many sequences to generate: `best_of` where it is set, else `n`."""
        if self.use_beam_search:
            return self.n or 1
        return self.best_of or self.n or 1
