"""One decoder layer as a graph: attention over the KV cache and an MLP, each added to the residual stream.

Shapes are `[batch, tokens, ...]` here. The paged transformation makes of it `[tokens, 1, ...]` over KV blocks; it
recognises attention by the pattern that `_attention` writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov

from mindserve.engine.native.models import ops, rope
from mindserve.engine.native.models.feed_forward import feed_forward
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.spec import DecoderSpec
from mindserve.engine.native.models.weights import Part, RowOrder, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Of every token's angles, `[batch, 1, tokens, head_dim]`."""

    cos: Value
    sin: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every layer shares."""

    spec: DecoderSpec
    weights: Weights
    rotations: Sequence[Rotation]
    """One for each layer."""
    mask: Value
    beams: Value
    sinks: list[ov.Node] = field(default_factory=list[ov.Node])
    """The nodes that store keys and values, filled as layers are built."""


def decoder_layer(x: Value, index: int, context: Context) -> Value:
    """`x` through layer `index`."""
    norms, prefix = context.spec.norms, f"model.layers.{index}."
    branch = _attention(_norm(x, prefix + norms.before_attention, context), index, context)
    if norms.after_attention:
        branch = _norm(branch, prefix + norms.after_attention, context)
    x = ops.add(x, branch)
    branch = feed_forward(_norm(x, prefix + norms.before_mlp, context), index, context.spec, context.weights)
    if norms.after_mlp:
        branch = _norm(branch, prefix + norms.after_mlp, context)
    return ops.add(x, branch)


def final_norm(x: Value, context: Context) -> Value:
    """Before the output head."""
    return _norm(x, "model.norm", context)


def _norm(x: Value, name: str, context: Context) -> Value:
    config = context.spec.config
    weight = context.weights.vector(name + ".weight", config.hidden_size, offset=context.spec.norm_offset)
    return ops.rms_normalise(x, weight, config.norm_epsilon)


def _attention(x: Value, index: int, context: Context) -> Value:
    config, prefix = context.spec.config, f"model.layers.{index}.self_attn."
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    query, key, value = ops.split(_projected(x, prefix, context), [query_size, kv_size, kv_size])
    query = _normalised(_heads(query, config.num_heads, config.head_dim), prefix + "q_norm.weight", context)
    key = _normalised(_heads(key, config.num_kv_heads, config.head_dim), prefix + "k_norm.weight", context)
    query, key = (_rotated(each, context.rotations[index]) for each in (query, key))
    value = _heads(value, config.num_kv_heads, config.head_dim)
    key, value = _cached(key, index, "key", context), _cached(value, index, "value", context)
    mixed = ops.attention(query, key, value, context.mask, scale=context.spec.attention_scale or config.head_dim**-0.5)
    mixed = ops.reshape(ops.transpose(mixed, [0, 2, 1, 3]), [0, 0, query_size])
    output = context.weights.matrix([(prefix + "o_proj.weight", config.hidden_size)], query_size)
    bias = context.weights.bias([(prefix + "o_proj.bias", config.hidden_size)]) if context.spec.output_bias else None
    return ops.linear(mixed, output, bias, name=prefix + "o_proj")


def _projected(x: Value, prefix: str, context: Context) -> Value:
    """q, k and v in one product."""
    spec, weights = context.spec, context.weights
    kv_size = spec.config.num_kv_heads * spec.config.head_dim
    sizes = (spec.config.num_heads * spec.config.head_dim, kv_size, kv_size)
    names = [prefix + name for name in ("q_proj", "k_proj", "v_proj")]
    parts: list[Part] = list(zip(names, sizes, strict=True))
    if prefix + "qkv_proj.weight" in weights:
        parts = [(prefix + "qkv_proj", sum(sizes))]
    order = qkv_row_order(spec)
    matrix = weights.matrix([(name + ".weight", rows) for name, rows in parts], spec.config.hidden_size, order)
    bias = weights.bias([(name + ".bias", rows) for name, rows in parts], order) if spec.qkv_bias else None
    return ops.linear(x, matrix, bias, name=prefix + "qkv_proj")


def qkv_row_order(spec: DecoderSpec) -> RowOrder:
    """Rows of the joined q, k, v matrix as the graph has them; None: as the checkpoint has them."""
    config = spec.config
    order = rope.head_order(config.head_dim, config.rotary_dim, is_interleaved=spec.is_rotary_interleaved)
    if (order == np.arange(config.head_dim)).all():
        return None
    rotated = config.num_heads + config.num_kv_heads
    rows = np.arange(rotated)[:, None] * config.head_dim + order
    still = rotated * config.head_dim + np.arange(config.num_kv_heads * config.head_dim)
    return np.concatenate([rows.reshape(-1), still])


def _heads(x: Value, heads: int, head_dim: int) -> Value:
    """`[batch, heads, tokens, head_dim]`"""
    return ops.transpose(ops.reshape(x, [0, 0, heads, head_dim]), [0, 2, 1, 3])


def _normalised(x: Value, name: str, context: Context) -> Value:
    """Each head, where the family does so."""
    spec = context.spec
    if not spec.normalises_qk:
        return x
    weight = context.weights.vector(name, spec.config.head_dim, offset=spec.norm_offset)
    return ops.rms_normalise(x, weight, spec.config.norm_epsilon)


def _rotated(x: Value, rotation: Rotation) -> Value:
    """By position."""
    head_dim = x.partial_shape[3].get_length()
    first, second = ops.slice_axis(x, 3, 0, head_dim // 2), ops.slice_axis(x, 3, head_dim // 2, head_dim)
    turned = ops.concat([ops.multiply(second, ops.floats(-1.0)), first], -1)
    return ops.add(ops.multiply(x, rotation.cos), ops.multiply(turned, rotation.sin))


def _cached(new: Value, index: int, role: str, context: Context) -> Value:
    """All keys or values so far, one per query head."""
    config = context.spec.config
    name = f"past_key_values.{index}.{role}present.{index}.{role}"
    joined, sink = ops.cached(new, name, context.beams, heads=config.num_kv_heads, head_dim=config.head_dim)
    context.sinks.append(sink)
    repeats = config.num_heads // config.num_kv_heads
    if repeats == 1:
        return joined
    batch, tokens = ops.sizes(joined, [0]), ops.sizes(joined, [2])
    shape = [batch, *(ops.ints([size]) for size in (config.num_kv_heads, repeats)), tokens, ops.ints([config.head_dim])]
    repeated = ops.broadcast(ops.unsqueeze(joined, 2), ops.concat(shape, 0))
    return ops.reshape(repeated, [0, config.num_heads, -1, config.head_dim])
