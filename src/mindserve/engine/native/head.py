"""What the sampler needs of the logits, computed by small graphs of their own on the full rows where they lie.

A flat TopK over a large vocabulary costs as much as several layers, so both graphs work in two stages: the maximum of
each block of 64 columns, then the columns of the best blocks only. They run when first asked for: a greedy batch never
pays for candidates, and the model's own graph stays the same for every kind of request.
"""

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15

from mindserve.engine.native.step import CANDIDATES

_BLOCK = 64
"""Columns per block."""
op: Any = opset15
"""The opset has no types."""


def _ints(*values: int) -> Any:
    return op.constant(np.array(values, np.int64))


class _Rows:
    """Logits [R, V] cut into blocks [R, N, 64], padded with -inf where 64 does not divide V."""

    def __init__(self, vocab_size: int) -> None:
        self.logits = op.parameter([-1, vocab_size], np.float32, name="logits")
        self.block_count = -(-vocab_size // _BLOCK)
        rows: Any = self.logits
        padding = self.block_count * _BLOCK - vocab_size
        if padding:
            rows = op.pad(rows, _ints(0, 0), _ints(0, padding), "constant", op.constant(np.float32(-np.inf)))
        self.blocks = op.reshape(rows, _ints(0, self.block_count, _BLOCK), True)
        self.maxima = op.reduce_max(self.blocks, _ints(2), False)


def _top(values: Any, count: int) -> Any:
    return op.topk(values, op.constant(np.int64(count)), 1, "max", "value", index_element_type="i32")


def _global_ids(blocks: Any, positions: Any) -> Any:
    """Column ids from each row's chosen blocks [R, K] and positions [R, k] in their concatenation."""
    size = op.constant(np.int32(_BLOCK))
    block = op.gather_elements(blocks, op.divide(positions, size), 1)
    return op.add(op.multiply(block, size), op.mod(positions, size))


def best_graph(vocab_size: int) -> ov.Model:
    """logits [R, V] -> id of the best column [R, 1]."""
    rows = _Rows(vocab_size)
    block = _top(rows.maxima, 1).output(1)
    columns = op.reshape(op.gather(rows.blocks, block, _ints(1), 1), _ints(0, _BLOCK), True)
    ids = _global_ids(block, _top(columns, 1).output(1))
    return _model([ids.output(0)], [rows.logits], "best")


def candidates_graph(vocab_size: int) -> ov.Model:
    """logits [R, V], inverse_temperature [R, 1] -> candidate logits [R, k], their ids [R, k], log-sum-exp [R, 1]."""
    rows = _Rows(vocab_size)
    scale = op.parameter([-1, 1], np.float32, name="inverse_temperature")
    blocks = _top(rows.maxima, min(CANDIDATES, rows.block_count)).output(1)
    columns = op.reshape(op.gather(rows.blocks, blocks, _ints(1), 1), _ints(0, -1), True)
    top = _top(columns, min(CANDIDATES, vocab_size))
    ids = _global_ids(blocks, top.output(1))
    largest = op.reduce_max(rows.maxima, _ints(1), True)
    powers = op.exp(op.multiply(op.subtract(rows.logits, largest), scale))
    log_sum = op.add(op.log(op.reduce_sum(powers, _ints(1), True)), op.multiply(largest, scale))
    return _model([top.output(0), ids.output(0), log_sum.output(0)], [rows.logits, scale], "candidates")


def _model(outputs: list[Any], inputs: list[Any], name: str) -> ov.Model:
    model: Any = ov.Model
    return model([op.result(each) for each in outputs], inputs, name)


class Head:
    """Both graphs, compiled for one vocabulary."""

    def __init__(self, core: ov.Core, vocab_size: int, threads: int) -> None:
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
        self._best = core.compile_model(best_graph(vocab_size), "CPU", config).create_infer_request()
        self._candidates = core.compile_model(candidates_graph(vocab_size), "CPU", config).create_infer_request()

    def best(self, logits: ov.Tensor) -> NDArray[np.int32]:
        """[R] ids of the best columns."""
        self._best.set_input_tensor(0, logits)
        self._best.infer()
        return self._best.get_output_tensor(0).data.reshape(-1)

    def candidates(
        self, logits: ov.Tensor, inverse_temperature: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """Ids [R, k], logits [R, k] and log-sum-exp [R]."""
        self._candidates.set_input_tensor(0, logits)
        self._candidates.set_input_tensor(1, ov.Tensor(inverse_temperature.reshape(-1, 1)))
        self._candidates.infer()
        values, ids, log_sum = (self._candidates.get_output_tensor(each).data for each in range(3))
        return ids, values, log_sum.reshape(-1)
