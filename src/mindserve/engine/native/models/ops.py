"""The operators that model graphs are made of: a typed face on OpenVINO's untyped opset."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15
from openvino.op.util import Variable, VariableInfo

from mindserve.engine.native.models.quantised import Quantised, pack_nibbles

Value = ov.Output
"""One output of a node: what operators take and give."""

opset: Any = opset15


def parameter(name: str, shape: Sequence[int], dtype: Any) -> ov.Node:
    """A graph input; -1 is a dimension that varies."""
    node = opset.parameter(list(shape), dtype, name=name)
    node.output(0).set_names({name})
    return node


def result(value: Value, name: str) -> ov.Node:
    """A graph output."""
    node = opset.result(value)
    value.set_names({name})
    return node


def model(results: Sequence[ov.Node], sinks: Sequence[ov.Node], inputs: Sequence[ov.Node], name: str) -> ov.Model:
    """The whole graph."""
    build: Any = ov.Model
    return build(list(results), list(sinks), list(inputs), name)


def add_inputs(graph: ov.Model, inputs: Sequence[ov.Node]) -> None:
    """Make nodes that other nodes use already inputs of the graph."""
    graph.add_parameters(list(inputs))
    graph.validate_nodes_and_infer_types()


def constant(array: NDArray[np.generic]) -> Value:
    """Shares the array's memory where it may be written to (OpenVINO's condition), else copies (mapped files)."""
    return _out(opset.constant(np.ascontiguousarray(array), shared_memory=array.flags.writeable))


def floats(values: Any) -> Value:
    """A small f32 constant."""
    return _out(opset.constant(np.asarray(values, np.float32)))


def ints(values: Any) -> Value:
    """A small int64 constant: shapes, axes, sizes."""
    return _out(opset.constant(np.asarray(values, np.int64)))


def dequantised(matrix: Quantised) -> Value:
    """The f32 matrix that `matrix` stands for, in the pattern that the CPU plugin keeps compressed: convert, subtract,
    multiply, reshape. Good for `linear` and `gather`."""
    *lead, columns = matrix.shape
    is_grouped = matrix.group != columns
    grouped = [*lead, columns // matrix.group, matrix.group] if is_grouped else [*lead, columns]
    per_group = [*lead, columns // matrix.group, 1] if is_grouped else [*lead, 1]
    codes = _u4(matrix.codes.view(np.uint8), grouped) if matrix.bits == 4 else constant(matrix.codes.reshape(grouped))
    value = _convert(codes)
    if not isinstance(matrix.zeros, int) or matrix.zeros:
        value = opset.subtract(value, _zero_point(matrix, per_group))
    value = opset.multiply(value, _convert(constant(matrix.scales.reshape(per_group))))
    return _out(opset.reshape(value, ints([*lead, columns]), False) if is_grouped else value)


def half_precision(matrix: NDArray[np.float16]) -> Value:
    """An f16 matrix as f32, kept in f16."""
    return _out(_convert(constant(matrix)))


def gather_rows(table: Value, rows: Value) -> Value:
    """`table[rows]`."""
    return _out(opset.gather(table, rows, ints(0)))


def gather_columns(table: Value, columns: Value) -> Value:
    """`table[:, columns]`."""
    return _out(opset.gather(table, columns, ints(1)))


def choose(condition: Value, chosen: Value, other: Value) -> Value:
    """`chosen` where `condition` holds, elsewhere `other`."""
    return _out(opset.select(condition, chosen, other))


def linear(x: Value, weight: Value, bias: Value | None = None, *, name: str | None = None) -> Value:
    """`x @ weight.T + bias`; the product's node can be found by `name` later (adapters)."""
    product = opset.matmul(x, weight, False, True)
    if name is not None:
        product.set_friendly_name(name)
    return _out(product if bias is None else opset.add(product, bias))


def matmul(left: Value, right: Value) -> Value:
    """`left @ right`."""
    return _out(opset.matmul(left, right, False, False))


def add(left: Value, right: Value) -> Value:
    """Elementwise."""
    return _out(opset.add(left, right))


def multiply(left: Value, right: Value) -> Value:
    """Elementwise."""
    return _out(opset.multiply(left, right))


