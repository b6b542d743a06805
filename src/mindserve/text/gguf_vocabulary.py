"""Builds a tokenizer from the `tokenizer.*` metadata of a GGUF file: `gpt2` (byte-level BPE) and `llama` (scored
pieces)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar, cast

import tokenizers
from tokenizers import decoders, models, normalizers

from mindserve.errors import ModelLoadError
from mindserve.text.chatglm import find_bare_specials
from mindserve.text.fast import FastTokenizer, Traits
from mindserve.text.gguf_metadata import read_metadata
from mindserve.text.pretokenizers import PreTokenizer, find_pretokenizer
from mindserve.text.sentencepiece import (
    Normalization,
    Piece,
    PieceKind,
    add_special_pieces,
    build_backend,
    vocabulary,
)
from mindserve.text.spelling import Spelling

_Item = TypeVar("_Item", str, int, float)
_log = logging.getLogger(__name__)
_SPECIAL_NAMES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
}
"""Template variables and the metadata keys of their ids (the odd spelling is the format's own)."""


def load_gguf_tokenizer(path: Path) -> FastTokenizer:
    """The tokenizer inside a GGUF file. Raises ModelLoadError."""
    metadata = _Metadata(read_metadata(path, prefix="tokenizer."), path.name)
    match metadata.text("ggml.model"):
        case "gpt2":
            return _byte_level(metadata)
        case "llama":
            return _scored(metadata)
        case None:
            raise ModelLoadError(f"{path.name} holds no tokenizer (tokenizer.ggml.model)")
        case other:
            raise ModelLoadError(f"{path.name}: tokenizer model {other!r} is not supported (gpt2 and llama are)")


class _Metadata:
    """Typed access to the pairs below `tokenizer.`."""

    def __init__(self, pairs: Mapping[str, object], file_name: str) -> None:
        self._pairs = pairs
        self.file_name = file_name

    def text(self, key: str) -> str | None:
        value = self._pairs.get(f"tokenizer.{key}")
        return value if isinstance(value, str) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._pairs.get(f"tokenizer.{key}")
        return value if isinstance(value, bool) else default

    def number(self, key: str) -> int | None:
        value = self._pairs.get(f"tokenizer.{key}")
        return value if isinstance(value, int) else None

    def items(self, key: str, kind: type[_Item]) -> list[_Item]:
        """A list, empty where the key is missing. Raises ModelLoadError when its elements are of another kind."""
        found = self._pairs.get(f"tokenizer.{key}", [])
        items = cast("list[object]", found) if isinstance(found, list) else [found]
        if not all(isinstance(item, kind) for item in items):
            raise ModelLoadError(f"{self.file_name}: tokenizer.{key} is not a list of {kind.__name__}")
        return cast("list[_Item]", items)

    def pieces(self) -> list[Piece]:
        texts = self.items("ggml.tokens", str)
        if not texts:
            raise ModelLoadError(f"{self.file_name}: tokenizer.ggml.tokens is missing")
        kinds = self.items("ggml.token_type", int) or [int(PieceKind.NORMAL)] * len(texts)
        scores = self.items("ggml.scores", float) or [0.0] * len(texts)
        if not len(texts) == len(kinds) == len(scores):
            raise ModelLoadError(f"{self.file_name}: tokens, scores and token types differ in number")
        return list(map(Piece, texts, scores, kinds))

    def traits(self, pieces: list[Piece], spelling: Spelling, *, adds_bos: bool) -> Traits:
        ids = {name: self.number(f"ggml.{key}") for name, key in _SPECIAL_NAMES.items()}
        return Traits(
            spelling=spelling,
            chat_template=self.templates(),
            special_tokens={n: pieces[i].text for n, i in ids.items() if i is not None and i < len(pieces)},
            adds_bos=self.flag("ggml.add_bos_token", adds_bos),
            adds_eos=self.flag("ggml.add_eos_token", False),
            bare_specials=find_bare_specials([p.text for p in pieces]),
        )

    def templates(self) -> str | dict[str, str] | None:
        default = self.text("chat_template")
        named = {name: self.text(f"chat_template.{name}") for name in self.items("chat_templates", str)}
        found = {name: source for name, source in named.items() if source is not None}
        if not found:
            return default
        return found if default is None else {"default": default} | found


def _byte_level(metadata: _Metadata) -> FastTokenizer:
    pieces, before = metadata.pieces(), _pretokenizer(metadata)
    backend = tokenizers.Tokenizer(_merging_model(metadata, pieces, before))
    if before.is_nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = before.build()
    backend.decoder = decoders.ByteLevel()
    add_special_pieces(backend, pieces)
    return FastTokenizer(backend, metadata.traits(pieces, Spelling.BYTE_LEVEL, adds_bos=before.adds_bos))


def _merging_model(metadata: _Metadata, pieces: list[Piece], before: PreTokenizer) -> models.BPE:
    merges = metadata.items("ggml.merges", str)
    try:
        pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
        return models.BPE(vocab=vocabulary(pieces), merges=pairs, ignore_merges=before.ignores_merges)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{metadata.file_name}: tokenizer.ggml.merges is not usable: {error}") from error


def _pretokenizer(metadata: _Metadata) -> PreTokenizer:
    name = metadata.text("ggml.pre")
    if name is None:
        _log.warning("%s names no pre-tokenizer (tokenizer.ggml.pre): using 'default'", metadata.file_name)
        name = "default"
    found = find_pretokenizer(name)
    if found is None:
        raise ModelLoadError(f"{metadata.file_name}: pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported")
    return found


def _scored(metadata: _Metadata) -> FastTokenizer:
    pieces = metadata.pieces()
    normalization = Normalization(
        adds_space=metadata.flag("ggml.add_space_prefix", True),
        collapses_spaces=metadata.flag("ggml.remove_extra_whitespaces", False),
    )
    backend = build_backend(pieces, normalization)
    return FastTokenizer(backend, metadata.traits(pieces, Spelling.METASPACE, adds_bos=True))
