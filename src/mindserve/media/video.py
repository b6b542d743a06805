"""MP4, AVI and WMV files to evenly sampled frames."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

import av
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

from mindserve.errors import InvalidRequest
from mindserve.media.containers import decoded, open_container, read_head, video_format
from mindserve.media.limits import MediaLimits

INVALID: Final = "Invalid video content, check the input video"
TOO_MANY_PIXELS: Final = "The video has frames of {pixels} pixels, more than {limit}"
TOO_MANY_FRAMES: Final = "The video has more than {limit} frames"

_DECODER_THREADS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling:
    """How many frames of a video a model sees: `fps` of them a second, within bounds, and a multiple of a number."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    multiple_of: int = 2

    def count(self, frames: int, source_fps: float) -> int:
        """Of `frames` at `source_fps`; at least 1, never more than there are."""
        most = min(self.max_frames, frames) // self.multiple_of * self.multiple_of
        wanted = min(max(frames / source_fps * self.fps, self.min_frames), most, frames)
        return max(1, int(wanted // self.multiple_of) * self.multiple_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoClip:
    """The sampled frames of a video, decoded as they are asked for."""

    frame_count: int
    """Expected; a damaged end may bring fewer."""
    fps: float
    """Sampled frames per second of the video's time."""
    frames: Iterator[Image.Image]
    """RGB, upright, in order; raises InvalidRequest at broken content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """What a walk over the packets tells without decoding."""

    key_frames: tuple[int, ...]
    """Numbers of the frames that decode by themselves."""
    frames: int
    fps: float
    frame_pixels: int


@contextmanager
def open_video(file: IO[bytes], sampling: FrameSampling, limits: MediaLimits) -> Generator[VideoClip]:
    """The clip is valid inside the context. Raises InvalidRequest."""
    demuxer = video_format(read_head(file))
    if demuxer is None:
        raise _failure(INVALID)
    with _as_invalid():
        index = _read_index(file, demuxer, limits)
    count = sampling.count(index.frames, index.fps)
    wanted = [number * index.frames // count for number in range(count)]
    uses_key_frames = (wanted[-1] + 1) * index.frame_pixels > limits.max_decoded_pixels
    if uses_key_frames:
        wanted = _nearest_key_frames(wanted, index.key_frames)
    with open_container(file, demuxer) as container:
        stream = container.streams.video[0]
        _prepare(stream, limits, uses_key_frames=uses_key_frames)
        frames = _sampled(decoded(container, stream, av.VideoFrame), wanted, limits)
        yield VideoClip(frame_count=len(wanted), fps=count * index.fps / index.frames, frames=frames)


@contextmanager
def _as_invalid() -> Generator[None]:
    """Decoders raise anything at broken content."""
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:
        raise _failure(INVALID) from error


def _read_index(file: IO[bytes], demuxer: str, limits: MediaLimits) -> _Index:
    with open_container(file, demuxer) as container:
        stream = container.streams.video[0]
        frame_pixels = stream.width * stream.height
        if frame_pixels > limits.max_frame_pixels:
            raise _failure(TOO_MANY_PIXELS.format(pixels=frame_pixels, limit=limits.max_frame_pixels))
        times: list[int] = []
        key_frames: list[int] = []
        frames = 0
        for packet in _packets(container, stream, limits.max_video_packets):
            if packet.is_keyframe:
                key_frames.append(frames)
            time = packet.pts if packet.pts is not None else packet.dts
            if time is not None:
                times.append(time)
            frames += 1
        if not frames:
            raise _failure(INVALID)
        fps = _frame_rate(times, stream)
    return _Index(key_frames=tuple(key_frames), frames=frames, fps=fps, frame_pixels=frame_pixels)


def _packets(container: InputContainer, stream: VideoStream, most: int) -> "Iterator[av.Packet[VideoStream]]":
    """One per frame; empty ones repeat the frame before or end the stream."""
    packets = (packet for packet in container.demux(stream) if packet.size)
    for number, packet in enumerate(packets):
        if number == most:
            raise _failure(TOO_MANY_FRAMES.format(limit=most))
        yield packet


def _frame_rate(times: Sequence[int], stream: VideoStream) -> float:
    """Average over the whole video; a variable rate has no other."""
    span = max(times) - min(times) if times else 0
    if span > 0 and stream.time_base:
        return (len(times) - 1) / float(span * stream.time_base)
    return float(stream.average_rate or 25)


def _nearest_key_frames(wanted: Sequence[int], key_frames: Sequence[int]) -> list[int]:
    """Positions among the key frames of those at or before the wanted frames, each once."""
    chosen: list[int] = []
    position = 0
    for number in wanted:
        while position + 1 < len(key_frames) and key_frames[position + 1] <= number:
            position += 1
        if not chosen or chosen[-1] != position:
            chosen.append(position)
    return chosen


def _prepare(stream: VideoStream, limits: MediaLimits, *, uses_key_frames: bool) -> None:
    context = stream.codec_context
    context.thread_count = _DECODER_THREADS
    context.options = {"max_pixels": str(limits.max_frame_pixels)}
    if uses_key_frames:
        context.skip_frame = "NONKEY"


def _sampled(frames: Iterator[av.VideoFrame], wanted: Sequence[int], limits: MediaLimits) -> Iterator[Image.Image]:
    """The frames whose numbers are in `wanted`, ascending; at least one."""
    decoded_pixels = 0
    found = 0
    with _as_invalid():
        for number, frame in enumerate(frames):
            decoded_pixels += frame.width * frame.height
            if decoded_pixels > limits.max_decoded_pixels:
                raise _failure(TOO_MANY_FRAMES.format(limit=number))
            if number == wanted[found]:
                yield _upright(frame)
                found += 1
            if found == len(wanted):
                return
        if not found:
            raise _failure(INVALID)


def _upright(frame: av.VideoFrame) -> Image.Image:
    """As the file's display matrix turns it (multiples of a right angle)."""
    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    quarters = round(frame.rotation / 90) % 4
    turns = (None, Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
    turn = turns[quarters]
    return image if turn is None else image.transpose(turn)


def _failure(text: str) -> InvalidRequest:
    return InvalidRequest(text, param="messages")
