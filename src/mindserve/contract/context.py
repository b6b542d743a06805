"""What validation has to know besides the request's own bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindserve.contract.request import PartKind
from mindserve.settings.values import ApiMode

MAX_MESSAGES_CHARS = 4 * 1024 * 1024
"""Contract, `messages`: at most 4 MB of characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """The served model's names and abilities, and the configured limits."""

    models: Mapping[str, object]
    """What `model` may be: the served name and every adapter's. Only the keys are read, so a live view is fine."""
    mode: ApiMode = ApiMode.VLLM
    model_type: str = ""
    """`model_type` of config.json: deepseek models take neither beam search nor several sequences."""
    plugin_types: frozenset[str] = frozenset()
    """Names in `plugin_params`.plugin_type: mtp, la and memory_decoding exclude some parameters."""
    media: frozenset[PartKind] = frozenset()
    """Content parts that the model takes besides text; empty for a text-only model."""
    allows_chat_template: bool = False
    """Whether a request may bring a template of its own."""
    reserved_template_keys: frozenset[str] = field(default_factory=frozenset[str])
    """Names of the tokenizer's special tokens, besides the usual ones, that `chat_template_kwargs` may not replace."""
    max_n: int = 128
    """`maxN` of config.json."""
    max_json_depth: int = 64
    """`maxJsonDepth`: the body itself is level 0."""
    max_messages_chars: int = MAX_MESSAGES_CHARS
    """Characters of the JSON of `messages`, base64 media not counted."""
