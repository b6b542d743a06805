"""Weights as graph values: read, checked, joined and compressed as the precision says."""

from collections.abc import Mapping, Sequence

import numpy as np
from gguf import GGMLQuantizationType as Packing
from numpy.typing import NDArray

from mindserve.engine.native.models import blocks, ops, quantised
from mindserve.engine.native.models.checkpoint import Checkpoint
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.quantised import Quantised
from mindserve.engine.native.models.stored import StoredTensor, join
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision

Part = tuple[str, int]
"""A tensor's name and its rows."""
RowOrder = NDArray[np.int64] | None
"""Indices of rows, new order; None: as they are."""


class Weights:
    """Everything a graph takes from a checkpoint passes here once."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision, names: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._precision = precision
        self._names = names
        """Parts of tensor names: as asked for -> as the checkpoint has them."""

    def __contains__(self, name: str) -> bool:
        return self._own_name(name) in self._checkpoint

    def vector(self, name: str, size: int, *, offset: float = 0.0) -> Value:
        """A norm's weight, in f32."""
        return ops.floats(self.numbers(name, size) + np.float32(offset))

    def numbers(self, name: str, size: int) -> NDArray[np.float32]:
        """A vector as numbers."""
        return self._read(name, (size,)).dense()

    def array(self, name: str, *shape: int) -> NDArray[np.float32]:
        """A tensor of any shape as numbers."""
        return self._read(name, shape).dense()

    def bias(self, parts: Sequence[Part], order: RowOrder = None) -> Value:
        """Vectors joined, in the given order."""
        joined = np.concatenate([self.numbers(name, size) for name, size in parts])
        return ops.floats(joined if order is None else joined[order])

    def matrix(self, parts: Sequence[Part], columns: int, order: RowOrder = None) -> Value:
        """`[sum of rows, columns]`: matrices one under the other, rows in the given order."""
        joined = join([self._read(name, (rows, columns)) for name, rows in parts])
        return self._compressed(joined if order is None else joined.rows(order))

    def vocabulary_matrix(self, name: str, rows: int, columns: int) -> Value:
        """Embedding or output head: never below 8 bits, unless the file is."""
        return self._compressed(self._read(name, (rows, columns)), is_vocabulary=True)

    def plain_matrix(self, name: str, rows: int, columns: int) -> Value:
        """Kept in f32: small and sensitive (routers)."""
        return ops.constant(self._read(name, (rows, columns)).dense())

    def expert_matrix(self, prefix: str, index: int, parts: Sequence[Part], extent: tuple[int, int]) -> Value:
        """As `matrix`, for one expert: from its own tensors or from stacked ones. `extent`: experts, columns."""
        count, columns = extent
        stored: list[StoredTensor] = []
        for role, rows in parts:
            stacked = f"{prefix}experts.{role}.weight"
            if stacked in self:
                stored.append(self._read(stacked, (count, rows, columns)).rows(index))
            else:
                stored.append(self._read(f"{prefix}experts.{index}.{role}.weight", (rows, columns)))
        return self._compressed(join(stored))

    def _own_name(self, name: str) -> str:
        for asked, own in self._names.items():
            name = name.replace(asked, own)
        return name

    def _read(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        name = self._own_name(name)
        stored = self._checkpoint.tensor(name)
        if stored.shape != shape:
            source = self._checkpoint.source_of(name)
            raise ModelLoadError(f"{source}: tensor {name} has shape {list(stored.shape)}, expected {list(shape)}")
        return stored

    def _compressed(self, stored: StoredTensor, *, is_vocabulary: bool = False) -> Value:
        precision = self._precision
        if precision is Precision.F32:
            return ops.constant(stored.dense())
        if precision is Precision.F16:
            return ops.half_precision(stored.dense().astype(np.float16))
        return ops.dequantised(_quantise(stored, precision, is_vocabulary=is_vocabulary))


FOUR_BIT_BLOCKS = (Packing.Q4_0, Packing.Q4_1, Packing.Q4_K)
"""Never rounded to 4 bits a second time: that would cost as much accuracy as the first time."""


def _quantise(stored: StoredTensor, precision: Precision, *, is_vocabulary: bool) -> Quantised:
    """AUTO: a file's own blocks where integer kernels take them, else int8, which loses almost nothing."""
    keeps_blocks = (precision is Precision.AUTO and blocks.suits_integer_kernels(stored.packing)) or (
        precision is Precision.INT4 and stored.packing in FOUR_BIT_BLOCKS
    )
    kept = blocks.exact(stored) if keeps_blocks else None
    if kept is not None:
        return kept
    fits_groups = stored.shape[-1] % quantised.GROUP == 0
    if precision is Precision.INT4 and fits_groups and not is_vocabulary:
        return quantised.by_group_int4(stored)
    return quantised.by_row_int8(stored)
