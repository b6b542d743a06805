"""Which tiny models there are: their config.json, in the words of published ones, and how long their prompts are."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to make one folder."""

    config: dict[str, Any]
    prompt_lengths: tuple[int, ...] = (7, 19, 45, 90)
    short_prompt_lengths: tuple[int, ...] = ()
    """Prompts that stay within the original context, where longer ones change the rotary frequencies of all."""
    embedding_deviation: float = 0.5


_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LLAMA = {**_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 16}
_QWEN2 = {**_SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}
_PHI3 = {**_SIZES, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}

FAMILIES = {
    "phi3": Family(
        config={
            **_PHI3,
            "sliding_window": None,
            "max_position_embeddings": 192,
            "original_max_position_embeddings": 48,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
                "long_factor": [1.0, 1.7, 2.6, 4.1, 6.5, 9.8],
            },
        },
        prompt_lengths=(50, 61, 77, 90),
        short_prompt_lengths=(5, 13, 24),
    ),
    "phi3-partial": Family(
        config={
            **_PHI3,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "partial_rotary_factor": 0.75,
            "sliding_window": 20,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": Family(
        config={
            **_SIZES,
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "head_dim": 16,
            "num_key_value_heads": 1,
            "num_hidden_layers": 5,
            "sliding_window": 12,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "final_logit_softcapping": 12.0,
            "attn_logit_softcapping": None,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        embedding_deviation=0.2,
    ),
    "llama-linear": Family(config={**_LLAMA, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    "llama-dynamic": Family(
        config={**_LLAMA, "max_position_embeddings": 128, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    ),
    "llama-yarn": Family(
        config={
            **_LLAMA,
            "max_position_embeddings": 512,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
        }
    ),
    "qwen2-yarn": Family(
        config={
            **_QWEN2,
            "max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        }
    ),
}
