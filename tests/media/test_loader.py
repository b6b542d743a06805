import asyncio
from pathlib import Path

import numpy as np
import pytest

from mindserve.engine.base import MediaKind
from mindserve.errors import PromptTooLong
from mindserve.media import MediaLimits, MediaLoader, MediaProcessors
from mindserve.media.qwen_vision import QwenVisionProcessor
from mindserve.media.whisper_features import WhisperProcessor
from tests.media.asking import data, refusal
from tests.media.conftest import MakeLoader
from tests.media.samples import (
    audio_bytes,
    audio_part,
    base64_of,
    frames_of,
    image_bytes,
    image_part,
    input_audio,
    picture,
    tone,
    video_bytes,
    video_part,
    wav_bytes,
)
from tests.media.servers import MediaServer

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


async def test_every_form_of_an_image(make_loader: MakeLoader, media_server: MediaServer, media_dir: Path) -> None:
    """All the same file, so all the same features under the same name."""
    png = (media_dir / "demo.png").read_bytes()
    forms = [
        base64_of(png),
        data("image/png", png),
        data("IMAGE/JPEG", png),
        "demo.png",
        str(media_dir / "demo.png"),
        "file://demo.png",
        f"file://{media_dir}/demo.png",
        media_server.url("/x.png"),
        media_server.url("/x.png?size=large"),
    ]
    media_server.file("/x.png?size=large", png)
    media = await make_loader().load([image_part(form) for form in forms])
    assert len(media) == len(forms)
    assert {item.digest for item in media} == {media[0].digest}
    assert {item.kind for item in media} == {MediaKind.IMAGE}
    assert len(media[0].digest) == 32


async def test_every_form_of_a_video(make_loader: MakeLoader, media_server: MediaServer, media_dir: Path) -> None:
    files = {
        "a.mp4": ("video/mp4", video_bytes(frames_of(20, 64, 48))),
        "a.avi": ("video/x-msvideo", video_bytes(frames_of(20, 64, 48), codec="mpeg4", container="avi")),
        "a.wmv": ("video/x-ms-wmv", video_bytes(frames_of(20, 64, 48), codec="wmv2", container="asf")),
    }
    for name, (mime, content) in files.items():
        (media_dir / name).write_bytes(content)
        media_server.file(f"/{name}", content)
        forms = [name, f"file://{media_dir}/{name}", data(mime, content), media_server.url(f"/{name}")]
        media = await make_loader().load([video_part(form) for form in forms])
        assert {item.digest for item in media} == {media[0].digest}
        for item in media:
            assert item.kind is MediaKind.VIDEO
            assert item.features["pixel_values"].shape == (32, 1176)
            np.testing.assert_array_equal(item.features["grid_thw"], [2, 4, 4])
            assert item.features["second_per_grid"] == pytest.approx(1.0)
            assert item.tokens == 8


async def test_every_form_of_a_sound(make_loader: MakeLoader, media_server: MediaServer, media_dir: Path) -> None:
    files = {
        "mp3": ("audio/mpeg", audio_bytes(tone(44100), 44100, "libmp3lame", "mp3")),
        "wav": ("audio/x-wav", wav_bytes()),
        "flac": ("audio/flac", audio_bytes(tone(48000), 48000, "flac", "flac")),
    }
    for name, (mime, content) in files.items():
        (media_dir / f"a.{name}").write_bytes(content)
        media_server.file(f"/a.{name}", content)
        forms = [f"a.{name}", f"file://a.{name}", data(mime, content), media_server.url(f"/a.{name}")]
        parts = [*map(audio_part, forms), input_audio(content, name)]
        media = await make_loader().load(parts)
        assert {item.digest for item in media} == {media[0].digest}
        for item in media:
            assert item.kind is MediaKind.AUDIO
            assert item.features["input_features"].shape == (128, 3000)
            assert item.features["feature_attention_mask"].sum() in (50, 51)
            assert item.tokens == 12


async def test_parts_keep_their_order(make_loader: MakeLoader, media_server: MediaServer) -> None:
    """The first comes last from its server."""
    small, large = image_bytes(picture(56, 56)), image_bytes(picture(560, 560))

    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(large) + large)

    media_server.answers["/late.png"] = late
    parts = [
        image_part(media_server.url("/late.png")),
        image_part(base64_of(small)),
        input_audio(wav_bytes(), "wav"),
        image_part(base64_of(small)),
    ]
    media = await make_loader().load(parts)
    assert [item.tokens for item in media] == [400, 4, 12, 4]
    assert media[1].digest == media[3].digest != media[0].digest


