"""Phi-3 and Phi-4: Llama with fused projections; a sliding window on every layer, often longer than the context."""

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.spec import DecoderSpec


def describe(config: ModelConfig, _: Fields) -> DecoderSpec:
    """No biases."""
    return DecoderSpec(config=config, windows=(config.sliding_window,) * config.num_layers)
