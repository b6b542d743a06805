"""Content lists: text and media parts. Shapes, kinds and sizes only; nothing is fetched or decoded here."""

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mindserve.contract.failure import failure
from mindserve.contract.json_values import is_object
from mindserve.contract.request import MediaPart, PartKind, TextPart

MAX_MEDIA_PARTS = 20
"""In one request (decisions: media count)."""
MEGABYTE = 1024 * 1024

PART_NOT_OBJECT = "The type of inputs is abnormal"
TYPE_UNKNOWN = "Input type {type} does not match the mm type."
TYPE_UNCLEAR = "Request param contains a content part without type that is not exactly one of {known}"
TEXT_NOT_STRING = "Request param text must be string"
TEXT_EMPTY = "Request param text should not be empty"
MEDIA_NULL = "Request param {kind} null"
MEDIA_WRONG_TYPE = "Input of {kind} should be str or dict."
AUDIO_NOT_OBJECT = "Input of input_audio should be dict."
URL_NOT_STRING = "Request param {kind}.url must be string"
URL_EMPTY = "Request param {kind} should not be empty"
DATA_ADDRESS_WRONG = "Expected format: data:<mime_type>/<subtype>;base64,<base64_data>"
AUDIO_WRONG = (
    "'input_audio.data' should be base64 encoded data, "
    "and the 'input_audio.format' should be in ['mp3', 'wav', 'flac']."
)
TOO_LARGE = "The size of {what} cannot exceed {limit}.0 MB"
TOO_MANY = "The number of multimodal url should be no more than 20"
NOT_TAKEN = "The model does not support {kind} input"

_KNOWN_TYPES = ("text", *PartKind)
_DATA_ADDRESS = re.compile(r"data:([a-z0-9.+/-]{1,64});base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRule:
    """What one kind of media part may carry."""

    max_megabytes: int
    """Of the content, base64 decoded."""
    formats: frozenset[str]
    """MIME types of `data:` addresses (tables 1 to 3 of the contract); for input_audio the values of `format`."""
    name: str
    """What the size error calls it."""


MEDIA_RULES = MappingProxyType(
    {
        PartKind.IMAGE_URL: MediaRule(max_megabytes=40, formats=frozenset(["image/jpeg", "image/png"]), name="image"),
        PartKind.VIDEO_URL: MediaRule(
            max_megabytes=512, formats=frozenset(["video/mp4", "video/x-msvideo", "video/x-ms-wmv"]), name="video_url"
        ),
        PartKind.AUDIO_URL: MediaRule(
            max_megabytes=40, formats=frozenset(["audio/mpeg", "audio/x-wav", "audio/flac"]), name="audio_url"
        ),
        PartKind.INPUT_AUDIO: MediaRule(
            max_megabytes=20, formats=frozenset(["mp3", "wav", "flac"]), name="input_audio"
        ),
    }
)


@dataclass(slots=True, kw_only=True)
class PartReader:
    """Reads the parts of one request; counts its media parts and their characters."""

    taken: frozenset[PartKind]
    """Media that the model takes."""
    media_parts: int = field(default=0, init=False)
    payload_chars: int = field(default=0, init=False)
    """Characters of base64 payload so far: the size of `messages` does not count them."""

    def read(self, part: Any) -> TextPart | MediaPart:
        """One element of a content list."""
        if not is_object(part):
            raise failure(PART_NOT_OBJECT, param="messages")
        kind = _kind_of(part)
        return self._read_media(part, kind) if kind is not None else _read_text(part)

    def _read_media(self, part: dict[str, Any], kind: PartKind) -> MediaPart:
        value = part.get(kind)
        if value is None:
            raise failure(MEDIA_NULL.format(kind=kind), param="messages")
        if kind not in self.taken:
            raise failure(NOT_TAKEN.format(kind=kind), param="messages")
        self.media_parts += 1
        if self.media_parts > MAX_MEDIA_PARTS:
            raise failure(TOO_MANY, param="messages")
        media = _read_audio(value) if kind is PartKind.INPUT_AUDIO else _read_address(value, kind)
        self._count_payload(media)
        return media

    def _count_payload(self, media: MediaPart) -> None:
        """Whether an address is a path or raw base64 is for the media room to tell: a path is short."""
        rule = MEDIA_RULES[media.kind]
        payload_chars = len(media.source)
        if payload_chars // 4 * 3 > rule.max_megabytes * MEGABYTE:
            raise failure(TOO_LARGE.format(what=rule.name, limit=rule.max_megabytes), param="messages")
        self.payload_chars += payload_chars


def _kind_of(part: dict[str, Any]) -> PartKind | None:
    """None for text. Without `type` the only known key tells (contract: type is optional)."""
    name = part.get("type")
    if name is None:
        present = [known for known in _KNOWN_TYPES if part.get(known) is not None]
        if len(present) != 1:
            raise failure(TYPE_UNCLEAR.format(known=", ".join(_KNOWN_TYPES)), param="messages")
        name = present[0]
    if name == "text":
        return None
    if name not in _KNOWN_TYPES:
        raise failure(TYPE_UNKNOWN, param="messages", type=name)
    return PartKind(name)


def _read_text(part: dict[str, Any]) -> TextPart:
    text = part.get("text")
    if not isinstance(text, str):
        raise failure(TEXT_NOT_STRING, param="messages")
    if not text:
        raise failure(TEXT_EMPTY, param="messages")
    return TextPart(text=text)


def _read_address(value: Any, kind: PartKind) -> MediaPart:
    """A string, or an object whose `url` is one."""
    address = value.get("url") if is_object(value) else value
    if not isinstance(address, str):
        text = URL_NOT_STRING if is_object(value) else MEDIA_WRONG_TYPE
        raise failure(text.format(kind=kind), param="messages")
    if not address:
        raise failure(URL_EMPTY.format(kind=kind), param="messages")
    if address[:5].lower() == "data:":
        prefix = _DATA_ADDRESS.match(address)
        if prefix is None or prefix[1].lower() not in MEDIA_RULES[kind].formats:
            raise failure(DATA_ADDRESS_WRONG, param="messages")
    return MediaPart(kind=kind, source=address)


def _read_audio(value: Any) -> MediaPart:
    if not is_object(value):
        raise failure(AUDIO_NOT_OBJECT, param="messages")
    data, audio_format = value.get("data"), value.get("format")
    if not (isinstance(data, str) and data and isinstance(audio_format, str)):
        raise failure(AUDIO_WRONG, param="messages")
    if audio_format.lower() not in MEDIA_RULES[PartKind.INPUT_AUDIO].formats:
        raise failure(AUDIO_WRONG, param="messages")
    return MediaPart(kind=PartKind.INPUT_AUDIO, source=data, format=audio_format.lower())