async def test_nothing_to_load(make_loader: MakeLoader) -> None:
    assert await make_loader().load([]) == []


async def test_features_can_not_be_changed(make_loader: MakeLoader) -> None:
    (media,) = await make_loader().load([image_part("demo.png")])
    with pytest.raises(ValueError, match="read-only"):
        media.features["pixel_values"][0] = 0


async def test_content_that_comes_again_is_not_decoded_again(make_loader: MakeLoader) -> None:
    loader = make_loader()
    (first,) = await loader.load([image_part("demo.png")])
    (again,) = await loader.load([image_part("file://demo.png")])
    assert again is first
    without = make_loader(limits=MediaLimits(cache_bytes=0))
    (first,) = await without.load([image_part("demo.png")])
    (again,) = await without.load([image_part("demo.png")])
    assert again is not first
    assert again.digest == first.digest


async def test_list_is_read_for_every_request(media_dir: Path, media_server: MediaServer) -> None:
    lists = ["", "127.0.0.1", "other.example"]
    processors = MediaProcessors(vision=QwenVisionProcessor())
    loader = MediaLoader(processors, media_dir, domains=lambda: lists.pop(0))
    parts = [image_part(media_server.url("/x.png"))] * 2
    assert "is not in allowed domain list" in await refusal(loader, parts)
    assert len(await loader.load(parts)) == 2
    assert "is not in allowed domain list" in await refusal(loader, parts)
    assert not lists
    loader.close()


