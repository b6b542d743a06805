import io
from collections.abc import Sequence
from contextlib import suppress

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mindserve.errors import InvalidRequest
from mindserve.media.limits import MediaLimits
from mindserve.media.video import INVALID, FrameSampling, open_video
from tests.media.samples import audio_bytes, frames_of, image_bytes, picture, rotated, tone, video_bytes, wav_bytes

SAMPLING = FrameSampling()


def watch(
    content: bytes, sampling: FrameSampling = SAMPLING, limits: MediaLimits | None = None
) -> tuple[list[Image.Image], float]:
    with open_video(io.BytesIO(content), sampling, limits or MediaLimits()) as clip:
        frames = list(clip.frames)
        assert all(frame.mode == "RGB" for frame in frames)
        assert len(frames) <= clip.frame_count
        return frames, clip.fps


def levels(frames: Sequence[Image.Image]) -> list[int]:
    """Frames of the samples are ten grey levels apart: which ones are these?"""
    return [round(float(np.asarray(frame).mean()) / 10) for frame in frames]


def refusal(content: bytes, limits: MediaLimits | None = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        watch(content, limits=limits)
    assert caught.value.param == "messages"
    return caught.value.message


@pytest.mark.parametrize("size", [(64, 48), (33, 17), (1, 1), (16, 200)])
@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "libx264"),
        ("mp4", "mpeg4"),
        ("mp4", "mjpeg"),
        ("mp4", "libvpx-vp9"),
        ("avi", "mpeg4"),
        ("avi", "mjpeg"),
        ("avi", "libx264"),
        ("avi", "msmpeg4"),
        ("asf", "msmpeg4"),
    ],
)
def test_containers_and_codecs(container: str, codec: str, size: tuple[int, int]) -> None:
    frames, fps = watch(video_bytes(frames_of(20, *size), codec=codec, container=container))
    assert [frame.size for frame in frames] == [size] * 4
    assert levels(frames) == [0, 5, 10, 15]
    assert fps == pytest.approx(2.0)


@pytest.mark.parametrize("codec", ["wmv1", "wmv2"])
def test_windows_media(codec: str) -> None:
    frames, fps = watch(video_bytes(frames_of(20, 64, 48), codec=codec, container="asf"))
    assert [frame.size for frame in frames] == [(64, 48)] * 4
    assert levels(frames) == [0, 5, 10, 15]
    assert fps == pytest.approx(2.0)


def test_frames_between_others() -> None:
    """With B-frames the file's order is not the order of the pictures."""
    video = video_bytes(frames_of(24, 64, 48), options={"bf": "3", "b-adapt": "0", "g": "100"})
    frames, _ = watch(video, FrameSampling(fps=10, multiple_of=1))
    assert levels(frames) == list(range(24))


@pytest.mark.parametrize(("quarters", "size"), [(0, (64, 48)), (1, (48, 64)), (2, (64, 48)), (3, (48, 64))])
def test_rotation(quarters: int, size: tuple[int, int]) -> None:
    """The bright quarter moves clockwise with the display matrix."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32] = 250
    frames, _ = watch(rotated(video_bytes([pixels] * 4), quarters))
    assert [frame.size for frame in frames] == [size] * 4
    corners = [(4, 4), (size[0] - 5, 4), (size[0] - 5, size[1] - 5), (4, size[1] - 5)]
    bright = [frames[0].getpixel(corner)[0] > 200 for corner in corners]  # type: ignore[index]
    assert bright == [number == quarters for number in range(4)]


def test_variable_frame_rate() -> None:
    """Ten frames in the first second, then one a second: 19 frames in ten seconds."""
    times = [*range(10), *range(10, 100, 10)]
    frames, fps = watch(video_bytes(frames_of(19, 64, 48), times=times))
    assert len(frames) == 18
    assert levels(frames) == [number * 19 // 18 for number in range(18)]
    assert fps == pytest.approx(18 / 9.5, rel=0.02)


@pytest.mark.parametrize(
    ("frames", "source_fps", "count"),
    [
        (1, 10, 1),
        (2, 10, 2),
        (3, 10, 2),
        (4, 10, 4),
        (7, 10, 4),
        (20, 10, 4),
        (25, 10, 4),
        (30, 10, 6),
        (45, 10, 8),
        (9, 1, 8),
        (300, 30, 20),
        (100_000, 30, 768),
        (767, 1, 766),
        (5, 0.001, 4),
    ],
)
def test_how_many_frames(frames: int, source_fps: float, count: int) -> None:
    assert SAMPLING.count(frames, source_fps) == count


def test_frame_budget() -> None:
    frames, fps = watch(video_bytes(frames_of(25, 16, 16), fps=5), FrameSampling(max_frames=6))
    assert levels(frames) == [0, 4, 8, 12, 16, 20]
    assert fps == pytest.approx(6 / 5)


def test_single_frame() -> None:
    frames, _ = watch(video_bytes(frames_of(1, 32, 32)))
    assert len(frames) == 1


def test_long_video_is_sampled_from_its_key_frames() -> None:
    """Decoding all frames would exceed the limit: the nearest earlier key frames stand in."""
    video = video_bytes(frames_of(24, 64, 48), options={"g": "6", "bf": "0", "sc_threshold": "0"})
    limits = MediaLimits(max_decoded_pixels=10 * 64 * 48)
    frames, fps = watch(video, limits=limits)
    assert levels(frames) == [0, 6, 12, 18]
    assert fps == pytest.approx(4 / 2.4)
    few, _ = watch(video, FrameSampling(fps=10), limits)
    assert levels(few) == [0, 6, 12, 18]


def test_decoding_ends_where_its_limit_is() -> None:
    video = video_bytes(frames_of(24, 64, 48), options={"g": "1"})
    assert "The video has more than" in refusal(video, MediaLimits(max_decoded_pixels=2 * 64 * 48))


def test_large_frames() -> None:
    video = video_bytes(frames_of(4, 64, 48))
    assert refusal(video, MediaLimits(max_frame_pixels=3000)) == "The video has frames of 3072 pixels, more than 3000"


def test_many_frames() -> None:
    video = video_bytes(frames_of(10, 16, 16))
    assert refusal(video, MediaLimits(max_video_packets=9)) == "The video has more than 9 frames"
    assert len(watch(video, limits=MediaLimits(max_video_packets=10))[0]) == 4


def test_video_with_sound() -> None:
    """Other streams are passed over, even when they come first."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        sound = output.add_stream("aac", rate=16000)
        video = output.add_stream("libx264", rate=10, width=64, height=48, pix_fmt="yuv420p")
        frame = av.AudioFrame.from_ndarray(tone(16000, 2), format="fltp", layout="mono")
        frame.sample_rate = 16000
        output.mux(sound.encode(frame))
        for pixels in frames_of(20, 64, 48):
            output.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux([*sound.encode(None), *video.encode(None)])
    assert levels(watch(buffer.getvalue())[0]) == [0, 5, 10, 15]


