"""The text models of Qwen2-VL, Qwen2.5-VL and Qwen2-Audio: Qwen2, some of whose embeddings come from towers."""

from dataclasses import replace

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families import qwen
from mindserve.engine.native.models.spec import DecoderSpec, Family


def describe_vision(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Positions on a grid."""
    rope = fields.section("rope_scaling") or fields.section("rope_parameters") or Fields(fields.source, {})
    sections = rope.integers("mrope_section")
    if len(sections) not in (3, 4) or sum(sections) != config.rotary_dim // 2 or any(sections[3:]):
        raise rope.wrong("mrope_section", f"three integers that add up to {config.rotary_dim // 2}")
    return replace(qwen.describe_qwen2(config, fields), rotary_sections=sections[:3])


VISION = Family(
    describe=describe_vision,
    newer_tensor_names={"model.": "model.language_model."},
)
AUDIO = Family(
    describe=qwen.describe_qwen2,
    tensor_names={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    newer_tensor_names={"model.": "model.language_model."},
    config_defaults={
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 22016,
        "use_sliding_window": False,
    },
)
