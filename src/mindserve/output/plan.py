"""How one request's tokens become its answer: plain values, made by `chat` and read by the assembler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mindserve.output.formats.base import ReasoningFormat, ToolFormat


class ThoughtStart(Enum):
    """What is known about a thought before the first token."""

    ASSUMED = "assumed"
    """The output begins inside a thought: the prompt opened it, or the model always thinks first. A generated opening
    tag is taken off (contract: response.md 4.2)."""
    IF_OPENED = "if_opened"
    """There is a thought only if the output begins with the opening tag."""
    NONE = "none"
    """Thinking is off: tags are ordinary text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtPlan:
    """For models that can think. `ChoiceAssembler.reasoning_tokens` is reported whenever a plan has one."""

    format: ReasoningFormat
    start: ThoughtStart = ThoughtStart.ASSUMED
    is_split: bool = True
    """Whether the thought goes to `reasoning`; otherwise it is counted only and stays in the content, with its tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """Set when tools are in play: the output may hold calls, and content is stripped at both ends."""

    format: ToolFormat | None
    """None: the model's calls are in no known format, so everything is content."""
    parameters: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict[str, Mapping[str, Any] | None])
    """JSON schema of each function's arguments, by name; formats without types of their own cast values by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Everything about the answer that is decided before the first token."""

    skip_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    """Stop strings, none of them empty, in the request's order."""
    stop_token_ids: frozenset[int] = frozenset()
    """The request's own, not the model's end tokens: their text shows only with `include_stop`."""
    include_stop: bool = False
    """Whether a matched stop string or stop token stays in the content."""
    reports_full_text: bool = False
    """`fullTextEnabled`: each event repeats the whole content so far. Without effect when tools are in play."""
    thought: ThoughtPlan | None = None
    """None: the model does not think, or nobody asked to know."""
    tools: ToolPlan | None = None
    """None: no tools in the prompt (`tool_choice: "none"` included)."""
