"""A vocabulary as constraints see it: the bytes of every token, found by their beginning."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer


class Lexicon:
    """Built once per model, which takes a moment for 150 000 tokens; read-only and thread-safe afterwards."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        end_token_ids: frozenset[int],
        vocab_size: int,
        markers: frozenset[str],
        files: Path | None = None,
    ) -> None:
        """`vocab_size` is the model's; `markers` are the tags for which the vocabulary may have tokens.

        `files`: the model's, from which another process loads the tokenizer; None: it is pickled itself.
        """
        self.end_token_ids = end_token_ids
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._markers = markers
        self._files = files
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(min(tokenizer.vocab_size, vocab_size))]
        found = {marker: tokenizer.token_id(marker) for marker in markers}
        self.marker_ids = {
            marker: token_id
            for marker, token_id in found.items()
            if token_id is not None and token_id < len(self.tokens) and token_id not in end_token_ids
        }
        """Tokens that are tags. A grammar names them; other text never contains them."""
        tags = frozenset(self.marker_ids.values())
        self.special_ids = frozenset(
            i for i in range(len(self.tokens)) if i in end_token_ids or (tokenizer.is_special(i) and i not in tags)
        )
        """Tokens that are no text at all."""
        texts = (
            (data, i) for i, data in enumerate(self.tokens) if data and i not in self.special_ids and i not in tags
        )
        self._by_bytes = sorted(texts)
        self._ids = dict(reversed(self._by_bytes))
        self.known_bits = self.bits(range(len(self.tokens)))
        """The mask that allows every token of the vocabulary."""
        self._longest = max(map(len, self._ids), default=1)

    def __reduce__(self) -> tuple[object, ...]:
        """Too large to be sent with every mask: it is made again where it is wanted."""
        rest = (self.end_token_ids, self.vocab_size, self._markers)
        return (
            (_with_tokenizer, (self._tokenizer, *rest)) if self._files is None else (_from_files, (self._files, *rest))
        )

    def bits(self, token_ids: Iterable[int]) -> NDArray[np.uint32]:
        """The mask that allows these tokens only."""
        flags = np.zeros((self.vocab_size + 31) // 32 * 32, dtype=np.uint8)
        flags[np.fromiter(token_ids, dtype=np.int64)] = 1
        return np.packbits(flags, bitorder="little").view(np.uint32)

    def bits_without(self, token_ids: Iterable[int]) -> NDArray[np.uint32]:
        """The mask that allows all tokens but these."""
        return ~self.bits(token_ids)

    def starting_with(self, prefix: bytes) -> Iterator[tuple[int, bytes]]:
        """Tokens whose bytes begin with `prefix` and go on, with the bytes that follow it."""
        at = bisect_left(self._by_bytes, (prefix, -1))
        while at < len(self._by_bytes) and self._by_bytes[at][0].startswith(prefix):
            data, token_id = self._by_bytes[at]
            if len(data) > len(prefix):
                yield token_id, data[len(prefix) :]
            at += 1

    def encode(self, text: str) -> list[int]:
        """The tokens a model would write for exactly `text`, none of them a tag or special."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        is_plain = self.special_ids.isdisjoint(token_ids) and not any(i in token_ids for i in self.marker_ids.values())
        if is_plain and b"".join(map(self._tokenizer.token_bytes, token_ids)) == text.encode():
            return token_ids
        return self.encode_bytes(text.encode())

    def encode_bytes(self, data: bytes) -> list[int]:
        """Text tokens that spell `data`, the longest first; bytes without a token are left out."""
        token_ids: list[int] = []
        at = 0
        while at < len(data):
            end = next((n for n in range(min(len(data), at + self._longest), at, -1) if data[at:n] in self._ids), 0)
            if end:
                token_ids.append(self._ids[data[at:end]])
            at = end or at + 1
        return token_ids

    def encode_tag(self, text: str) -> list[int]:
        """The token that is the tag, or those that spell it."""
        token_id = self.marker_ids.get(text)
        return self.encode(text) if token_id is None else [token_id]


def _with_tokenizer(
    tokenizer: Tokenizer, end_token_ids: frozenset[int], vocab_size: int, markers: frozenset[str]
) -> Lexicon:
    return Lexicon(tokenizer, end_token_ids=end_token_ids, vocab_size=vocab_size, markers=markers)


@lru_cache(maxsize=4)
def _from_files(files: Path, end_token_ids: frozenset[int], vocab_size: int, markers: frozenset[str]) -> Lexicon:
    """Once per process and model."""
    tokenizer = load_tokenizer(files)
    return Lexicon(tokenizer, end_token_ids=end_token_ids, vocab_size=vocab_size, markers=markers, files=files)