def divide(left: Value, right: Value) -> Value:
    """Elementwise."""
    return _out(opset.divide(left, right))


def rms_normalise(x: Value, weight: Value, epsilon: float) -> Value:
    """Over the last axis, in the pattern that becomes one kernel."""
    mean = opset.reduce_mean(opset.power(x, floats(2.0)), ints([-1]), True)
    scale = opset.divide(floats(1.0), opset.sqrt(opset.add(mean, floats(epsilon))))
    return _out(opset.multiply(opset.multiply(scale, x), weight))


def normalise(x: Value, weight: Value, bias: Value, epsilon: float) -> Value:
    """Over the last axis: mean 0, variance 1, then scaled and moved."""
    centred = opset.mvn(x, ints([-1]), True, epsilon, "inside_sqrt")
    return _out(opset.add(opset.multiply(centred, weight), bias))


def split(x: Value, sizes: Sequence[int]) -> list[Value]:
    """Along the last axis."""
    if len(sizes) == 1:
        return [x]
    return list(opset.variadic_split(x, ints(-1), ints(list(sizes))).outputs())


def halves(x: Value, axis: int) -> list[Value]:
    """Two equal parts."""
    return list(opset.split(x, ints(axis), 2).outputs())


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """0 keeps a dimension, -1 is what is left."""
    return _out(opset.reshape(x, ints(list(shape)), True))


def transpose(x: Value, order: Sequence[int]) -> Value:
    """Reorder axes."""
    return _out(opset.transpose(x, ints(list(order))))


def unsqueeze(x: Value, axis: int) -> Value:
    """A new axis of one."""
    return _out(opset.unsqueeze(x, ints(axis)))


def concat(values: Sequence[Value], axis: int) -> Value:
    """Join."""
    return _out(opset.concat(list(values), axis))


def slice_axis(x: Value, axis: int, start: int, stop: int) -> Value:
    """`x[..., start:stop]` on one axis."""
    return _out(opset.slice(x, ints([start]), ints([stop]), ints([1]), ints([axis])))


def sizes(x: Value, axes: Sequence[int]) -> Value:
    """Sizes of some axes as a vector."""
    return _out(opset.gather(opset.shape_of(x), ints(list(axes)), ints(0)))


def head_of(x: Value, axis: int, count: Value) -> Value:
    """The first `count` (a vector of one) on one axis."""
    return _out(opset.slice(x, ints([0]), count, ints([1]), ints([axis])))


def reshape_to(x: Value, shape: Value) -> Value:
    """In a computed shape."""
    return _out(opset.reshape(x, shape, False))


def mean_over(x: Value, axis: int) -> Value:
    """Along one axis, which goes."""
    return _out(opset.reduce_mean(x, ints([axis]), False))


def convolve(x: Value, kernel: Value, bias: Value, *, stride: int) -> Value:
    """`[batch, channels, width]` with kernels `[out, channels, 3]`, padded by one on both sides."""
    product = opset.convolution(x, kernel, [stride], [1], [1], [1])
    return _out(opset.add(product, opset.reshape(bias, ints([1, -1, 1]), False)))


def broadcast(x: Value, shape: Value) -> Value:
    """Bidirectional."""
    return _out(opset.broadcast(x, shape, "bidirectional"))


def to_float(x: Value) -> Value:
    """As f32."""
    return _out(_convert(x))


def cos_sin(angles: Value) -> tuple[Value, Value]:
    """Both."""
    return _out(opset.cos(angles)), _out(opset.sin(angles))


def softcapped(x: Value, cap: float) -> Value:
    """cap * tanh(x / cap)."""
    return _out(opset.multiply(opset.tanh(opset.multiply(x, floats(1 / cap))), floats(cap)))


def silu(x: Value) -> Value:
    """x * sigmoid(x)."""
    return _out(opset.swish(x))


def gelu_tanh(x: Value) -> Value:
    """The tanh approximation."""
    return _out(opset.gelu(x, "tanh"))


def gelu(x: Value) -> Value:
    """x times the normal distribution up to x, exactly."""
    return _out(opset.gelu(x, "erf"))


