"""The KV blocks as numbers: who uses which, and which of them hold a prefix that may be used again.

A block is free (holds nothing), in use (one or more sequences refer to it) or cached (nobody refers to it, but its
content is known and may be found by a later prompt). Cached blocks count as available: the least recently used one
is evicted when no free one is left. Tables are released from the tail, so a chain loses its end before its beginning.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from mindserve.engine.base import MediaInput
from mindserve.engine.native.step import BLOCK_SIZE

KEY_BYTES = 16


def blocks_for(token_count: int) -> int:
    """Blocks that hold `token_count` tokens."""
    return -(-token_count // BLOCK_SIZE)


class PrefixHasher:
    """Keys of a prompt's full blocks: each depends on everything before it, on the adapter and on the media."""

    def __init__(self, *, adapter: str | None, media: Sequence[MediaInput]) -> None:
        self._root = blake2b((adapter or "").encode(), digest_size=KEY_BYTES).digest()
        self._media = tuple(media)

    def extend(self, keys: list[bytes], tokens: Sequence[int], upto: int) -> None:
        """Append the keys of the full blocks `len(keys)` to `upto - 1` of `tokens`."""
        for block in range(len(keys), upto):
            begin = block * BLOCK_SIZE
            digest = blake2b(keys[-1] if keys else self._root, digest_size=KEY_BYTES)
            digest.update(np.asarray(tokens[begin : begin + BLOCK_SIZE], np.int64).tobytes())
            for media in self._media:
                if media.offset < begin + BLOCK_SIZE and media.offset + media.length > begin:
                    digest.update(media.digest + (media.offset - begin).to_bytes(8, "little", signed=True))
            keys.append(digest.digest())


class BlockPool:
    """Counts references to `block_count` blocks and remembers the content of full ones by key."""

    def __init__(self, block_count: int) -> None:
        self._free = list(range(block_count - 1, -1, -1))
        self._references = [0] * block_count
        self._key_of: list[bytes | None] = [None] * block_count
        self._block_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def block_count(self) -> int:
        """Blocks that exist."""
        return len(self._references)

    @property
    def free_count(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def cached_count(self) -> int:
        """Blocks that no sequence uses but the prefix cache keeps."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free) + len(self._cached)

    def is_shared(self, block: int) -> bool:
        """Whether more than one sequence refers to the block."""
        return self._references[block] > 1

    def take(self) -> int:
        """A block of one's own, with unknown content. The caller has checked `available`."""
        block = self._free.pop() if self._free else self._evict()
        self._references[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Refer to blocks that somebody uses or that `find` has just found."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a block table, tail first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._key_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known prefix of `keys`; `share` them before anything is taken."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def count_cached(self, blocks: Sequence[int]) -> int:
        """How many of these nobody refers to, so that sharing them lessens `available`."""
        return sum(self._references[block] == 0 for block in blocks)

    def register(self, block: int, key: bytes) -> int:
        """Make a full block findable. If its content is known already the older block is shared and returned instead,
        and `block` given up: then whoever holds a block also holds the blocks before it."""
        known = self._block_of.get(key)
        if known is None:
            self._block_of[key] = block
            self._key_of[block] = key
            return block
        if known != block:
            self.share([known])
            self.release([block])
        return known

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._key_of[block]
        assert key is not None
        del self._block_of[key]
        self._key_of[block] = None
        return block
