"""The audio tower as a graph: a log-mel spectrogram becomes tokens, one for every four of its columns."""

import numpy as np
import openvino as ov

from mindserve.engine.native.models import ops
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.towers.spec import AudioSpec
from mindserve.engine.native.models.weights import Weights


class AudioGraph:
    """Builds the graph once.

    Inputs: `features` `[1, mel_bins, F]` and `encoded` `[1]`, the number of positions after the second convolution that
    hold sound. Output `[encoded // 2, output_size]`.
    """

    def __init__(self, spec: AudioSpec, weights: Weights) -> None:
        self._spec, self._weights = spec, weights

    def build(self) -> ov.Model:
        """Raises ModelLoadError."""
        spec = self._spec
        features = ops.parameter("features", [1, spec.mel_bins, -1], np.float32)
        encoded = ops.parameter("encoded", [1], np.int64)
        length = encoded.output(0)
        x = ops.gelu(self._convolved(features.output(0), "audio_tower.conv1", spec.mel_bins, stride=1))
        x = ops.gelu(self._convolved(x, "audio_tower.conv2", spec.hidden_size, stride=2))
        x = ops.head_of(ops.reshape(ops.transpose(x, [0, 2, 1]), [-1, spec.hidden_size]), 0, length)
        positions = self._weights.array("audio_tower.embed_positions.weight", spec.max_positions, spec.hidden_size)
        x = ops.add(x, ops.head_of(ops.constant(positions), 0, length))
        for layer in range(spec.depth):
            x = self._block(x, f"audio_tower.layers.{layer}.")
        result = ops.result(self._projected(self._pooled(x, length)), "tokens")
        return ops.model([result], [], [features, encoded], "audio")

    def _convolved(self, x: Value, name: str, channels: int, *, stride: int) -> Value:
        kernel = self._weights.array(name + ".weight", self._spec.hidden_size, channels, 3)
        bias = self._weights.vector(name + ".bias", self._spec.hidden_size)
        return ops.convolve(x, ops.constant(kernel), bias, stride=stride)

    def _block(self, x: Value, prefix: str) -> Value:
        spec = self._spec
        x = ops.add(x, self._attention(self._norm(x, prefix + "self_attn_layer_norm"), prefix + "self_attn."))
        inner = self._norm(x, prefix + "final_layer_norm")
        inner = ops.gelu(self._linear(inner, prefix + "fc1", spec.intermediate_size, spec.hidden_size))
        return ops.add(x, self._linear(inner, prefix + "fc2", spec.hidden_size, spec.intermediate_size))

    def _attention(self, x: Value, prefix: str) -> Value:
        spec, size = self._spec, self._spec.hidden_size
        query, key, value = (
            self._heads(self._linear(x, prefix + name, size, size)) for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = ops.transpose(ops.plain_attention(query, key, value), [0, 2, 1, 3])
        return self._linear(ops.reshape(mixed, [-1, spec.hidden_size]), prefix + "out_proj", size, size)

    def _heads(self, x: Value) -> Value:
        """`[1, heads, positions, head_dim]`"""
        return ops.transpose(ops.reshape(x, [1, -1, self._spec.num_heads, self._spec.head_dim]), [0, 2, 1, 3])

    def _linear(self, x: Value, name: str, rows: int, columns: int) -> Value:
        """Keys have no bias."""
        matrix = self._weights.matrix([(name + ".weight", rows)], columns)
        bias = self._weights.bias([(name + ".bias", rows)]) if name + ".bias" in self._weights else None
        return ops.linear(x, matrix, bias)

    def _norm(self, x: Value, name: str) -> Value:
        size = self._spec.hidden_size
        weight, bias = (self._weights.vector(f"{name}.{kind}", size) for kind in ("weight", "bias"))
        return ops.normalise(x, weight, bias, self._spec.norm_epsilon)

    def _pooled(self, x: Value, length: Value) -> Value:
        """Means of neighbours; an odd last position is left out."""
        pairs = ops.divide(length, ops.ints([2]))
        x = ops.head_of(x, 0, ops.multiply(pairs, ops.ints([2])))
        x = ops.mean_over(ops.reshape(x, [-1, 2, self._spec.hidden_size]), 1)
        return self._norm(x, "audio_tower.layer_norm") if self._spec.has_final_norm else x

    def _projected(self, x: Value) -> Value:
        return self._linear(x, "multi_modal_projector.linear", self._spec.output_size, self._spec.hidden_size)
