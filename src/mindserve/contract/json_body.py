"""Bytes of a request body to plain values, refusing what is malformed, nested too deep, or made of too many pieces.

The decoder is strict (RFC 8259, UTF-8, no NaN, no lone surrogates, the last of two equal keys wins). What it does not
bound is measured beforehand on the bytes: forty megabytes of `[],` would otherwise become a gigabyte of objects.
"""

import codecs
from typing import Any

import msgspec
import numpy as np

from mindserve.contract.failure import failure
from mindserve.errors import InvalidRequest

MAX_VALUES = 2_097_152
"""Arrays, objects and their elements in one body. The smallest message takes one object of two, so that the largest
`messages` of the contract stay far below."""

NOT_JSON = "Failed to parse request context to json"
TOO_DEEP = "Request JSON is nested deeper than maxJsonDepth ({limit})"
TOO_MANY_VALUES = "Request JSON has more than {limit} values"

_STRUCTURE = b'",[]{}'
_NOT_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
_LEVEL_STEPS = np.array([(char in b"[{") - (char in b"]}") for char in range(256)], dtype=np.int8)
"""By byte: one level down, one level up, neither."""


def decode_body(body: bytes, *, max_depth: int) -> Any:
    """The JSON value in `body`, whose own level is 0. Raises InvalidRequest."""
    body = body.removeprefix(codecs.BOM_UTF8)
    openers = body.count(b"[") + body.count(b"{")
    if openers > max_depth or openers + body.count(b",") > MAX_VALUES:
        _check_shape(body, max_depth=max_depth)
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):  # malformed; a number that no double holds
        raise InvalidRequest(NOT_JSON) from None


def _check_shape(body: bytes, *, max_depth: int) -> None:
    """Count values and levels without building anything: brackets and commas outside strings."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(unescaped.translate(None, _NOT_STRUCTURE), dtype=np.uint8)
    is_in_string = np.logical_xor.accumulate(marks == ord('"'))
    marks = marks[~is_in_string]
    steps = _LEVEL_STEPS[marks]
    if np.count_nonzero(steps == 1) + np.count_nonzero(marks == ord(",")) > MAX_VALUES:
        raise failure(TOO_MANY_VALUES, limit=MAX_VALUES)
    if int(np.cumsum(steps, dtype=np.int32).max(initial=0)) - 1 > max_depth:
        raise failure(TOO_DEEP, limit=max_depth)
