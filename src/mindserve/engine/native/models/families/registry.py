"""Which `model_type` is which family."""

from collections.abc import Callable
from dataclasses import replace

from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families import glm, llama, mistral, qwen
from mindserve.engine.native.models.fields import Fields
from mindserve.engine.native.models.spec import Activation, DecoderSpec
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
    return replace(family(config, fields), activation=_activation(fields))


def _activation(fields: Fields) -> Activation:
    key = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    name = fields.text(key, Activation.SILU)
    if name not in set(Activation):
        raise fields.wrong(key, "one of " + ", ".join(Activation))
    return Activation(name)
