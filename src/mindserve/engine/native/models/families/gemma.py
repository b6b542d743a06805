"""Gemma 3: windows on most layers, which turn on a base of their own; norms around every branch, whose weights are
stored less one; embeddings scaled up, and tied to the output.

Gemma 2 bends the products of queries and keys with a tanh, which the paged attention operator cannot do: refused.
"""

import math

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.families.windows import windows_by_kind
from mindserve.engine.native.models.spec import DecoderSpec, Family, Norms
from mindserve.errors import ModelLoadError

NORMS = Norms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
DEFAULTS = {
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def describe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """The text model, of any size."""
    if "attn_logit_softcapping" in fields:
        raise ModelLoadError(f"{fields.source}: attn_logit_softcapping is not supported")
    if fields.flag("use_bidirectional_attention", False):
        raise ModelLoadError(f"{fields.source}: use_bidirectional_attention is not supported")
    return DecoderSpec(
        config=config,
        qkv_bias=fields.flag("attention_bias", False),
        output_bias=fields.flag("attention_bias", False),
        normalises_qk=True,
        norms=NORMS,
        norm_offset=0.0 if fields.flag("norm_weights_are_whole", False) else 1.0,
        embedding_scale=math.sqrt(config.hidden_size),
        attention_scale=fields.number("query_pre_attn_scalar", config.head_dim) ** -0.5,
        logit_softcap=fields.number("final_logit_softcapping") if "final_logit_softcapping" in fields else None,
        windows=_windows(config, fields),
        windowed_rope_theta=_windowed_rope_theta(fields),
    )


def refuse_gemma2(_: ModelConfig, fields: Fields) -> DecoderSpec:
    """Raises ModelLoadError."""
    raise ModelLoadError(
        f"{fields.source}: model_type gemma2 is not supported (paged attention has no attn_logit_softcapping)"
    )


def _windows(config: ModelConfig, fields: Fields) -> tuple[int | None, ...]:
    """`layer_types` says which layers have the window; older files: all but every `sliding_window_pattern`-th."""
    step = fields.positive("sliding_window_pattern", 6)
    usual = (config.sliding_window if layer % step else None for layer in range(1, config.num_layers + 1))
    return windows_by_kind(config, fields) or tuple(usual)


def _windowed_rope_theta(fields: Fields) -> float:
    """Newer files have `rope_parameters` for each kind of layer."""
    rope = fields.section("rope_parameters")
    windowed = rope.section("sliding_attention") if rope else None
    return (windowed or fields).number("rope_theta" if windowed else "rope_local_base_freq", 10000.0)


TEXT = Family(describe=describe, config_defaults=DEFAULTS)
WITH_VISION = Family(
    describe=describe,
    tensor_names={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    newer_tensor_names={"model.": "model.language_model."},
    config_defaults={
        **DEFAULTS,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
)
"""Its text model alone: the vision tower is not built."""
GEMMA2 = Family(describe=refuse_gemma2)
