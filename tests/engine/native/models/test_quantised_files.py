"""Whole GGUF files of packed blocks: kept blocks answer as their dequantised numbers do."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Packing
from gguf import GGUFReader, GGUFWriter
from gguf.quants import quantize
from paged_driver import driver, golden

from mindserve.settings.values import Precision

NUMBERS = {
    "block_count": 3,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 160,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
}


def write_quantised(target: Path, packing: Packing) -> Path:
    """The reference llama with every matrix in `packing`; its q and k rows are permuted, as llama.cpp wants them."""
    writer = GGUFWriter(target, "llama")
    for name, value in NUMBERS.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 460)
    for tensor in GGUFReader(golden("llama").folder / "llama.f16.gguf").tensors:
        dense = tensor.data.astype(np.float32)
        is_matrix = dense.ndim == 2
        writer.add_tensor(
            tensor.name, quantize(dense, packing) if is_matrix else dense, raw_dtype=packing if is_matrix else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("packing", "precision"),
    [
        (Packing.Q8_0, Precision.AUTO),
        (Packing.Q5_0, Precision.AUTO),
        (Packing.Q4_0, Precision.AUTO),
        (Packing.Q4_0, Precision.INT4),
        (Packing.Q4_1, Precision.INT4),
    ],
)
def test_kept_blocks_answer_as_their_numbers_do(tmp_path: Path, packing: Packing, precision: Precision) -> None:
    path = write_quantised(tmp_path / "model.gguf", packing)
    kept, dense = driver(path, precision), driver(path, Precision.F32)
    for ids in golden("llama").prompts:
        logits = kept.step(ids, 0, list(range(len(ids))))
        assert np.abs(logits - dense.step(ids, 0, list(range(len(ids))))).max() < 2e-3


def test_blocks_without_integer_kernels_become_int8(tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "model.gguf", Packing.Q4_1)
    auto, int8, dense = (driver(path, each) for each in (Precision.AUTO, Precision.INT8, Precision.F32))
    ids = golden("llama").prompts[0]
    rows = list(range(len(ids)))
    expected = dense.step(ids, 0, rows)
    assert (auto.step(ids, 0, rows) == int8.step(ids, 0, rows)).all()
    assert 0 < np.abs(auto.step(ids, 0, rows) - expected).mean() < 0.3


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.F16])
def test_packed_files_can_be_held_otherwise(tmp_path: Path, precision: Precision) -> None:
    path = write_quantised(tmp_path / "model.gguf", Packing.Q8_0)
    ids = golden("llama").prompts[0]
    logits = driver(path, precision).step(ids, 0, [len(ids) - 1])
    error = np.abs(logits - driver(path, Precision.F32).step(ids, 0, [len(ids) - 1])).max()
    assert 0 < error < (1.0 if precision is Precision.INT8 else 0.05)
