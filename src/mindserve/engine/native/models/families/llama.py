"""Llama 1 to 3.x and the many models that share its layers."""

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.spec import DecoderSpec


def describe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Biases on all attention projections or none."""
    has_bias = fields.flag("attention_bias", False)
    return DecoderSpec(config=config, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=fields.flag("mlp_bias", False))
