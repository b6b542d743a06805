"""Tokens that are recognised in text before anything else; confines the library's untyped method."""

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken


def add_tokens(backend: tokenizers.Tokenizer, tokens: Iterable[tuple[str, bool]]) -> None:
    """Pairs of text and whether it is special. Known texts keep their ids, others get the next ones."""
    added = [AddedToken(text, normalized=False, special=is_special) for text, is_special in tokens]
    # All in one call: the library rebuilds its matcher each time.
    backend.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
