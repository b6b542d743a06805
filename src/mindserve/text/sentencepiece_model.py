"""Reads sentencepiece's `tokenizer.model`: the few fields of its protobuf message that tokenising needs.

ModelProto: 1 pieces {1 piece, 2 score, 3 type}, 2 trainer_spec {3 model_type}, 3 normalizer_spec {2 charsmap,
3 add_dummy_prefix, 4 remove_extra_whitespaces}.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mindserve.errors import ModelLoadError
from mindserve.text.sentencepiece import Normalization, Piece, PieceKind

_UNIGRAM: Final = 1
_BPE: Final = 2
_MAX_BYTES: Final = 64 * 1024 * 1024

Field = tuple[int, int | bytes]
"""Number and value: varints as int, everything else as its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """What the file says."""

    pieces: tuple[Piece, ...]
    normalization: Normalization
    is_unigram: bool


def read_model(path: Path) -> SentencePieceModel:
    """Parse `tokenizer.model`. Raises ModelLoadError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        fields = list(_fields(path.read_bytes()))
        model = _model(fields)
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise ModelLoadError(f"{path.name} is not a sentencepiece model: {error}") from error
    if not model.pieces:
        raise ModelLoadError(f"{path.name} is not a sentencepiece model: it holds no pieces")
    return model


def _model(fields: list[Field]) -> SentencePieceModel:
    trainer = dict(_fields(_last_message(fields, 2)))
    kind = trainer.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise ValueError(f"model type {kind!r} is not supported")
    return SentencePieceModel(
        pieces=tuple(_piece(value) for number, value in fields if number == 1 and isinstance(value, bytes)),
        normalization=_normalization(dict(_fields(_last_message(fields, 3)))),
        is_unigram=kind == _UNIGRAM,
    )


def _last_message(fields: list[Field], number: int) -> bytes:
    return next((value for n, value in reversed(fields) if n == number and isinstance(value, bytes)), b"")


def _piece(message: bytes) -> Piece:
    fields = dict(_fields(message))
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, int(PieceKind.NORMAL))
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece has fields of the wrong type")
    return Piece(text=text.decode("utf-8", "replace"), score=struct.unpack("<f", score)[0], kind=kind)


def _normalization(fields: dict[int, int | bytes]) -> Normalization:
    charsmap = fields.get(2, b"")
    return Normalization(
        adds_space=bool(fields.get(3, 1)),
        collapses_spaces=bool(fields.get(4, 1)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
    )


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of one protobuf message, in order."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        size, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(message):
            raise ValueError("damaged protobuf")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("damaged protobuf")
