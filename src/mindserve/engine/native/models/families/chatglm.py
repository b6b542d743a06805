"""ChatGLM2, ChatGLM3 and GLM-4-9B as first published: the layers of `glm` under names of their own."""

from dataclasses import replace

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig
from mindserve.engine.native.models.spec import DecoderSpec, Family
from mindserve.errors import ModelLoadError

UNSUPPORTED = {
    "add_bias_linear": False,
    "rmsnorm": True,
    "post_layer_norm": True,
    "apply_residual_connection_post_layernorm": False,
}
"""What the graph takes for granted, and published models agree in."""

CHATGLM3_VOCABULARY_SIZE = 65024
CHATGLM3_END_TOKENS = {64795, 64797}
"""`<|user|>` and `<|observation|>`: its own code ends an answer there, its configuration names only `</s>`. ChatGLM2
has the same vocabulary and leaves these two unused."""


def describe(config: ModelConfig, fields: Fields) -> DecoderSpec:
    """Half of each head rotates, between neighbours; `rope_ratio` stretches the base."""
    _refuse_variants(fields)
    groups = config.num_kv_heads if fields.flag("multi_query_attention", False) else config.num_heads
    theta = config.rope_theta * fields.number("rope_ratio", 1.0)
    ends = CHATGLM3_END_TOKENS if config.vocab_size == CHATGLM3_VOCABULARY_SIZE else set[int]()
    config = replace(
        config,
        num_kv_heads=groups,
        rotary_dim=config.head_dim // 2,
        rope_theta=theta,
        eos_token_ids=config.eos_token_ids | ends,
    )
    return DecoderSpec(config=config, is_rotary_interleaved=True, qkv_bias=fields.flag("add_qkv_bias", False))


def _refuse_variants(fields: Fields) -> None:
    for key, expected in UNSUPPORTED.items():
        if fields.flag(key, expected) is not expected:
            raise ModelLoadError(f"{fields.source}: {key} should be {str(expected).lower()}")
    if fields.integer("quantization_bit", 0):
        raise ModelLoadError(f"{fields.source}: quantization_bit is not supported: use the plain weights")


FAMILY = Family(
    describe=describe,
    config_keys={
        "num_hidden_layers": "num_layers",
        "intermediate_size": "ffn_hidden_size",
        "num_key_value_heads": "multi_query_group_num",
        "head_dim": "kv_channels",
        "vocab_size": "padded_vocab_size",
        "max_position_embeddings": "seq_length",
        "rms_norm_eps": "layernorm_epsilon",
    },
    tensor_names={
        "model.embed_tokens.": "transformer.embedding.word_embeddings.",
        "model.layers.": "transformer.encoder.layers.",
        "model.norm.": "transformer.encoder.final_layernorm.",
        "lm_head.": "transformer.output_layer.",
        ".self_attn.qkv_proj.": ".self_attention.query_key_value.",
        ".self_attn.o_proj.": ".self_attention.dense.",
        ".mlp.gate_up_proj.": ".mlp.dense_h_to_4h.",
        ".mlp.down_proj.": ".mlp.dense_4h_to_h.",
    },
)
