"""Which `model_type` is which family."""

from collections.abc import Callable

from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families import glm, llama, mistral, qwen
from mindserve.engine.native.models.fields import Fields
from mindserve.engine.native.models.spec import DecoderSpec
from mindserve.errors import ModelLoadError

FAMILIES: dict[str, Callable[[ModelConfig, Fields], DecoderSpec]] = {
    "llama": llama.describe,
    "mistral": mistral.describe,
    "qwen2": qwen.describe_qwen2,
    "qwen3": qwen.describe_qwen3,
    "qwen2_moe": qwen.describe_qwen2_moe,
    "qwen3_moe": qwen.describe_qwen3_moe,
    "glm": glm.describe_glm,
    "glm4": glm.describe_glm4,
}


def describe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """The spec of a model. Raises ModelLoadError for an unknown `model_type`."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ModelLoadError(
            f"{fields.source}: model_type {config.model_type[:40]} is not supported (supported: {known})",
            param="model_type",
        )
    return family(config, fields)
