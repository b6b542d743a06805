import pytest

from mindserve.text.spelling import Spelling, piece_bytes


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("Hello", b"Hello"),
        ("Ġworld", b" world"),
        ("Ċ", b"\n"),
        ("Ã©", "é".encode()),
        ("âĤ", b"\xe2\x82"),
        ("ł", b"\xa0"),
        ("<｜tool▁sep｜>", "<｜tool▁sep｜>".encode()),
        ("a b", b"a b"),
    ],
)
def test_byte_level_pieces(piece: str, expected: bytes) -> None:
    assert piece_bytes(piece, Spelling.BYTE_LEVEL) == expected


def test_every_byte_has_a_byte_level_spelling() -> None:
    alphabet = [chr(code) for code in range(0x21, 0x144) if chr(code) not in "\x7f\xad" and not 0x80 <= code < 0xA1]
    assert sorted(piece_bytes(char, Spelling.BYTE_LEVEL) for char in alphabet) == [bytes([b]) for b in range(256)]


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("▁Hello", b" Hello"),
        ("▁▁", b"  "),
        ("<0x0A>", b"\n"),
        ("<0xe2>", b"\xe2"),
        ("é", "é".encode()),
        ("<0x0A", b"<0x0A"),
    ],
)
def test_metaspace_pieces(piece: str, expected: bytes) -> None:
    assert piece_bytes(piece, Spelling.METASPACE) == expected
