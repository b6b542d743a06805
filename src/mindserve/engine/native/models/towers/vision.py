"""The vision tower as a graph: the patches of one image, or of one time step of a video, become tokens.

Patches come in the order in which `merge_size` squared neighbours follow each other. Attention never crosses time
steps, so a video is its steps one after the other.
"""

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.models import ops
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.towers.spec import TowerActivation, VisionSpec
from mindserve.engine.native.models.weights import Weights

ACTIVATIONS = {
    TowerActivation.GELU: ops.gelu,
    TowerActivation.GELU_QUICK: ops.gelu_quick,
    TowerActivation.SILU: ops.silu,
}


class VisionGraph:
    """Builds the graph once.

    Inputs: `pixels` `[P, patch_values]`, `cos` and `sin` `[P, head_dim]`; with windows also `window_rows` `[W, S]`,
    `window_mask` `[W, 1, 1, S]` and `window_places` `[P]` (see `grid`). Output `[P / merge_size ** 2, output_size]`.
    """

    def __init__(self, spec: VisionSpec, weights: Weights) -> None:
        self._spec, self._weights = spec, weights
        self._inputs: dict[str, ov.Node] = {}

    def build(self) -> ov.Model:
        """Raises ModelLoadError."""
        spec = self._spec
        pixels = self._input("pixels", [-1, spec.patch_values])
        rotary = [-1, spec.head_dim]
        self._cos, self._sin = self._input("cos", rotary), self._input("sin", rotary)
        if spec.window is not None:
            size = spec.window**2
            self._rows = self._input("window_rows", [-1, size], np.int64)
            self._mask = self._input("window_mask", [-1, 1, 1, size])
            self._places = self._input("window_places", [-1], np.int64)
        x = ops.linear(pixels, ops.constant(self._patch_kernel()))
        for layer in range(spec.depth):
            x = self._block(x, layer)
        result = ops.result(self._merged(x), "tokens")
        return ops.model([result], [], list(self._inputs.values()), "vision")

    def _input(self, name: str, shape: list[int], dtype: Any = np.float32) -> Value:
        self._inputs[name] = ops.parameter(name, shape, dtype)
        return self._inputs[name].output(0)

    def _patch_kernel(self) -> NDArray[np.float32]:
        spec = self._spec
        shape = (spec.hidden_size, spec.channels, spec.temporal_patch_size, spec.patch_size, spec.patch_size)
        kernel = self._weights.array("visual.patch_embed.proj.weight", *shape)
        return kernel.reshape(spec.hidden_size, spec.patch_values)

    def _block(self, x: Value, layer: int) -> Value:
        prefix = f"visual.blocks.{layer}."
        x = ops.add(x, self._attention(self._norm(x, prefix + "norm1"), layer, prefix + "attn."))
        return ops.add(x, self._mlp(self._norm(x, prefix + "norm2"), prefix + "mlp."))

    def _norm(self, x: Value, name: str) -> Value:
        spec = self._spec
        weight = self._weights.vector(name + ".weight", spec.hidden_size)
        if spec.is_gated:
            return ops.rms_normalise(x, weight, spec.norm_epsilon)
        return ops.normalise(x, weight, self._weights.vector(name + ".bias", spec.hidden_size), spec.norm_epsilon)

    def _linear(self, x: Value, names: list[str], rows: int, columns: int) -> Value:
        """One product for several matrices of `rows` rows each."""
        matrix = self._weights.matrix([(name + ".weight", rows) for name in names], columns)
        bias = self._weights.bias([(name + ".bias", rows) for name in names])
        return ops.linear(x, matrix, bias)

    def _attention(self, x: Value, layer: int, prefix: str) -> Value:
        size = self._spec.hidden_size
        if prefix + "qkv.weight" in self._weights:
            joined = self._linear(x, [prefix + "qkv"], 3 * size, size)
        else:
            joined = self._linear(x, [prefix + name for name in ("q", "k", "v")], size, size)
        query, key, value = (self._heads(part) for part in ops.split(joined, [size, size, size]))
        query, key = self._rotated(query), self._rotated(key)
        mix = self._mixed_in_windows if self._spec.has_windows(layer) else self._mixed
        return self._linear(mix(query, key, value), [prefix + "proj"], size, size)

    def _heads(self, x: Value) -> Value:
        """`[P, heads, head_dim]`"""
        return ops.reshape(x, [-1, self._spec.num_heads, self._spec.head_dim])

    def _rotated(self, x: Value) -> Value:
        half, whole = self._spec.head_dim // 2, self._spec.head_dim
        first, second = ops.slice_axis(x, 2, 0, half), ops.slice_axis(x, 2, half, whole)
        turned = ops.concat([ops.multiply(second, ops.floats(-1.0)), first], 2)
        cos, sin = ops.unsqueeze(self._cos, 1), ops.unsqueeze(self._sin, 1)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def _mixed(self, query: Value, key: Value, value: Value) -> Value:
        """Every patch of the frame sees every other; `[P, hidden]`."""
        query, key, value = (ops.unsqueeze(ops.transpose(each, [1, 0, 2]), 0) for each in (query, key, value))
        mixed = ops.plain_attention(query, key, value)
        return ops.reshape(ops.transpose(mixed, [0, 2, 1, 3]), [-1, self._spec.hidden_size])

    def _mixed_in_windows(self, query: Value, key: Value, value: Value) -> Value:
        """Patches are brought together window by window, and back to their places afterwards."""
        query, key, value = (
            ops.transpose(ops.gather_rows(each, self._rows), [0, 2, 1, 3]) for each in (query, key, value)
        )
        mixed = ops.plain_attention(query, key, value, self._mask)
        rows = ops.reshape(ops.transpose(mixed, [0, 2, 1, 3]), [-1, self._spec.hidden_size])
        return ops.gather_rows(rows, self._places)

    def _mlp(self, x: Value, prefix: str) -> Value:
        spec, activated = self._spec, ACTIVATIONS[self._spec.activation]
        if not spec.is_gated:
            inner = activated(self._linear(x, [prefix + "fc1"], spec.intermediate_size, spec.hidden_size))
            return self._linear(inner, [prefix + "fc2"], spec.hidden_size, spec.intermediate_size)
        names = [prefix + "gate_proj", prefix + "up_proj"]
        joined = self._linear(x, names, spec.intermediate_size, spec.hidden_size)
        gate, up = ops.split(joined, [spec.intermediate_size, spec.intermediate_size])
        product = ops.multiply(activated(gate), up)
        return self._linear(product, [prefix + "down_proj"], spec.hidden_size, spec.intermediate_size)

    def _merged(self, x: Value) -> Value:
        spec = self._spec
        size = spec.hidden_size * spec.merge_size**2
        if spec.has_final_norm:
            x = self._norm(x, "visual.merger.ln_q")
        x = ops.reshape(x, [-1, size])
        x = ops.gelu(self._linear(x, ["visual.merger.mlp.0"], size, size))
        return self._linear(x, ["visual.merger.mlp.2"], spec.output_size, size)
