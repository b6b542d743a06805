"""Sliding windows of families in which some layers have one and others see all."""

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig


def windows_by_kind(config: ModelConfig, fields: Fields) -> tuple[int | None, ...]:
    """As `layer_types` says; () where the configuration has none."""
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != config.num_layers:
        raise fields.wrong("layer_types", f"a list of one kind for each of {config.num_layers} layers")
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)
