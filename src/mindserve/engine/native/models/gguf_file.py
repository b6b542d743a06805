"""The GGUF format: metadata and tensors by the names that the file gives them."""

import struct
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from numpy.typing import NDArray

from mindserve.engine.native.models.stored import BFLOAT16, StoredTensor
from mindserve.errors import ModelLoadError

READ_ERRORS = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, struct.error)
"""What the reader raises on damaged files."""

PACKED = frozenset(
    GGMLQuantizationType[name]
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)
DENSE = frozenset(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))


class GgufFile:
    """One file, mapped; a tensor is read when asked for."""

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError."""
        self._path = path
        reader = _open(path)
        self.metadata = _metadata(reader, path)
        """Merges and scores of tokens are left out."""
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._tensors.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> StoredTensor:
        """Raises ModelLoadError for one that is missing or of an unknown type."""
        if name not in self._tensors:
            raise ModelLoadError(f"{self._path}: tensor {name} is missing")
        return _stored(self._tensors[name], self._path)


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
