"""Qwen2 (bias on q, k, v), Qwen3 (norms on q and k), and their mixtures of experts."""

from dataclasses import replace

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families.windows import windows_by_kind
from mindserve.engine.native.models.spec import DecoderSpec, Experts


def describe_qwen2(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Bias on q, k and v."""
    return DecoderSpec(config=config, qkv_bias=fields.flag("qkv_bias", True), windows=_windows(config, fields))


def describe_qwen3(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Norms on each head of q and k."""
    bias = fields.flag("attention_bias", False)
    return DecoderSpec(
        config=config, normalises_qk=True, qkv_bias=bias, output_bias=bias, windows=_windows(config, fields)
    )


def _windows(config: ModelConfig, fields: Fields) -> tuple[int | None, ...]:
    """`layer_types` says which layers have the window; older files: those from `max_window_layers` on."""
    if config.sliding_window is None or not fields.flag("use_sliding_window", False):
        return ()
    first = fields.integer("max_window_layers", config.num_layers)
    later = (config.sliding_window if layer >= first else None for layer in range(config.num_layers))
    return windows_by_kind(config, fields) or tuple(later)


def describe_qwen2_moe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Qwen2 with experts, one of them shared and gated."""
    return replace(describe_qwen2(config, fields), experts=_experts(config, fields, has_shared=True))


def describe_qwen3_moe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Qwen3 with experts."""
    return replace(describe_qwen3(config, fields), experts=_experts(config, fields, has_shared=False))


def _experts(config: ModelConfig, fields: Fields, *, has_shared: bool) -> Experts:
    step = fields.positive("decoder_sparse_step", 1)
    dense = {layer for layer in range(config.num_layers) if (layer + 1) % step}
    return Experts(
        count=fields.positive("num_experts"),
        per_token=fields.positive("num_experts_per_tok"),
        intermediate_size=fields.positive("moe_intermediate_size"),
        renormalises=fields.flag("norm_topk_prob", False),
        shared_intermediate_size=fields.positive("shared_expert_intermediate_size") if has_shared else None,
        dense_layers=frozenset(dense.union(fields.integers("mlp_only_layers"))),
    )
