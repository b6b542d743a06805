"""A dummy token beside a lone one.

The runtime computes a step of one token with kernels of their own, whose results differ in the last digits from those
that any larger step gets, however it is made up. With a companion a sequence gets the same numbers alone and among
others. It costs about a tenth of a lone sequence's speed, so only requests with a `seed` have it: they ask for the same
answer again.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.step import StepBatch


def with_companion(batch: StepBatch, block: int) -> StepBatch:
    """`batch` and one token more, of a sequence of its own in `block`; nobody samples it."""
    positions = np.zeros((*batch.positions.shape[:-1], 1), np.int64)
    embeddings, is_embedded = batch.embeddings, batch.is_embedded
    return replace(
        batch,
        token_ids=np.append(batch.token_ids, 0),
        positions=np.concatenate([batch.positions, positions], axis=-1),
        past_lens=_and(batch.past_lens, 0),
        subsequence_begins=_and(batch.subsequence_begins, len(batch.token_ids) + 1),
        block_indices=_and(batch.block_indices, block),
        block_indices_begins=_and(batch.block_indices_begins, len(batch.block_indices) + 1),
        adapters=(*batch.adapters, None) if batch.adapters else (),
        embeddings=None if embeddings is None else np.vstack([embeddings, np.zeros_like(embeddings[:1])]),
        is_embedded=None if is_embedded is None else np.append(is_embedded, False),
    )


def _and(values: NDArray[np.int32], value: int) -> NDArray[np.int32]:
    return np.append(values, np.int32(value))
