"""Sentencepiece vocabularies (scored pieces) as `tokenizers` backends, for GGUF files and `tokenizer.model`.

Sentencepiece's BPE joins, as long as any two neighbours make a piece, the pair whose joined piece scores best. The
same result comes from merge rules: every way to cut a piece into two pieces, best score first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from mindserve.errors import ModelLoadError
from mindserve.text.added_tokens import add_tokens
from mindserve.text.chatglm import BARE_WORDS
from mindserve.text.spelling import METASPACE


class PieceKind(IntEnum):
    """Kinds of vocabulary entries; GGUF's `token_type` uses the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_IN_MODEL: Final = frozenset({PieceKind.NORMAL, PieceKind.UNKNOWN, PieceKind.BYTE})
_SPECIAL: Final = frozenset({PieceKind.UNKNOWN, PieceKind.CONTROL})


class Piece(NamedTuple):
    """One vocabulary entry; its id is its place. A tuple because there are hundreds of thousands."""

    text: str
    score: float = 0.0
    kind: int = PieceKind.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """What happens to text first."""

    adds_space: bool = True
    """A space goes before each stretch of text between special tokens."""
    collapses_spaces: bool = False
    charsmap: bytes = b""
    """Sentencepiece's precompiled character map; empty: none."""


def build_backend(
    pieces: Sequence[Piece], normalization: Normalization, *, is_unigram: bool = False
) -> tokenizers.Tokenizer:
    """A tokenizer with the pieces' ids. Raises ModelLoadError."""
    try:
        backend = tokenizers.Tokenizer(_unigram(pieces) if is_unigram else _bpe(pieces))
        backend.normalizer = _normalizer(normalization)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"the tokenizer's vocabulary is not usable: {error}") from error
    backend.decoder = decoders.Sequence([decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    add_special_pieces(backend, pieces)
    return backend


def add_special_pieces(backend: tokenizers.Tokenizer, pieces: Sequence[Piece]) -> None:
    """Make control and user-defined pieces recognisable in text; only the former are special."""
    kinds = _SPECIAL | {PieceKind.USER_DEFINED}
    added = [p for p in pieces if p.text and p.kind in kinds and p.text not in BARE_WORDS]
    add_tokens(backend, ((p.text, p.kind in _SPECIAL) for p in added))


def vocabulary(pieces: Sequence[Piece]) -> dict[str, int]:
    """Ids by text, without unused entries; the first of two equal texts counts."""
    return {p.text: i for i, p in reversed(list(enumerate(pieces))) if p.kind != PieceKind.UNUSED}


def _unknown(pieces: Sequence[Piece]) -> str | None:
    return next((p.text for p in pieces if p.kind == PieceKind.UNKNOWN), None)


def _bpe(pieces: Sequence[Piece]) -> models.BPE:
    return models.BPE(
        vocab=vocabulary(pieces), merges=_merges(pieces), unk_token=_unknown(pieces), byte_fallback=True, fuse_unk=True
    )


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """All cuts of all normal pieces, best score first, then in order of ids."""
    known = {p.text for p in pieces if p.kind in _IN_MODEL and p.kind != PieceKind.BYTE}
    ranked = sorted((p for p in pieces if p.kind == PieceKind.NORMAL), key=lambda p: -p.score)
    return [
        (left, right)
        for text in (p.text for p in ranked)
        for cut in range(1, len(text))
        if (left := text[:cut]) in known and (right := text[cut:]) in known
    ]


def _unigram(pieces: Sequence[Piece]) -> models.Unigram:
    unknown = next((i for i, p in enumerate(pieces) if p.kind == PieceKind.UNKNOWN), None)
    return models.Unigram([(p.text, p.score) for p in pieces], unk_id=unknown, byte_fallback=True)


def _normalizer(normalization: Normalization) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if normalization.charsmap:
        steps.append(normalizers.Precompiled(normalization.charsmap))
    if normalization.collapses_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if normalization.adds_space:
        steps.append(normalizers.Prepend(METASPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", METASPACE)])
