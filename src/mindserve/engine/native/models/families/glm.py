"""GLM-4 (`glm`) and GLM-4-0414 (`glm4`): rotary on half of each head, between neighbouring dimensions."""

from dataclasses import replace

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.spec import DecoderSpec, Norms


def describe_glm(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Half of each head rotates unless the configuration says otherwise."""
    config = _with_rotary_default(config, fields)
    return DecoderSpec(config=config, is_rotary_interleaved=True, qkv_bias=fields.flag("attention_bias", False))


def describe_glm4(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """As `glm`, with norms after attention and MLP too."""
    norms = Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
    return replace(describe_glm(config, fields), norms=norms)


def _with_rotary_default(config: ModelConfig, fields: Fields) -> ModelConfig:
    rope = fields.section("rope_parameters") or fields
    if "partial_rotary_factor" in fields or "partial_rotary_factor" in rope:
        return config
    return replace(config, rotary_dim=config.head_dim // 2)
