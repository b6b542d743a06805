"""Where a media part's content is: in the request itself, under the media directory, or on another server."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mindserve.contract.failure import failure
from mindserve.contract.request import MediaPart, PartKind

MAX_ADDRESS_CHARS = 4096

EXTENSIONS: Mapping[PartKind, tuple[str, ...]] = MappingProxyType(
    {
        PartKind.IMAGE_URL: (".jpg", ".jpeg", ".png"),
        PartKind.VIDEO_URL: (".mp4", ".avi", ".wmv"),
        PartKind.AUDIO_URL: (".mp3", ".wav", ".flac"),
    }
)
"""Of paths and addresses, by kind of part (contract: content types)."""

TOO_LONG = "The length of media_url should be less than {limit}, but got {length}."
WRONG_EXTENSION = "The media type is {kind}, url must end with one of {known}"
DANGEROUS = "The media url contains dangerous characters, only allow a-zA-Z0-9_-."
UNKNOWN_SCHEME = "The media url must start with http://, https://, file:// or data:, but got {scheme}"
NO_ADDRESS = "Input type {kind} does not match the mm type."

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}):/", re.IGNORECASE)
_PATH = re.compile(r"[\w\-./]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineSource:
    """Content that came with the request."""

    payload: str
    """Base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """A file under the media directory."""

    path: str
    """Absolute, or relative to the media directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSource:
    """A file on another server."""

    url: str


Source = InlineSource | LocalSource | RemoteSource


def find_source(part: MediaPart) -> Source:
    """Tell the forms of a part apart; touches neither disk nor network. Raises InvalidRequest."""
    address = part.source
    if part.kind is PartKind.INPUT_AUDIO:
        return InlineSource(payload=address)
    scheme = address[:8].lower()
    if scheme.startswith("data:"):
        return InlineSource(payload=address.partition(",")[2])
    if scheme.startswith(("http://", "https://")):
        _check_length(address)
        return RemoteSource(url=address)
    if scheme.startswith("file://"):
        return _local(address[len("file://") :], part.kind)
    return _bare(address, part.kind)


def check_extension(path: str, kind: PartKind) -> None:
    """A path with an extension must have one of the kind's; without one the content decides (decisions R-C17)."""
    extension = posixpath.splitext(path)[1].lower()
    if extension and extension not in EXTENSIONS[kind]:
        known = [name.removeprefix(".") for name in EXTENSIONS[kind]]
        raise failure(WRONG_EXTENSION.format(kind=kind, known=known), param="messages")


def _bare(address: str, kind: PartKind) -> Source:
    """Without a scheme: a path, or the base64 of an image, which never holds a dot (but may start with a slash)."""
    scheme = _SCHEME.match(address)
    if scheme is not None:
        raise failure(UNKNOWN_SCHEME, param="messages", scheme=scheme[1])
    if "." in address:
        return _local(address, kind)
    if kind is not PartKind.IMAGE_URL:
        raise failure(NO_ADDRESS, param="messages", kind=kind)
    return InlineSource(payload=address)


def _local(path: str, kind: PartKind) -> LocalSource:
    _check_length(path)
    check_extension(path, kind)
    if _PATH.fullmatch(path) is None:
        raise failure(DANGEROUS, param="messages")
    return LocalSource(path=path)


def _check_length(address: str) -> None:
    if len(address) >= MAX_ADDRESS_CHARS:
        raise failure(TOO_LONG.format(limit=MAX_ADDRESS_CHARS, length=len(address)), param="messages")