def test_sound_alone_is_no_video() -> None:
    assert refusal(audio_bytes(tone(16000), 16000, "aac", "mp4")) == INVALID


def broken_files() -> list[bytes]:
    mp4 = video_bytes(frames_of(20, 64, 48))
    avi = video_bytes(frames_of(20, 64, 48), codec="mpeg4", container="avi")
    return [
        b"",
        b"hello world, this is no video at all",
        mp4[:16],
        mp4[: len(mp4) // 2],
        b"\0\0\0\x20ftypisom" + b"\0" * 500,
        avi[:200],
        b"RIFF\xff\xff\xff\x7fAVI " + b"\0" * 500,
        bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + b"\0" * 500,
        wav_bytes(),
        image_bytes(picture()),
        image_bytes(picture(), "GIF", save_all=True, append_images=[picture(colour=(0, 0, 0))]),
        video_bytes(frames_of(20, 64, 48), codec="libvpx-vp9", container="webm"),
        video_bytes(frames_of(20, 64, 48), codec="mpeg4", container="mpegts"),
    ]


@pytest.mark.parametrize("content", broken_files(), ids=range(len(broken_files())))
def test_broken_and_other_formats(content: bytes) -> None:
    assert refusal(content) == INVALID


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>http://127.0.0.1/</BaseURL></MPD>',
    ],
)
def test_playlists_are_not_opened(content: bytes) -> None:
    assert refusal(content) == INVALID


def test_frames_that_grow() -> None:
    """The header promises small frames, a later one is larger."""
    buffer = io.BytesIO()
    small, large = frames_of(6, 16, 16), frames_of(6, 160, 160)
    packets = [*packets_of(small), *packets_of(large)]
    with av.open(buffer, "w", format="avi") as output:
        stream = output.add_stream("mjpeg", rate=10, width=16, height=16, pix_fmt="yuvj420p")
        for number, data in enumerate(packets):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, number, number
            output.mux(packet)
    video = buffer.getvalue()
    assert [frame.size for frame in watch(video)[0]] == [(16, 16), (16, 16), (160, 160), (160, 160)]
    assert refusal(video, MediaLimits(max_frame_pixels=1000)) == INVALID
    assert "more than" in refusal(video, MediaLimits(max_decoded_pixels=12 * 16 * 16))


def packets_of(frames: Sequence[NDArray[np.uint8]]) -> list[bytes]:
    """Each as a JPG."""
    return [image_bytes(Image.fromarray(frame), "JPEG") for frame in frames]


def test_unknown_codec() -> None:
    video = video_bytes(frames_of(4, 16, 16), codec="mpeg4", container="avi")
    assert refusal(video.replace(b"FMP4", b"XYZ1").replace(b"fmp4", b"xyz1")) == INVALID


@pytest.mark.parametrize(("codec", "container"), [("libx264", "mp4"), ("mpeg4", "avi"), ("wmv2", "asf")])
def test_any_damage_is_shown_or_refused(codec: str, container: str) -> None:
    """Never another error, whatever bytes change."""
    video = video_bytes(frames_of(8, 32, 32), codec=codec, container=container)
    random = np.random.default_rng(7)
    for _ in range(60):
        damaged = bytearray(video)
        for place in random.integers(len(video), size=random.integers(1, 12)):
            damaged[place] = random.integers(256)
        with suppress(InvalidRequest):
            assert watch(bytes(damaged))[0]


def test_damaged_middle_is_shown_as_far_as_it_goes() -> None:
    video = bytearray(video_bytes(frames_of(20, 64, 48), codec="mjpeg", container="avi"))
    frame = video.index(b"\xff\xd8\xff", len(video) // 2)
    video[frame : frame + 4] = b"\0\0\0\0"
    frames, _ = watch(bytes(video))
    assert 3 <= len(frames) <= 4


@pytest.mark.parametrize("count", [3, 40])
def test_nothing_but_damage(count: int) -> None:
    video = video_bytes(frames_of(count, 64, 48))
    start = video.index(b"mdat") + 4
    end = video.index(b"moov") - 4
    assert start < end
    assert refusal(video[:start] + b"\0" * (end - start) + video[end:]) == INVALID
