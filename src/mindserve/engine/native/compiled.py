"""One compiled model: a StepBatch becomes tensors, an inference, logits."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.kernels import Kernels
from mindserve.engine.native.step import StepBatch


class CompiledModel:
    """The model's graph for one choice of kernels."""

    def __init__(self, core: ov.Core, graph: ov.Model, kernels: Kernels, *, threads: int) -> None:
        self._compiled = core.compile_model(graph, "CPU", kernels.properties(threads))
        self._request = self._compiled.create_infer_request()
        self._cache_inputs = [each for each in self._compiled.inputs if "_cache." in each.get_any_name()]
        shapes = {each.get_any_name(): list(each.get_partial_shape()) for each in self._compiled.inputs}
        self._hidden_size = shapes["embeddings"][1].get_length() if "embeddings" in shapes else None
        self._has_rotary_grid = "rotary_positions" in shapes

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return list(self._compiled.output(0).get_partial_shape())[-1].get_length()

    @property
    def block_bytes(self) -> int:
        """Memory of one KV block over all layers. The compilation dictates the shapes."""
        return sum(math.prod(_block_shape(each)) * each.get_element_type().size for each in self._cache_inputs)

    def allocate_cache(self, block_count: int) -> list[ov.Tensor]:
        """Make and bind the KV tensors. They are touched now: so memory does not grow later, and they hold no garbage
        that a masked product could turn into NaN."""
        tensors: list[ov.Tensor] = []
        for each in self._cache_inputs:
            tensor = ov.Tensor(each.get_element_type(), ov.Shape([block_count, *_block_shape(each)]))
            tensor.data[...] = 0
            self._request.set_tensor(each.get_any_name(), tensor)
            tensors.append(tensor)
        return tensors

    def share_cache(self, tensors: Sequence[ov.Tensor]) -> None:
        """Bind the KV tensors of another compilation of the same layers with the same kernels."""
        for each, tensor in zip(self._cache_inputs, tensors, strict=True):
            self._request.set_tensor(each.get_any_name(), tensor)

    def bind(self, inputs: Mapping[str, ov.Tensor]) -> None:
        """Set inputs that stay the same from step to step."""
        for name, tensor in inputs.items():
            self._request.set_tensor(name, tensor)

    def infer(self, batch: StepBatch, more: Mapping[str, NDArray[np.generic]] = MappingProxyType({})) -> ov.Tensor:
        """Logits [R, vocab_size] of the sampled rows, valid until the next call. `more`: inputs besides the batch."""
        for name, values in {**_inputs(batch), **self._media_inputs(batch), **more}.items():
            self._request.set_tensor(name, ov.Tensor(values))
        self._request.infer()
        return self._request.get_output_tensor(0)

    def _media_inputs(self, batch: StepBatch) -> dict[str, NDArray[np.generic]]:
        """Nothing for models without media; for the others, what says that a step has none."""
        count = len(batch.token_ids)
        inputs: dict[str, NDArray[np.generic]] = {}
        if self._hidden_size is not None:
            embeddings, is_embedded = batch.embeddings, batch.is_embedded
            nothing = np.zeros((count, self._hidden_size), np.float32)
            inputs["embeddings"] = nothing if embeddings is None else embeddings
            inputs["is_embedded"] = np.zeros(count, np.bool_) if is_embedded is None else is_embedded
        if self._has_rotary_grid:
            inputs["rotary_positions"] = np.ascontiguousarray(np.broadcast_to(batch.positions, (3, count)))
        return inputs


def _block_shape(cache_input: ov.ConstOutput) -> list[int]:
    return [each.get_length() for each in list(cache_input.get_partial_shape())[1:]]


def _inputs(batch: StepBatch) -> dict[str, NDArray[np.generic]]:
    return {
        "input_ids": batch.token_ids,
        "position_ids": batch.positions if batch.positions.ndim == 1 else batch.positions[0],
        "past_lens": batch.past_lens,
        "subsequence_begins": batch.subsequence_begins,
        "block_indices": batch.block_indices,
        "block_indices_begins": batch.block_indices_begins,
        "max_context_len": np.array(batch.max_context_len, np.int32),
        "sample_rows": batch.sample_rows,
    }
