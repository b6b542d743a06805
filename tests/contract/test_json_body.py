"""Bytes to values: strict where it matters, bounded everywhere."""

import json

import pytest

from mindserve.contract import json_body
from mindserve.contract.json_body import NOT_JSON, decode_body
from mindserve.errors import InvalidRequest


def error_of(body: bytes, *, max_depth: int = 64) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode_body(body, max_depth=max_depth)
    return caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b'{"a":1,}',
        b"[1,]",
        b"{'a':1}",
        b"{a:1}",
        b"/**/{}",
        b"{}\x00",
        b"NaN",
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"1" * 100_000 + b"}",
        b'{"a":01}',
        b'{"a":.5}',
        b'{"a":+1}',
        b'{"a":0x1}',
        b'{"a":tru}',
        b'"\xff"',
        b'{"\xff":1}',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800":1}',
        b'"a\nb"',
        b'"\\x"',
        b'"',
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_malformed(body: bytes) -> None:
    assert error_of(body) == NOT_JSON


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":{"x":1},"a":null}', {"a": None}),
        (b"18446744073709551616", 2**64),
        (b"-0", 0),
        (b"1e-999", 0.0),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\u0000"', "\x00"),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b' \t\r\n{"a" : [ ] }\n', {"a": []}),
    ],
)
def test_values(body: bytes, value: object) -> None:
    assert decode_body(body, max_depth=64) == value


def nested(levels: int, *, mixed: bool = False) -> bytes:
    """So many arrays or objects, one in the other."""
    if mixed:
        return b'[{"a":' * (levels // 2) + b"1" + b"}]" * (levels // 2)
    return b"[" * levels + b"]" * levels


def test_depth() -> None:
    assert decode_body(nested(65), max_depth=64)
    assert decode_body(nested(64, mixed=True), max_depth=63)
    text = "Request JSON is nested deeper than maxJsonDepth (64)"
    assert error_of(nested(66)) == text
    assert error_of(nested(66, mixed=True)) == text
    assert error_of(b"[" * 1_000_000) == text
    assert error_of(b'{"a":' * 1_000_000) == text
    assert error_of(b'{"a":"\\\\","b":' + nested(66) + b"}") == text
    assert error_of(nested(12), max_depth=10).endswith("(10)")


def test_brackets_in_strings_are_no_nesting() -> None:
    texts = ["[" * 1000, '\\"[' * 500, "\\", "\\\\" + "{" * 100, '"', '[\\\\"' * 99]
    body = json.dumps([{text: text} for text in texts]).encode()
    assert decode_body(body, max_depth=2) == [{text: text} for text in texts]


def test_siblings_are_no_nesting() -> None:
    body = json.dumps([[[]] * 500] * 10).encode()
    assert decode_body(body, max_depth=2) == [[[]] * 500] * 10


def test_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "MAX_VALUES", 100)
    text = "Request JSON has more than 100 values"
    assert error_of(json.dumps([1] * 101).encode()) == text
    assert error_of(json.dumps([[]] * 51).encode()) == text
    assert decode_body(json.dumps([1] * 100).encode(), max_depth=64) == [1] * 100
    assert decode_body(json.dumps([",[" * 500]).encode(), max_depth=64) == [",[" * 500]


@pytest.mark.parametrize("unit", [b"[],", b'{"a":1},', b'"a",', b"1,"])
def test_too_many_values_are_never_built(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(json_body.msgspec.json, "decode", never)
    body = b'{"x":[' + unit * 2_100_000 + b"1]}"
    assert error_of(body) == "Request JSON has more than 2097152 values"
