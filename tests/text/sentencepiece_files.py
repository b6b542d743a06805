"""Writes small sentencepiece models."""

import struct
from collections.abc import Sequence
from pathlib import Path

from mindserve.text.sentencepiece import Piece, PieceKind

UNIGRAM, BPE = 1, 2


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _piece(piece: Piece) -> bytes:
    score = _varint(2 << 3 | 5) + struct.pack("<f", piece.score)
    return _message(1, piece.text.encode()) + score + _number(3, piece.kind)


def write_model(
    path: Path, pieces: Sequence[Piece], *, kind: int = BPE, adds_space: bool = True, collapses_spaces: bool = False
) -> None:
    """A `tokenizer.model`, with a field of each wire type that readers must skip."""
    normalizer = _message(1, b"identity") + _number(3, adds_space) + _number(4, collapses_spaces)
    unknown = _varint(90 << 3 | 1) + bytes(8) + _number(91, 1 << 40)
    body = b"".join(_message(1, _piece(piece)) for piece in pieces)
    path.write_bytes(body + unknown + _message(2, _number(3, kind)) + _message(3, normalizer))


def base_pieces() -> list[Piece]:
    """The first entries of every model: unknown, start, end, all bytes, and some letters."""
    control = [
        Piece(text="<unk>", kind=PieceKind.UNKNOWN),
        *(Piece(text=t, kind=PieceKind.CONTROL) for t in ("<s>", "</s>")),
    ]
    bytes_ = [Piece(text=f"<0x{byte:02X}>", kind=PieceKind.BYTE) for byte in range(256)]
    letters = [Piece(text=char, score=-100.0 - i) for i, char in enumerate("▁abcdefhilopsuy")]
    return [*control, *bytes_, *letters]