def gelu_quick(x: Value) -> Value:
    """x * sigmoid(1.702 x)."""
    return _out(opset.swish(x, floats(1.702)))


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return _out(opset.sigmoid(x))


def softmax(x: Value) -> Value:
    """Over the last axis."""
    return _out(opset.softmax(x, -1))


def top(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest on the last axis: values and int64 indices, best first."""
    node = opset.topk(x, ints(k), -1, "max", "value", index_element_type="i64")
    return node.output(0), node.output(1)


def sum_over(x: Value, axis: int, keep: bool) -> Value:
    """Along one axis."""
    return _out(opset.reduce_sum(x, ints([axis]), keep))


def reshape_like(x: Value, other: Value) -> Value:
    """In the shape of `other`."""
    return _out(opset.reshape(x, opset.shape_of(other), False))


def scatter_columns(values: Value, columns: Value, width: int) -> Value:
    """`[rows, width]` zeros with `values` `[rows, k]` at `columns` `[rows, k]`."""
    zeros = broadcast(floats(0.0), concat([sizes(values, [0]), ints([width])], 0))
    return _out(opset.scatter_elements_update(zeros, columns, values, ints(1)))


def nonzero(vector: Value) -> Value:
    """Indices of what is not 0, int64."""
    return reshape(_out(opset.non_zero(vector, "i64")), [-1])


def sum_rows(values: Value, targets: Value, like: Value) -> Value:
    """Zeros in the shape of `like`, plus each row of `values` at its target row."""
    zeros = broadcast(floats(0.0), _out(opset.shape_of(like)))
    return _out(opset.scatter_nd_update(zeros, unsqueeze(targets, 1), values, "sum"))


def attention(query: Value, key: Value, value: Value, mask: Value, *, scale: float) -> Value:
    """Scaled dot products over `[batch, heads, tokens, head_dim]`."""
    node = opset.scaled_dot_product_attention(query, key, value, mask, floats(scale), causal=False)
    return _out(node)


def plain_attention(query: Value, key: Value, value: Value, mask: Value | None = None) -> Value:
    """As `attention`, without a cache: every query sees every key, but for what `mask` adds to their products."""
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    return _out(opset.scaled_dot_product_attention(*inputs, causal=False))


def cached(new: Value, name: str, beams: Value, *, heads: int, head_dim: int) -> tuple[Value, ov.Node]:
    """`new` appended (axis 2) to what the variable `name` holds; and the node that stores the result."""
    info = VariableInfo()
    info.data_shape = ov.PartialShape([-1, heads, -1, head_dim])
    info.data_type = ov.Type.f32
    info.variable_id = name
    variable = Variable(info)
    shape = concat([sizes(new, [0]), ints([heads]), ints([0]), ints([head_dim])], 0)
    past = opset.read_value(opset.broadcast(floats(0.0), shape), variable)
    joined = opset.concat([opset.gather(past, beams, ints(0)), new], 2)
    return _out(joined), opset.assign(joined, variable)


def _zero_point(matrix: Quantised, shape: list[int]) -> Any:
    """What is subtracted, as f32: whole zeros in the type of the codes, fractional ones as they are."""
    if isinstance(matrix.zeros, int):
        zeros = np.full([1] * len(shape), matrix.zeros, np.uint8)
        return _convert(_u4(pack_nibbles(np.resize(zeros, 2)), zeros.shape) if matrix.bits == 4 else constant(zeros))
    if matrix.zeros.dtype == np.float32:
        return constant(matrix.zeros.reshape(shape))
    return _convert(constant(matrix.zeros.reshape(shape)))


def _u4(packed: NDArray[np.uint8], shape: Sequence[int]) -> Value:
    # A u4 constant does not keep the array alive whose memory it shares: this one is copied.
    tensor = ov.Tensor(np.ascontiguousarray(packed).reshape(-1), ov.Shape(list(shape)), ov.Type.u4)
    return _out(opset.constant(tensor, shared_memory=False))


def _convert(x: Any) -> Any:
    return opset.convert(x, "f32")


def _out(node: Any) -> Value:
    return cast("ov.Node", node).output(0)
