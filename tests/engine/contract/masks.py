"""Masks for tests, by token ids alone; importable in other processes, where engines may apply them."""

import numpy as np
from numpy.typing import NDArray


class OnlyTokens:
    """Allows some tokens; after `count` of them (None: never) only `end`."""

    def __init__(self, allowed: frozenset[int], *, count: int | None = None, end: int | None = None) -> None:
        self._allowed = allowed
        self._count = count
        self._end = end

    def allowed(self) -> NDArray[np.uint32]:
        tokens = self._allowed
        if self._count == 0 and self._end is not None:
            tokens = frozenset({self._end})
        bits = np.zeros(max(tokens) // 32 + 1, np.uint32)
        for token in tokens:
            bits[token // 32] |= np.uint32(1 << token % 32)
        return bits

    def advance(self, token_id: int) -> None:
        assert token_id in self._allowed or (self._count == 0 and token_id == self._end)
        if self._count:
            self._count -= 1

    def fork(self) -> "OnlyTokens":
        return OnlyTokens(self._allowed, count=self._count, end=self._end)


class BrokenMask(OnlyTokens):
    """Raises when the token after its first is recorded."""

    def __init__(self, allowed: frozenset[int], *, advances: int = 0) -> None:
        super().__init__(allowed)
        self._advances = advances

    def advance(self, token_id: int) -> None:
        if self._advances == 1:
            raise ValueError("broken")
        self._advances += 1

    def fork(self) -> "BrokenMask":
        return BrokenMask(self._allowed, advances=self._advances)
