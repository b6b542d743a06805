"""Matrices as integers with scales, in the forms that the graph keeps as they are: value = (code - zero) * scale.

Here dense numbers are rounded to it; `blocks` unpacks GGUF's without rounding. Everything runs over a bounded number of
rows at a time, so no matrix is ever whole in f32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.models.stored import StoredTensor

GROUP = 32
"""Columns that share a scale where scales are not per row: the block of GGUF's simple formats."""
CHUNK_ELEMENTS = 1 << 18
"""Elements worked on at a time: 1 MB in f32 stays in the processor's cache."""

AnyArray = NDArray[np.generic]
Real = TypeVar("Real", np.float16, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """`[..., columns]` codes with `[..., columns / group]` scales and zeros."""

    codes: NDArray[np.int8] | NDArray[np.uint8]
    """int8, or uint8; of 4 bits: two in a byte, the even column in the low half."""
    bits: int
    scales: NDArray[np.float16] | NDArray[np.float32]
    zeros: int | NDArray[np.uint8] | NDArray[np.float32] = 0
    """One for all, or one per scale: whole (uint8) or fractional (float32)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.bits)

    @property
    def group(self) -> int:
        """Columns per scale."""
        return self.shape[-1] // self.scales.shape[-1]


def by_row_int8(tensor: StoredTensor) -> Quantised:
    """Symmetric, one scale per row."""

    def quantise(part: StoredTensor) -> Quantised:
        dense = part.dense()
        scales = _nonzero(np.abs(dense).max(axis=-1, keepdims=True) / np.float32(127))
        codes = np.rint(dense / scales).astype(np.int8)
        return Quantised(codes=codes, bits=8, scales=scales)

    return in_chunks(tensor, quantise)


def by_group_int4(tensor: StoredTensor) -> Quantised:
    """Unsigned with a zero point per group of GROUP columns."""

    def quantise(part: StoredTensor) -> Quantised:
        groups = part.dense().reshape(part.shape[0], -1, GROUP)
        low, high = np.minimum(groups.min(axis=-1), 0), np.maximum(groups.max(axis=-1), 0)
        scales = _nonzero(((high - low) / np.float32(15)).astype(np.float16))
        zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 0, 15)
        codes = np.rint(groups / scales[..., None].astype(np.float32)) + zeros[..., None]
        codes = np.clip(codes, 0, 15).astype(np.uint8).reshape(part.shape)
        return Quantised(codes=pack_nibbles(codes), bits=4, scales=scales, zeros=zeros.astype(np.uint8))

    return in_chunks(tensor, quantise)


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two columns in a byte."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def _nonzero(scales: NDArray[Real]) -> NDArray[Real]:
    scales[scales == 0] = 1
    return scales


def in_chunks(tensor: StoredTensor, quantise: Callable[[StoredTensor], Quantised]) -> Quantised:
    """Apply to some rows at a time; all axes but the last are rows."""
    *lead, columns = tensor.shape
    flat = StoredTensor(data=tensor.data.reshape(-1, tensor.data.shape[-1]), packing=tensor.packing)
    step = max(1, CHUNK_ELEMENTS // columns)
    parts = [quantise(flat.rows(slice(start, start + step))) for start in range(0, flat.shape[0], step)]

    def joined(arrays: Sequence[AnyArray]) -> Any:
        return np.concatenate(arrays).reshape(*lead, -1)

    zeros = parts[0].zeros
    return Quantised(
        codes=joined([part.codes for part in parts]),
        bits=parts[0].bits,
        scales=joined([part.scales for part in parts]),
        zeros=zeros if isinstance(zeros, int) else joined([np.asarray(part.zeros) for part in parts]),
    )
