"""GGUF blocks in the graph: the exact values, and still packed when the model runs."""

import numpy as np
import openvino as ov
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Packing
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from paged_driver import EXACT, driver, golden

from mindserve.engine.native.models import ops, quantised
from mindserve.engine.native.models.blocks import UNPACKERS, exact
from mindserve.engine.native.models.quantised import Quantised
from mindserve.engine.native.models.stored import StoredTensor, join
from mindserve.settings.values import Precision

ROWS, COLUMNS = 48, 512
HALVES = {Packing.Q4_1: (0, 2), Packing.Q5_1: (0, 2), Packing.Q4_K: (0, 2), Packing.Q5_K: (0, 2), Packing.Q6_K: (208,)}
"""Byte offsets of a block's f16 fields; (0,) for the others."""


def packed(packing: Packing) -> StoredTensor:
    """Blocks of random bytes with scales of a sane size, some of them zero."""
    elements, size = GGML_QUANT_SIZES[packing]
    rng = np.random.default_rng(int(packing))
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // elements, size)).astype(np.uint8)
    for offset in HALVES.get(packing, (0,)):
        scales = (rng.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16)
        scales[3, 0] = 0
        blocks[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    return StoredTensor(data=blocks.reshape(ROWS, -1), packing=packing)


def in_graph(matrix: Quantised) -> tuple[NDArray[np.float32], NDArray[np.float32], set[str]]:
    """The matrix as `gather` and as `linear` see it, and the types of the large constants at run time."""
    rows, vectors = ops.parameter("rows", [-1], np.int64), ops.parameter("x", [-1, COLUMNS], np.float32)
    weight = ops.dequantised(matrix)
    gathered = ops.result(ops.gather_rows(weight, rows.output(0)), "gathered")
    product = ops.result(ops.linear(vectors.output(0), weight), "product")
    graph = ops.model([gathered, product], [], [rows, vectors], "matrix")
    compiled = ov.Core().compile_model(graph, "CPU", EXACT)
    results = compiled([np.arange(ROWS), np.eye(COLUMNS, dtype=np.float32)])
    types = {
        str(node.get_output_element_type(0).to_string())
        for node in compiled.get_runtime_model().get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const"
        and np.prod(node.get_output_shape(0)) == ROWS * COLUMNS
    }
    return results[0], results[1].T, types


@pytest.mark.parametrize("packing", UNPACKERS, ids=lambda packing: packing.name)
def test_blocks_are_exact_and_stay_packed(packing: Packing) -> None:
    stored = packed(packing)
    expected = dequantize(stored.data, packing)
    assert np.abs(expected).max() > 0.01
    matrix = exact(stored)
    assert matrix is not None
    gathered, product, types = in_graph(matrix)
    tolerance = 1e-6 * np.abs(expected).max()
    assert np.abs(gathered - expected).max() <= tolerance
    assert np.abs(product - expected).max() <= tolerance
    assert types == ({"u4"} if matrix.bits == 4 else {"i8"} if matrix.codes.dtype == np.int8 else {"u8"})


@pytest.mark.parametrize("packing", [Packing.Q8_0, Packing.Q4_0], ids=lambda packing: packing.name)
def test_formats_with_whole_zeros_are_exact_to_the_bit(packing: Packing) -> None:
    dense = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    stored = StoredTensor(data=quantize(dense, packing), packing=packing)
    matrix = exact(stored)
    assert matrix is not None
    gathered, _, _ = in_graph(matrix)
    assert (gathered == dequantize(stored.data, packing)).all()


def test_large_matrices_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = packed(Packing.Q4_1)
    whole = exact(stored)
    monkeypatch.setattr(quantised, "CHUNK_ELEMENTS", 7 * COLUMNS)
    parts = exact(stored)
    assert whole is not None and parts is not None
    assert (whole.codes == parts.codes).all() and (whole.scales == parts.scales).all()
    assert (np.asarray(whole.zeros) == np.asarray(parts.zeros)).all()


def test_rows_are_joined_and_reordered_packed() -> None:
    first, second = packed(Packing.Q4_0), packed(Packing.Q4_0)
    order = np.random.default_rng(0).permutation(2 * ROWS)
    joined = join([first, second]).rows(order)
    assert joined.packing is Packing.Q4_0
    expected = np.concatenate([first.dense(), second.dense()])[order]
    assert (joined.dense() == expected).all()


def test_rows_of_different_formats_are_joined_as_numbers() -> None:
    first, second = packed(Packing.Q4_0), packed(Packing.Q8_0)
    joined = join([first, second])
    assert joined.packing is None
    assert (joined.dense() == np.concatenate([first.dense(), second.dense()])).all()


def test_int8_rows_are_rounded_to_the_nearest_code() -> None:
    dense = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    dense[5] = 0
    matrix = quantised.by_row_int8(StoredTensor(data=dense))
    gathered, product, types = in_graph(matrix)
    assert types == {"i8"}
    assert (np.abs(gathered - dense) <= np.abs(dense).max(-1, keepdims=True) / 254 * 1.001).all()
    assert np.abs(product - gathered).max() < 1e-5
    assert (gathered[5] == 0).all()


def test_int4_groups_are_rounded_within_half_a_step_of_their_range() -> None:
    dense = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    gathered, product, types = in_graph(quantised.by_group_int4(StoredTensor(data=dense)))
    assert types == {"u4"}
    groups = dense.reshape(ROWS, -1, quantised.GROUP)
    step = (np.maximum(groups.max(-1), 0) - np.minimum(groups.min(-1), 0)) / 15
    error = np.abs(gathered - dense).reshape(groups.shape).max(-1)
    assert (error <= step * 1.02).all()
    assert error.mean() < 0.6 * step.mean()
    assert np.abs(product - gathered).max() < 1e-5


@pytest.mark.parametrize(
    ("source", "precision", "expected"),
    [
        ("model", Precision.INT8, {"i8"}),
        ("model", Precision.INT4, {"i8", "u4"}),
        ("qwen2.q8_0.gguf", Precision.AUTO, {"i8"}),
    ],
)
def test_a_compiled_model_keeps_its_matrices_compressed(source: str, precision: Precision, expected: set[str]) -> None:
    model = driver(golden("qwen2").folder / source, precision)
    types = {
        str(node.get_output_element_type(0).to_string())
        for node in model.compiled.get_runtime_model().get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const" and np.prod(node.get_output_shape(0)) >= 64 * 64
    }
    assert types == expected
