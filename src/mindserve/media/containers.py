"""Opening sound and video files: the format is told from the content and is one of the contract's, never guessed.

Other demuxers (playlists, concatenations) would open further files and addresses.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final, TypeVar

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import InvalidDataError
from av.video.stream import VideoStream

_Frame = TypeVar("_Frame", av.AudioFrame, av.VideoFrame)

_ASF: Final = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_MP4_BOXES: Final = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"})
_HEAD_BYTES: Final = 16
_MAX_BROKEN_PACKETS: Final = 16
"""Players skip them as well: a cut end, tags between frames."""
_OPTIONS: Final[Mapping[str, str]] = {"protocol_whitelist": "none", "max_pixels": str(8192 * 4320)}
"""A file opens nothing else, and looking into it decodes no frame larger than that."""


def video_format(head: bytes) -> str | None:
    """FFmpeg's name of the demuxer for MP4, AVI or WMV content."""
    if head[4:8] in _MP4_BOXES:
        return "mov"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    return "asf" if head.startswith(_ASF) else None


def audio_format(head: bytes) -> str | None:
    """FFmpeg's name of the demuxer for MP3, WAV or FLAC content."""
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head.startswith(b"fLaC"):
        return "flac"
    is_layer_3 = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2
    return "mp3" if head.startswith(b"ID3") or is_layer_3 else None


def read_head(file: IO[bytes]) -> bytes:
    """What tells the format; leaves the file at its start."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    return head


@contextmanager
def open_container(file: IO[bytes], demuxer: str) -> Generator[InputContainer]:
    """The file from its start. Raises what PyAV raises."""
    file.seek(0)
    with av.open(file, mode="r", format=demuxer, options=dict(_OPTIONS), metadata_errors="replace") as container:
        yield container


def decoded(container: InputContainer, stream: AudioStream | VideoStream, frame_type: type[_Frame]) -> Iterator[_Frame]:
    """The frames of `stream` in order, over a few broken packets. Raises what PyAV raises."""
    broken = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except InvalidDataError:
            broken += 1
            if broken > _MAX_BROKEN_PACKETS:
                raise
            continue
        yield from (frame for frame in frames if isinstance(frame, frame_type))
