"""A tensor as its file holds it: dense numbers, or rows of packed GGUF blocks.

Packed rows stay packed while rows are reordered, joined and cut, so that formats which the graph can hold exactly never
pass through floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
"""Importing ml_dtypes also teaches numpy the name that safetensors uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """`data` is dense `[..., columns]`, or uint8 `[..., bytes per row]` of `packing` blocks."""

    data: NDArray[np.generic]
    packing: GGMLQuantizationType | None = None
    """None: dense (f32, f16, bf16)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements."""
        if self.packing is None:
            return self.data.shape
        elements, size = GGML_QUANT_SIZES[self.packing]
        return (*self.data.shape[:-1], self.data.shape[-1] // size * elements)

    def dense(self) -> NDArray[np.float32]:
        """All values as f32 (no copy when they are)."""
        if self.packing is None:
            return self.data.astype(np.float32, copy=False)
        return dequantize(self.data, self.packing).reshape(self.shape).astype(np.float32, copy=False)

    def rows(self, index: int | slice | NDArray[np.int64]) -> "StoredTensor":
        """Those of the first axis; one of them without that axis."""
        return StoredTensor(data=self.data[index], packing=self.packing)


def join(tensors: Sequence[StoredTensor]) -> StoredTensor:
    """One after the other along the first axis; packed only if all are packed alike."""
    if len(tensors) == 1:
        return tensors[0]
    if len({(tensor.packing, tensor.data.dtype) for tensor in tensors}) == 1:
        return StoredTensor(data=np.concatenate([tensor.data for tensor in tensors]), packing=tensors[0].packing)
    return StoredTensor(data=np.concatenate([tensor.dense() for tensor in tensors]))
