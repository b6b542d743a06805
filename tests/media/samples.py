"""Small media files, made on the spot."""

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mindserve.contract.request import MediaPart, PartKind


def image_bytes(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def picture(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (200, 30, 60)) -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def png_header(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG that promises `width` x `height` pixels; `rows` is its compressed data."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
            (b"IDAT", rows),
            (b"IEND", b""),
        )
    )


def tone(rate: int, seconds: float = 0.5, hertz: float = 440.0, channels: int = 1) -> NDArray[np.float32]:
    """`[channels, samples]`."""
    wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)
    return np.tile(wave.astype(np.float32), (channels, 1))


def audio_bytes(samples: NDArray[np.float32], rate: int, codec: str, container: str) -> bytes:
    """`samples`: `[channels, n]`."""
    buffer = io.BytesIO()
    layout = "mono" if len(samples) == 1 else "stereo"
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate)
        fifo = av.AudioFifo()
        for piece in resampler.resample(frame):
            piece.pts = None
            fifo.write(piece)
        size = stream.codec_context.frame_size or 1024
        while (piece := fifo.read(size, partial=True)) is not None:
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def wav_bytes(rate: int = 16_000, seconds: float = 0.5, channels: int = 1) -> bytes:
    return audio_bytes(tone(rate, seconds, channels=channels), rate, "pcm_s16le", "wav")


def frames_of(count: int, width: int, height: int) -> list[NDArray[np.uint8]]:
    """Grey frames, each brighter than the one before by ten levels (up to 250)."""
    return [np.full((height, width, 3), min(250, 10 * number), np.uint8) for number in range(count)]


def video_bytes(
    frames: Sequence[NDArray[np.uint8]],
    *,
    codec: str = "libx264",
    container: str = "mp4",
    fps: int = 10,
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """`times`: of the frames, in units of 1 / fps seconds; None: one after the other."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = _pixel_format(codec, has_odd_sides=bool(stream.height % 2 or stream.width % 2))
        stream.time_base = Fraction(1, fps)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def _pixel_format(codec: str, *, has_odd_sides: bool) -> str:
    """Halved colour planes need even sides in H.264."""
    if codec == "mjpeg":
        return "yuvj420p"
    return "yuv444p" if codec == "libx264" and has_odd_sides else "yuv420p"


def rotated(video: bytes, quarter_turns: int) -> bytes:
    """An MP4 whose display matrix turns it clockwise by quarters."""
    cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarter_turns]
    matrix = struct.pack(">9i", cosine << 16, sine << 16, 0, -sine << 16, cosine << 16, 0, 0, 0, 1 << 30)
    start = video.index(b"tkhd") + 4 + 40
    return video[:start] + matrix + video[start + len(matrix) :]


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def image_part(source: str) -> MediaPart:
    return MediaPart(kind=PartKind.IMAGE_URL, source=source)


def video_part(source: str) -> MediaPart:
    return MediaPart(kind=PartKind.VIDEO_URL, source=source)


def audio_part(source: str) -> MediaPart:
    return MediaPart(kind=PartKind.AUDIO_URL, source=source)


def input_audio(content: bytes, audio_format: str) -> MediaPart:
    return MediaPart(kind=PartKind.INPUT_AUDIO, source=base64_of(content), format=audio_format)