async def test_list_comes_from_the_environment(
    media_dir: Path, media_server: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = MediaLoader(MediaProcessors(vision=QwenVisionProcessor()), media_dir)
    parts = [image_part(media_server.url("/x.png"))]
    monkeypatch.delenv("ALLOWED_MEDIA_DOMAINS_ENV", raising=False)
    assert "is not in allowed domain list" in await refusal(loader, parts)
    monkeypatch.setenv("ALLOWED_MEDIA_DOMAINS_ENV", "upload.example.org, 127.0.0.1")
    assert len(await loader.load(parts)) == 1
    loader.close()


async def test_errors_name_the_part(make_loader: MakeLoader) -> None:
    good, broken = image_part("demo.png"), image_part(base64_of(b"hello"))
    message = await refusal(make_loader(), [good, good, broken])
    assert message == "Media part 3 of 3 (image_url): Invalid image content, check the input image"
    message = await refusal(make_loader(), [good, video_part(data("video/mp4", b"hello"))])
    assert message == "Media part 2 of 2 (video_url): Invalid video content, check the input video"
    message = await refusal(make_loader(), [input_audio(b"hello", "mp3")])
    assert message == "Media part 1 of 1 (input_audio): Invalid audio content, check the input audio"


async def test_nothing_is_fetched_before_all_parts_are_checked(
    make_loader: MakeLoader, media_server: MediaServer
) -> None:
    good = image_part(media_server.url("/x.png"))
    for bad in (image_part("http://evil.example/x.png"), image_part("x.gif"), video_part("aGVsbG8=")):
        assert "Media part 2 of 2" in await refusal(make_loader(), [good, bad])
    assert media_server.connections == 0


async def test_first_failure_ends_the_others(make_loader: MakeLoader, media_server: MediaServer) -> None:
    async def stall(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    media_server.answers["/slow.png"] = stall
    parts = [image_part(media_server.url("/slow.png")), image_part(base64_of(b"hello"))]
    assert "Media part 2 of 2" in await refusal(make_loader(), parts)


async def test_model_without_eyes_or_ears(make_loader: MakeLoader) -> None:
    deaf = make_loader(processors=MediaProcessors(vision=QwenVisionProcessor()))
    assert "The model does not support input_audio input" in await refusal(deaf, [input_audio(wav_bytes(), "wav")])
    assert "The model does not support audio_url input" in await refusal(deaf, [audio_part("a.wav")])
    blind = make_loader(processors=MediaProcessors(audio=WhisperProcessor()))
    assert "The model does not support image_url input" in await refusal(blind, [image_part("demo.png")])
    assert "The model does not support video_url input" in await refusal(blind, [video_part("a.mp4")])


async def test_sizes_by_source(make_loader: MakeLoader, media_server: MediaServer, media_dir: Path) -> None:
    with (media_dir / "large.png").open("wb") as file:
        file.truncate(40 * 1024 * 1024 + 1)
    assert "The size of image_url cannot exceed 40.0 MB" in await refusal(make_loader(), [image_part("large.png")])
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    media_server.raw("/large.wav", head % (40 * 1024 * 1024 + 1))
    media_server.raw("/large.mp4", head % (512 * 1024 * 1024 + 1))
    message = await refusal(make_loader(), [audio_part(media_server.url("/large.wav"))])
    assert "The size of audio_url exceeds the limit of 40.00 MB." in message
    message = await refusal(make_loader(), [video_part(media_server.url("/large.mp4"))])
    assert "The size of video_url exceeds the limit of 512.00 MB." in message
    sound = input_audio(b"\0" * (20 * 1024 * 1024 + 1), "wav")
    assert "The size of input_audio cannot exceed 20.0 MB" in await refusal(make_loader(), [sound])


async def test_size_of_all_parts_together(make_loader: MakeLoader) -> None:
    png = image_bytes(picture())
    loader = make_loader(limits=MediaLimits(max_request_bytes=5 * len(png)))
    assert len(await loader.load([image_part(base64_of(png))] * 5)) == 5
    assert "The total media input cannot exceed" in await refusal(loader, [image_part(base64_of(png))] * 6)


async def test_all_downloads_share_one_time_limit(make_loader: MakeLoader, media_server: MediaServer) -> None:
    """A server that keeps sending a little never runs into the read limit."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(3000):
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    media_server.answers["/slow.png"] = drip
    loader = make_loader(limits=MediaLimits(download_timeout_s=0.2))
    message = await refusal(loader, [image_part(media_server.url("/slow.png"))] * 3)
    assert message.endswith("Download timed out after 0.2 seconds.")
    await asyncio.wait_for(media_server.idle.wait(), 10)


async def test_parts_at_once(make_loader: MakeLoader, media_server: MediaServer) -> None:
    running = most = 0
    png = image_bytes(picture())

    async def count(writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(png) + png)

    media_server.answers["/c.png"] = count
    loader = make_loader(limits=MediaLimits(max_parts_at_once=3))
    parts = [image_part(media_server.url("/c.png"))] * 5
    media = await asyncio.gather(*(loader.load(parts) for _ in range(3)))
    assert sum(map(len, media)) == 15
    assert most == 3


async def test_tokens_of_one_part(make_loader: MakeLoader) -> None:
    processors = MediaProcessors(vision=QwenVisionProcessor(), max_tokens=100)
    loader = make_loader(processors=processors)
    message = await refusal(loader, [image_part(base64_of(image_bytes(picture(560, 280))))], PromptTooLong)
    assert message == "Media part 1 of 1 (image_url): The media take 200 tokens, more than the limit of 100."


async def test_tokens_of_all_parts(make_loader: MakeLoader) -> None:
    loader = make_loader(processors=MediaProcessors(vision=QwenVisionProcessor(), max_tokens=100))
    part = image_part(base64_of(image_bytes(picture(140, 140))))
    assert len(await loader.load([part] * 4)) == 4
    assert "The media take 125 tokens" in await refusal(loader, [part] * 5, PromptTooLong)


async def test_engines_that_prepare_media_themselves_get_them_decoded(make_loader: MakeLoader) -> None:
    """Resized, so that the placeholders fit; the same sizes and tokens as with features."""
    film = data("video/mp4", video_bytes(frames_of(12, 96, 64), fps=4))
    parts = [image_part("demo.png"), video_part(film), input_audio(wav_bytes(), "wav")]
    vision, audio = QwenVisionProcessor(), WhisperProcessor()
    featured = await make_loader(processors=MediaProcessors(vision=vision, audio=audio)).load(parts)
    keeping = MediaProcessors(vision=vision, audio=audio, keeps_decoded=True)
    decoded = await make_loader(processors=keeping).load(parts)
    assert [item.tokens for item in decoded] == [item.tokens for item in featured]
    assert [item.digest for item in decoded] == [item.digest for item in featured]
    assert all(item.decoded is None for item in featured)
    assert not any(item.features for item in decoded)
    image, video, sound = [item.decoded for item in decoded]
    _, rows, columns = featured[0].features["grid_thw"]
    assert image.data.shape == (rows * 14, columns * 14, 3)
    steps, rows, columns = featured[1].features["grid_thw"]
    assert video.data.shape == (steps * 2, rows * 14, columns * 14, 3)
    assert video.rate == pytest.approx(2 / float(featured[1].features["second_per_grid"]))
    assert (sound.data.shape, sound.rate) == ((8000,), 16_000)
    assert decoded[0].size_bytes == image.data.nbytes
    with pytest.raises(ValueError, match="read-only"):
        image.data[0] = 0
