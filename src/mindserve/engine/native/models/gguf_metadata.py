"""GGUF metadata in the shape of config.json, and GGUF tensor names in Hugging Face terms: tables and little else."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from mindserve.errors import ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What `general.architecture` implies beyond the metadata."""

    model_type: str
    permutes_rotary_rows: bool = False
    """Rows of q and k are stored so that rotary pairs are neighbours (llama and what is converted like it)."""
    layer_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the tensors of a layer differ from LAYER_NAMES."""
    extra_config: Mapping[str, object] = field(default_factory=dict[str, object])
    """What llama.cpp has in code and the Hugging Face layout in config.json."""
    config_by_layers: Mapping[int, Mapping[str, object]] = field(default_factory=dict[int, Mapping[str, object]])
    """The same where it depends on the model's size, which the number of layers tells."""


_POST_NORMS = {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

ARCHITECTURES = {
    "llama": Architecture(model_type="llama", permutes_rotary_rows=True),
    "mistral": Architecture(model_type="mistral", permutes_rotary_rows=True),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen2vl": Architecture(model_type="qwen2_vl"),
    "qwen2moe": Architecture(model_type="qwen2_moe", extra_config={"norm_topk_prob": False}),
    "qwen3moe": Architecture(model_type="qwen3_moe", extra_config={"norm_topk_prob": True}),
    "chatglm": Architecture(model_type="glm"),
    "glm4": Architecture(model_type="glm4", layer_names=_POST_NORMS),
    "phi3": Architecture(model_type="phi3"),
    "gemma3": Architecture(
        model_type="gemma3_text",
        layer_names=_GEMMA_NORMS,
        extra_config={"norm_weights_are_whole": True, "hidden_activation": "gelu_pytorch_tanh"},
        config_by_layers={62: {"query_pre_attn_scalar": 168}},
    ),
}

CONFIG_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}

SCALING_KEYS = {
    "rope.dimension_sections": "mrope_section",
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}

END_TOKEN_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))

END_TOKEN_TEXTS = frozenset(
    [
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<|user|>",
        "<|observation|>",
    ]
)
"""Control tokens that end an answer; files often name only one of them."""

CONTROL_TOKEN = 3
"""Its number in `tokenizer.ggml.token_type`."""

GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def architecture_of(metadata: Mapping[str, object], source: str) -> Architecture:
    """Raises ModelLoadError for one that is not supported."""
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelLoadError(f"{source}: architecture {str(name)[:40]} is not supported (supported: {known})")
    return ARCHITECTURES[str(name)]


def hf_names(names: Collection[str], architecture: Architecture) -> dict[str, str]:
    """Hugging Face name -> GGUF name; those without a counterpart keep theirs."""
    table = {**LAYER_NAMES, **architecture.layer_names}
    if "blk.0.ffn_gate.weight" not in names and "blk.0.ffn_gate_exps.weight" not in names:
        table["ffn_up"] = "mlp.gate_up_proj"
    return {_hf_name(name, table): name for name in names}


def _hf_name(name: str, layer_names: Mapping[str, str]) -> str:
    match = _LAYER.fullmatch(name)
    if match:
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{layer_names.get(part, part)}.{kind}"
    stem, _, kind = name.rpartition(".")
    return f"{GLOBAL_NAMES.get(stem, stem)}.{kind}"


def hf_config(
    metadata: Mapping[str, object], architecture: Architecture, *, is_longrope: bool = False
) -> dict[str, object]:
    """What config.json would say, as far as the metadata tell; tensors tell the rest (`gguf_checkpoint`)."""
    prefix = f"{metadata['general.architecture']}."
    config = {hf: metadata[prefix + key] for key, hf in CONFIG_KEYS.items() if prefix + key in metadata}
    config["rope_scaling"] = _rope_scaling(metadata, prefix) | ({"rope_type": "longrope"} if is_longrope else {})
    rotary, hidden, heads = (
        metadata.get(prefix + key) for key in ("rope.dimension_count", "embedding_length", "attention.head_count")
    )
    if isinstance(rotary, int) and isinstance(hidden, int) and isinstance(heads, int) and heads:
        head_dim = metadata.get(prefix + "attention.key_length", hidden // heads)
        config["partial_rotary_factor"] = rotary / head_dim if isinstance(head_dim, int) and head_dim else 1.0
    if "general.sampling.top_k" in metadata:
        config["top_k"] = metadata["general.sampling.top_k"]
    config["eos_token_id"] = end_token_ids(metadata)
    by_layers = architecture.config_by_layers.get(cast("int", config.get("num_hidden_layers")), {})
    return {**config, **architecture.extra_config, **by_layers, "model_type": architecture.model_type}


def _rope_scaling(metadata: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Yarn's `attn_factor` multiplies what the kind prescribes; elsewhere it is the whole factor, as in config.json."""
    scaling = {hf: metadata[prefix + key] for key, hf in SCALING_KEYS.items() if prefix + key in metadata}
    if scaling.get("rope_type", "none") == "none":
        scaling["rope_type"] = "default"
    if scaling["rope_type"] == "yarn":
        scaling.pop("attention_factor", None)
    return scaling


def end_token_ids(metadata: Mapping[str, object]) -> list[int]:
    """The named end tokens and the control tokens known as such."""
    named = {value for key in END_TOKEN_KEYS if isinstance(value := metadata.get(key), int)}
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        pairs = zip(cast("list[object]", tokens), cast("list[object]", types), strict=False)
        named |= {i for i, (text, kind) in enumerate(pairs) if kind == CONTROL_TOKEN and text in END_TOKEN_TEXTS}
    return sorted(named)
