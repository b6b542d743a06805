"""How vocabularies spell bytes: the printable byte alphabet of GPT-2, or sentencepiece's `▁` and `<0x0A>`."""

import re
from enum import StrEnum
from typing import Final

METASPACE: Final = "▁"
"""Stands for a space in sentencepiece vocabularies."""


class Spelling(StrEnum):
    """Which of the two a vocabulary uses."""

    BYTE_LEVEL = "byte_level"
    METASPACE = "metaspace"


_NO_BYTE: Final = 0xFFFD
"""Beyond Latin-1: makes the encoding below fail."""


def _byte_alphabet() -> dict[int, int]:
    """Code point to byte: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {0x100 + i: byte for i, byte in enumerate(others)}
    return {byte: byte for byte in printable} | shifted | dict.fromkeys(others, _NO_BYTE)


_BYTE_OF: Final = _byte_alphabet()
_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_bytes(piece: str, spelling: Spelling) -> bytes:
    """The bytes that an ordinary (not added) vocabulary entry stands for."""
    if spelling is Spelling.BYTE_LEVEL:
        return _byte_level(piece)
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(METASPACE, " ").encode("utf-8", "replace")


def _byte_level(piece: str) -> bytes:
    try:
        return piece.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:
        # An entry outside the alphabet stands for its own text.
        return piece.encode("utf-8", "replace")
