"""Which format a model writes: by the configured name, by its chat template, or by its family."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mindserve.output.formats.base import ReasoningFormat, ToolFormat, tags_of
from mindserve.output.formats.chatglm3 import CHATGLM3
from mindserve.output.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from mindserve.output.formats.deepseek_v32 import DEEPSEEK_V32
from mindserve.output.formats.glm4 import GLM4
from mindserve.output.formats.hermes import HERMES
from mindserve.output.formats.llama3 import LLAMA3
from mindserve.output.formats.qwen2 import QWEN2
from mindserve.output.formats.qwen3_coder import QWEN3_CODER
from mindserve.output.formats.reasoning import THINK_TAGS

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen2_5": HERMES,
        "qwen3": HERMES,
        "qwen3_moe": HERMES,
        "qwen3_coder": QWEN3_CODER,
        "qwen2": QWEN2,
        "qwen1_5": QWEN2,
        "chatglm3": CHATGLM3,
        "chatglm3_6b": CHATGLM3,
        "glm4": GLM4,
        "chatglm4_9b": GLM4,
        "deepseek_v3": DEEPSEEK_V3,
        "deepseek_r1": DEEPSEEK_V3,
        "deepseek_v31": DEEPSEEK_V31,
        "deepseek_v32": DEEPSEEK_V32,
        "llama3": LLAMA3,
        "llama3_json": LLAMA3,
    }
)
"""By the names that `tool_call_options.tool_call_parser` knows; `-` and `.` count as `_`."""

_TEMPLATE_SIGNS: Final[tuple[tuple[tuple[str, ...], ToolFormat | None], ...]] = (
    (("｜DSML｜",), DEEPSEEK_V32),
    (("<｜tool▁calls▁begin｜>", "```json"), DEEPSEEK_V3),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK_V31),
    (("<tool_call>", "<function="), QWEN3_CODER),
    (("<tool_call>", "<arg_key>"), None),  # GLM-4.5 has a format of its own
    (("<tool_call>", "<invoke"), None),  # so has MiniMax
    (("<tool_call>",), HERMES),
    (("✿FUNCTION✿",), QWEN2),
    (("<|start_header_id|>", '"parameters"'), LLAMA3),
    (("[gMASK]<sop>",), GLM4),
)
"""What a template that knows the format contains, the telling ones first."""

_FAMILIES: Final[tuple[tuple[str, ToolFormat], ...]] = (
    ("qwen", HERMES),
    ("chatglm", CHATGLM3),
    ("glm", GLM4),
    ("deepseek_v32", DEEPSEEK_V32),
    ("deepseek", DEEPSEEK_V3),
    ("llama", LLAMA3),
)
"""By the beginning of `model_type`, for templates that show nothing."""


def find_format(name: str) -> ToolFormat | None:
    """The tool-call format of a configured parser name, or None."""
    return TOOL_FORMATS.get(name.strip().lower().replace("-", "_").replace(".", "_"))


def deduce_format(chat_template: str | None, model_type: str) -> ToolFormat | None:
    """The format that the chat template writes for earlier calls, else the family's; None if neither is known."""
    for signs, format_ in _TEMPLATE_SIGNS:
        if chat_template and all(sign in chat_template for sign in signs):
            return format_
    return next((format_ for family, format_ in _FAMILIES if model_type.startswith(family)), None)


def deduce_reasoning(chat_template: str | None, model_type: str) -> ReasoningFormat | None:
    """How the model marks its thought, or None for one that does not think."""
    if THINK_TAGS.closing in (chat_template or "") or model_type.startswith("qwen3"):
        return THINK_TAGS
    return None


def all_tags() -> frozenset[str]:
    """The tags around thoughts and calls for which vocabularies may have tokens."""
    return frozenset[str]().union(*(tags_of(THINK_TAGS, format_) for format_ in TOOL_FORMATS.values()))
