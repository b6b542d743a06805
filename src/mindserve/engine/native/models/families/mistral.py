"""Mistral: Llama with a sliding window on every layer (in its early versions)."""

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.spec import DecoderSpec


def describe(config: ModelConfig, _: Fields) -> DecoderSpec:
    """`sliding_window: null` means full attention."""
    return DecoderSpec(config=config, windows=(config.sliding_window,) * config.num_layers)
