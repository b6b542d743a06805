"""ChatGLM2/3 in plain numpy, written from the published description of its layers and from nothing of the engine.

One sequence, no cache, float64. Per layer: RMS norm, one matrix for q, k and v (one k and v for each group of heads),
rotary positions on the first half of each head between neighbouring dimensions, causal softmax, a dense matrix; RMS
norm, one matrix for gate and value, SiLU of the first half times the second, a dense matrix.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = Mapping[str, NDArray[Any]]


def random_model(config: Mapping[str, Any], seed: int) -> dict[str, NDArray[np.float32]]:
    """Tensors under the published names; norms are not 1, biases not 0."""
    random = np.random.default_rng(seed)
    hidden, ffn, head = config["hidden_size"], config["ffn_hidden_size"], config["kv_channels"]
    queries, keys = config["num_attention_heads"] * head, _groups(config) * head

    def matrix(rows: int, columns: int, gain: float = 1.5) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.2 * random.standard_normal(hidden)).astype(np.float32)

    vocabulary = config["padded_vocab_size"]
    tensors = {
        "transformer.embedding.word_embeddings.weight": matrix(vocabulary, hidden, gain=4.0),
        "transformer.rotary_pos_emb.inv_freq": np.zeros(head // 4, np.float32),
        "transformer.encoder.final_layernorm.weight": norm(),
        "transformer.output_layer.weight": matrix(vocabulary, hidden, gain=3.0),
    }
    for index in range(config["num_layers"]):
        prefix = f"transformer.encoder.layers.{index}."
        bias = 0.3 * random.standard_normal(queries + 2 * keys)
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "self_attention.query_key_value.weight": matrix(queries + 2 * keys, hidden),
            prefix + "self_attention.dense.weight": matrix(hidden, queries),
            prefix + "mlp.dense_h_to_4h.weight": matrix(2 * ffn, hidden),
            prefix + "mlp.dense_4h_to_h.weight": matrix(hidden, ffn),
        }
        if config["add_qkv_bias"]:
            tensors[prefix + "self_attention.query_key_value.bias"] = bias.astype(np.float32)
    return tensors


def logits(tensors: Tensors, config: Mapping[str, Any], ids: list[int]) -> Array:
    """`[tokens, padded_vocab_size]`"""
    x = tensors["transformer.embedding.word_embeddings.weight"][ids].astype(np.float64)
    for index in range(config["num_layers"]):
        layer = f"transformer.encoder.layers.{index}."
        x = x + _attention(_norm(x, tensors[layer + "input_layernorm.weight"], config), tensors, layer, config)
        x = x + _mlp(_norm(x, tensors[layer + "post_attention_layernorm.weight"], config), tensors, layer)
    x = _norm(x, tensors["transformer.encoder.final_layernorm.weight"], config)
    return x @ tensors["transformer.output_layer.weight"].T


def _groups(config: Mapping[str, Any]) -> int:
    return config["multi_query_group_num"] if config["multi_query_attention"] else config["num_attention_heads"]


def _norm(x: Array, weight: NDArray[Any], config: Mapping[str, Any]) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layernorm_epsilon"]) * weight


def _attention(x: Array, tensors: Tensors, layer: str, config: Mapping[str, Any]) -> Array:
    heads, head, groups = config["num_attention_heads"], config["kv_channels"], _groups(config)
    mixed = x @ tensors[layer + "self_attention.query_key_value.weight"].T
    mixed = mixed + tensors.get(layer + "self_attention.query_key_value.bias", 0.0)
    q, k, v = np.split(mixed, [heads * head, (heads + groups) * head], axis=-1)
    q, k, v = (part.reshape(len(x), -1, head) for part in (q, k, v))
    q, k = (_rotated(part, 10000.0 * config["rope_ratio"]) for part in (q, k))
    results = np.empty((len(x), heads, head))
    for number in range(heads):
        group = number // (heads // groups)
        scores = q[:, number] @ k[:, group].T / np.sqrt(head)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        results[:, number] = shares / shares.sum(-1, keepdims=True) @ v[:, group]
    return results.reshape(len(x), -1) @ tensors[layer + "self_attention.dense.weight"].T


def _rotated(x: Array, base: float) -> Array:
    """Pairs of neighbours in the first half of each head, as complex numbers."""
    tokens, _, head = x.shape
    half = head // 2
    turns = np.arange(tokens)[:, None] / base ** (np.arange(0, half, 2) / half)
    pairs = (x[..., 0:half:2] + 1j * x[..., 1:half:2]) * np.exp(1j * turns)[:, None]
    rotated = x.copy()
    rotated[..., 0:half:2], rotated[..., 1:half:2] = pairs.real, pairs.imag
    return rotated


def _mlp(x: Array, tensors: Tensors, layer: str) -> Array:
    gate, value = np.split(x @ tensors[layer + "mlp.dense_h_to_4h.weight"].T, 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * value) @ tensors[layer + "mlp.dense_4h_to_h.weight"].T
