"""What stands between attention layers: a gated MLP, or a mixture of them."""

from mindserve.engine.native.models import ops
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.spec import Activation, DecoderSpec, Experts
from mindserve.engine.native.models.weights import Part, Weights


def feed_forward(x: Value, index: int, spec: DecoderSpec, weights: Weights) -> Value:
    """The branch of layer `index`."""
    prefix = f"model.layers.{index}.mlp."
    if spec.experts is not None and index not in spec.experts.dense_layers:
        return _mixture(x, prefix, spec, weights)
    return _gated_mlp(x, prefix, spec.config.intermediate_size, spec, weights)


def _gated_mlp(x: Value, prefix: str, size: int, spec: DecoderSpec, weights: Weights) -> Value:
    """down(act(gate(x)) * up(x)), gate and up in one product."""
    hidden = spec.config.hidden_size
    parts: list[Part] = [(prefix + "gate_proj", size), (prefix + "up_proj", size)]
    if prefix + "gate_up_proj.weight" in weights:
        parts = [(prefix + "gate_up_proj", 2 * size)]
    matrix = weights.matrix([(name + ".weight", rows) for name, rows in parts], hidden)
    bias = weights.bias([(name + ".bias", rows) for name, rows in parts]) if spec.mlp_bias else None
    gate, up = ops.split(ops.linear(x, matrix, bias, name=prefix + "gate_up_proj"), [size, size])
    down = weights.matrix([(prefix + "down_proj.weight", hidden)], size)
    bias = weights.bias([(prefix + "down_proj.bias", hidden)]) if spec.mlp_bias else None
    product = ops.multiply(_activated(gate, spec.activation), up)
    return ops.linear(product, down, bias, name=prefix + "down_proj")


def _activated(x: Value, activation: Activation) -> Value:
    """The gate's function."""
    return ops.silu(x) if activation is Activation.SILU else ops.gelu_tanh(x)


def _mixture(x: Value, prefix: str, spec: DecoderSpec, weights: Weights) -> Value:
    """The chosen experts' results, weighted, and the shared expert's."""
    experts, hidden = spec.experts, spec.config.hidden_size
    assert experts is not None
    rows = ops.reshape(x, [-1, hidden])
    shares = _shares(rows, prefix, spec, experts, weights)
    parts = [_expert(rows, shares, index, prefix, spec, weights) for index in range(experts.count)]
    tokens, results = (ops.concat(list(each), 0) for each in zip(*parts, strict=True))
    result = ops.reshape_like(ops.sum_rows(results, tokens, rows), x)
    if experts.shared_intermediate_size is None:
        return result
    shared = _gated_mlp(x, prefix + "shared_expert.", experts.shared_intermediate_size, spec, weights)
    gate = weights.plain_matrix(prefix + "shared_expert_gate.weight", 1, hidden)
    return ops.add(result, ops.multiply(shared, ops.sigmoid(ops.linear(x, gate))))


def _shares(rows: Value, prefix: str, spec: DecoderSpec, experts: Experts, weights: Weights) -> Value:
    """`[experts, tokens]` weight of each expert for each token, 0 for those not chosen."""
    router = weights.plain_matrix(prefix + "gate.weight", experts.count, spec.config.hidden_size)
    shares, chosen = ops.top(ops.softmax(ops.linear(rows, router)), experts.per_token)
    if experts.renormalises:
        shares = ops.divide(shares, ops.sum_over(shares, -1, True))
    return ops.transpose(ops.scatter_columns(shares, chosen, experts.count), [1, 0])


def _expert(
    rows: Value, shares: Value, index: int, prefix: str, spec: DecoderSpec, weights: Weights
) -> tuple[Value, Value]:
    """The tokens that chose expert `index`, `[n]`, and its weighted results for them, `[n, hidden]`. n may be 0."""
    experts, hidden = spec.experts, spec.config.hidden_size
    assert experts is not None
    size = experts.intermediate_size
    share = ops.gather_rows(shares, ops.ints(index))
    tokens = ops.nonzero(share)
    matrix = weights.expert_matrix(prefix, index, [("gate_proj", size), ("up_proj", size)], (experts.count, hidden))
    gate, up = ops.split(ops.linear(ops.gather_rows(rows, tokens), matrix), [size, size])
    down = weights.expert_matrix(prefix, index, [("down_proj", hidden)], (experts.count, size))
    result = ops.linear(ops.multiply(_activated(gate, spec.activation), up), down)
    return tokens, ops.multiply(result, ops.unsqueeze(ops.gather_rows(share, tokens), 1))
