"""Base64 content of a request."""

import base64
import binascii
from collections.abc import Iterator

from mindserve.contract.parts import AUDIO_WRONG
from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest

INVALID = "Invalid base64 url"
_PIECE_CHARS = 4 * 256 * 1024
"""A multiple of four: every piece decodes by itself."""


def decode_base64(payload: str, kind: PartKind) -> Iterator[bytes]:
    """The bytes behind `payload`, piece by piece; strict about alphabet and padding. Raises InvalidRequest."""
    text = AUDIO_WRONG if kind is PartKind.INPUT_AUDIO else INVALID
    if not payload or len(payload) % 4:
        raise InvalidRequest(text, param="messages")
    for start in range(0, len(payload), _PIECE_CHARS):
        piece = payload[start : start + _PIECE_CHARS]
        is_last = start + _PIECE_CHARS >= len(payload)
        if "=" in piece and not is_last:
            raise InvalidRequest(text, param="messages")
        try:
            yield base64.b64decode(piece, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(text, param="messages") from error
