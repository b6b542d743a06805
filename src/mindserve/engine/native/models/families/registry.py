"""Which `model_type` is which family."""

from collections.abc import Mapping
from dataclasses import replace

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.checkpoint import Checkpoint
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families import chatglm, gemma, glm, llama, mistral, phi3, qwen, qwen_media
from mindserve.engine.native.models.spec import Activation, DecoderSpec, Family
from mindserve.errors import ModelLoadError

FAMILIES = {
    "llama": Family(describe=llama.describe),
    "mistral": Family(describe=mistral.describe),
    "qwen2": Family(describe=qwen.describe_qwen2),
    "qwen3": Family(describe=qwen.describe_qwen3),
    "qwen2_moe": Family(describe=qwen.describe_qwen2_moe),
    "qwen3_moe": Family(describe=qwen.describe_qwen3_moe),
    "glm": Family(describe=glm.describe_glm),
    "glm4": Family(describe=glm.describe_glm4),
    "qwen2_vl": qwen_media.VISION,
    "qwen2_5_vl": qwen_media.VISION,
    "qwen2_audio": qwen_media.AUDIO,
    "chatglm": chatglm.FAMILY,
    "phi3": Family(describe=phi3.describe),
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.TEXT,
    "gemma3": gemma.WITH_VISION,
}


def family_of(fields: Fields) -> Family:
    """Raises ModelLoadError for an unknown `model_type`."""
    if "quantization_config" in fields:
        raise ModelLoadError(
            f"{fields.source}: quantization_config is not supported: use the plain weights or a GGUF file"
        )
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelLoadError(f"{fields.source}: model_type {model_type[:40]} is not supported (supported: {known})")
    return FAMILIES[model_type]


def usual_keys(fields: Fields, family: Family) -> Fields:
    """The configuration with the usual keys beside the family's own, and with the text model's on top."""
    text = fields.section("text_config")
    of_text = {} if text is None else {key: value for key, value in text.values.items() if key != "model_type"}
    translated = {usual: fields.values[own] for usual, own in family.config_keys.items() if own in fields.values}
    values = {**family.config_defaults, **fields.values, **of_text, **translated}
    return Fields(fields.source, values, family.config_keys)


def tensor_names(family: Family, checkpoint: Checkpoint) -> Mapping[str, str]:
    """The family's, or its newer ones: whichever the checkpoint's embedding has."""
    newer = family.newer_tensor_names
    has_newer = newer and newer["model."] + "embed_tokens.weight" in checkpoint
    return newer if has_newer else family.tensor_names


def describe(family: Family, config: ModelConfig, fields: Fields) -> DecoderSpec:
    """The spec of a model."""
    return replace(family.describe(config, fields), activation=_activation(fields))


def _activation(fields: Fields) -> Activation:
    key = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    name = fields.text(key, Activation.SILU)
    if name not in set(Activation):
        raise fields.wrong(key, "one of " + ", ".join(Activation))
    return Activation(name)
