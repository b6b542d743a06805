"""The media of one request once the towers have read them: embeddings and positions of its tokens."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput


class RequestMedia:
    """Kept until the request ends: after a preemption the prompt is computed again."""

    def __init__(
        self,
        media: Sequence[MediaInput],
        embeddings: Sequence[NDArray[np.float32]],
        prompt_positions: NDArray[np.int64] | None,
    ) -> None:
        """One array `[length, hidden size]` for each of `media`. `prompt_positions`: `[3, prompt length]`; None: tokens
        just count."""
        self._parts = [(item.offset, rows) for item, rows in zip(media, embeddings, strict=True)]
        self._positions = np.zeros((3, 0), np.int64) if prompt_positions is None else prompt_positions
        self._delta = 0
        """Added to the index of a token after the prompt."""
        if prompt_positions is not None:
            self._delta = int(prompt_positions.max()) + 1 - prompt_positions.shape[1]

    def positions(self, begin: int, count: int) -> NDArray[np.int64]:
        """`[3, count]` of the tokens from `begin` on, in the prompt or after it."""
        known = self._positions[:, begin : begin + count]
        first = begin + known.shape[1]
        later = np.arange(first, begin + count, dtype=np.int64) + self._delta
        return np.concatenate([known, np.broadcast_to(later, (3, len(later)))], axis=1)

    def embeddings(self, begin: int, count: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Rows for the tokens from `begin` on, each with the offset of its first token from there."""
        for offset, rows in self._parts:
            first, last = max(offset, begin), min(offset + len(rows), begin + count)
            if first < last:
                yield first - begin, rows[first - offset : last - offset]
