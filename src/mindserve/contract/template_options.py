"""`chat_template_kwargs` and the request's own `chat_template`."""

from dataclasses import dataclass
from typing import Any

from mindserve.contract.context import ValidationContext
from mindserve.contract.failure import failure
from mindserve.contract.fields import INT32_MAX, Kind, Scalar
from mindserve.contract.json_values import Document, is_object

KWARGS = "chat_template_kwargs"
TEMPLATE = "chat_template"
MAX_TEMPLATE_CHARS = 32767

KWARGS_NOT_OBJECT = "chat_template_kwargs must be a JSON object"
THINKING_NOT_BOOLEAN = "enable_thinking must be boolean, got {type}"
KEY_RESERVED = "chat_template_kwargs must not contain '{key}'"
TEMPLATE_NOT_STRING = "Parameter chat_template not string"
TEMPLATE_NOT_VALID = "Parameter chat_template is not valid"
TEMPLATE_NOT_ALLOWED = "Parameter chat_template is not allowed by the server's configuration"

RESERVED_KEYS = frozenset(
    [
        "messages",
        "tools",
        "add_generation_prompt",
        "tokenize",
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
        "additional_special_tokens",
    ]
)
"""What the server itself hands to the template (decisions: chat_template_kwargs)."""

THINKING_BUDGET = Scalar(
    name="thinking_budget",
    kind=Kind.INTEGER,
    minimum=1,
    maximum=INT32_MAX,
    range_text="Parameter thinking_budget must be in [1,2147483647], got {value}",
    description="Most tokens of the thought. Counts only beside `enable_thinking: true`.",
    example=1024,
)

_JSON_TYPE_NAMES = {type(None): "null", str: "string", int: "number", float: "number", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """What the request tells the chat template."""

    kwargs: Document
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    template: str | None = None


def read_template_options(document: Document, context: ValidationContext) -> TemplateOptions:
    """Both parameters, checked."""
    kwargs: Any = document.get(KWARGS, {})
    if not is_object(kwargs):
        raise failure(KWARGS_NOT_OBJECT, param=KWARGS)
    if kwargs:
        _check_keys(kwargs, context)
    enable_thinking = kwargs.get("enable_thinking")
    return TemplateOptions(
        kwargs=kwargs,
        enable_thinking=enable_thinking,
        thinking_budget=THINKING_BUDGET.read(kwargs) if enable_thinking else None,
        template=_read_template(document, context),
    )


def _check_keys(kwargs: dict[str, Any], context: ValidationContext) -> None:
    for key in kwargs:
        if key in RESERVED_KEYS or key in context.reserved_template_keys:
            raise failure(KEY_RESERVED, param=KWARGS, key=key)
    if "enable_thinking" in kwargs and type(kwargs["enable_thinking"]) is not bool:
        raise failure(THINKING_NOT_BOOLEAN, param=KWARGS, type=_JSON_TYPE_NAMES[type(kwargs["enable_thinking"])])


def _read_template(document: Document, context: ValidationContext) -> str | None:
    """Template text only: what looks like a path is text as well."""
    template = document.get(TEMPLATE)
    if template is None:
        return None
    if not isinstance(template, str):
        raise failure(TEMPLATE_NOT_STRING, param=TEMPLATE)
    if not context.allows_chat_template:
        raise failure(TEMPLATE_NOT_ALLOWED, param=TEMPLATE)
    if not 0 < len(template) <= MAX_TEMPLATE_CHARS:
        raise failure(TEMPLATE_NOT_VALID, param=TEMPLATE)
    return template
