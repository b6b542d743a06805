"""GGUF files."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from numpy.typing import NDArray

from mindserve.engine.native.models.fields import Fields
from mindserve.engine.native.models.gguf_metadata import architecture_of, hf_config, hf_names
from mindserve.engine.native.models.stored import BFLOAT16, StoredTensor
from mindserve.errors import ModelLoadError

READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, struct.error)
"""What the reader raises on damaged files."""

PACKED = frozenset(
    GGMLQuantizationType[name]
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)
DENSE = frozenset(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))


class GgufCheckpoint:
    """One file, mapped; a tensor is read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        reader = _open(path)
        metadata = _metadata(reader, path)
        self._architecture = architecture_of(metadata, str(path))
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._names = hf_names(self._tensors.keys(), self._architecture)
        config = hf_config(metadata, self._architecture) | self._facts_from_tensors()
        self.config = Fields(str(path), config)
        self.generation = Fields(str(path), {})

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def source_of(self, name: str) -> str:
        """See Checkpoint."""
        return f"{self._path}: {self._names[name]}" if name in self._names else str(self._path)

    def tensor(self, name: str) -> StoredTensor:
        """See Checkpoint."""
        if name not in self._names:
            raise ModelLoadError(f"{self._path}: tensor {name} is missing")
        raw = self._tensors[self._names[name]]
        stored = _stored(raw, self._path)
        order = self._rotary_row_order(name)
        return stored if order is None else stored.rows(order)

    def _rotary_row_order(self, name: str) -> NDArray[np.int64] | None:
        """Undo the converter's permutation: pairs (2i, 2i + 1) go back to (i, i + head_dim / 2)."""
        is_query, is_key = ".self_attn.q_proj." in name, ".self_attn.k_proj." in name
        if not self._architecture.permutes_rotary_rows or not (is_query or is_key):
            return None
        heads = self.config.positive("num_attention_heads")
        if is_key:
            heads = self.config.positive("num_key_value_heads", heads)
        count = int(self._tensors[self._names[name]].shape[-1])
        if count % (2 * heads):
            raise ModelLoadError(f"{self.source_of(name)}: {count} rows are not {heads} heads")
        return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _facts_from_tensors(self) -> dict[str, object]:
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelLoadError(f"{self._path}: tensor token_embd.weight is missing or no matrix")
        return {
            "vocab_size": int(embedding.shape[1]),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._tensors or "blk.0.attn_qkv.bias" in self._tensors,
        }


class _QuickReader(GGUFReader):
    """Cuts a plain array instead of the memmap: that is several times faster, and metadata are hundreds of thousands of
    cuts. The plain array keeps the mapping alive."""

    @property
    def data(self) -> NDArray[np.uint8]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The whole file."""
        return self._plain

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._plain = mapped.view(np.ndarray)


def _open(path: Path) -> GGUFReader:
    try:
        return _QuickReader(path)
    except READ_ERRORS as error:
        raise ModelLoadError(f"{path}: not a readable GGUF file ({str(error)[:200]})") from error


def _metadata(reader: GGUFReader, path: Path) -> Mapping[str, object]:
    try:
        skipped = ("tokenizer.ggml.merges", "tokenizer.ggml.scores")
        return {name: field.contents() for name, field in reader.fields.items() if name not in skipped}
    except READ_ERRORS as error:
        raise ModelLoadError(f"{path}: damaged metadata ({str(error)[:200]})") from error


def _stored(raw: ReaderTensor, path: Path) -> StoredTensor:
    if raw.tensor_type in PACKED:
        return StoredTensor(data=raw.data, packing=raw.tensor_type)
    if raw.tensor_type not in DENSE:
        raise ModelLoadError(f"{path}: tensor {raw.name} has type {raw.tensor_type.name}, which is not supported")
    if raw.tensor_type is GGMLQuantizationType.BF16:
        return StoredTensor(data=raw.data.view(BFLOAT16))
    return StoredTensor(data=raw.data)
