import asyncio
import gc
import os
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mindserve.contract.request import PartKind
from mindserve.engine.base import MediaKind
from mindserve.errors import ModelLoadError
from mindserve.media import MediaLimits, MediaProcessors, load_processors
from mindserve.media import loader as loader_module
from mindserve.media.content import Content, SizeBudget
from mindserve.media.prepared import MediaCache, PreparedMedia
from mindserve.media.processors import media_digest
from tests.media.asking import data, refusal
from tests.media.conftest import MakeLoader
from tests.media.descriptors import open_files
from tests.media.samples import (
    base64_of,
    frames_of,
    image_bytes,
    image_part,
    picture,
    png_header,
    video_bytes,
    video_part,
)
from tests.media.servers import MediaServer

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


async def test_no_file_is_left_open(make_loader: MakeLoader, media_server: MediaServer, media_dir: Path) -> None:
    large = video_bytes(frames_of(20, 64, 48)) + b"\0" * (6 * 1024 * 1024)
    (media_dir / "large.mp4").write_bytes(large)
    media_server.file("/large.mp4", large)
    media_server.raw("/cut.mp4", b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + large)
    loader = make_loader(limits=MediaLimits(decode_threads=1))
    await loader.load([image_part("demo.png"), video_part("large.mp4")])
    before = open_files()
    await loader.load([video_part("large.mp4"), video_part(media_server.url("/large.mp4"))])
    await refusal(loader, [video_part(media_server.url("/cut.mp4")), video_part("large.mp4")])
    await refusal(loader, [video_part("large.mp4"), image_part(base64_of(b"hello"))])
    await refusal(loader, [image_part("absent.png"), image_part("demo.png")])
    await asyncio.wait_for(media_server.idle.wait(), 10)
    await loader.load([image_part("demo.png")])  # whatever the only worker had to do is done now
    left = {target for target in open_files().values() if "large" in target or "deleted" in target}
    assert not left - set(before.values())


async def test_cancelled_while_decoding(make_loader: MakeLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker keeps its file until it is done; then it is closed."""
    starts, goes_on = threading.Event(), threading.Event()
    contents: list[Content] = []
    prepare = MediaProcessors.prepare

    def slow(self: MediaProcessors, content: Content, kind: MediaKind, limits: MediaLimits) -> PreparedMedia:
        contents.append(content)
        starts.set()
        goes_on.wait(30)
        assert not content._file.closed
        return prepare(self, content, kind, limits)

    monkeypatch.setattr(MediaProcessors, "prepare", slow)
    loader = make_loader(limits=MediaLimits(decode_threads=1))
    task = asyncio.create_task(loader.load([image_part("demo.png"), image_part("demo.png")]))
    await asyncio.to_thread(starts.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not contents[0]._file.closed
    goes_on.set()
    (media,) = await loader.load([image_part("demo.png")])
    assert media.tokens == 4
    assert all(content._file.closed for content in contents)


async def test_decoding_ends_when_nobody_waits(
    make_loader: MakeLoader, media_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file fails under the decoder of a cancelled request."""
    starts, goes_on = threading.Event(), threading.Event()
    ends: list[BaseException] = []
    prepare = MediaProcessors.prepare

    def slow(self: MediaProcessors, content: Content, kind: MediaKind, limits: MediaLimits) -> PreparedMedia:
        starts.set()
        goes_on.wait(30)
        try:
            return prepare(self, content, kind, limits)
        except OSError as error:
            ends.append(error)
            raise

    monkeypatch.setattr(MediaProcessors, "prepare", slow)
    (media_dir / "a.mp4").write_bytes(video_bytes(frames_of(20, 64, 48)))
    loader = make_loader(limits=MediaLimits(decode_threads=1))
    task = asyncio.create_task(loader.load([video_part("a.mp4")]))
    await asyncio.to_thread(starts.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    goes_on.set()
    await loader.load([image_part("demo.png")])
    assert len(ends) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
async def test_decoding_gives_way(make_loader: MakeLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    priorities: list[int] = []
    prepare = MediaProcessors.prepare

    def note(self: MediaProcessors, content: Content, kind: MediaKind, limits: MediaLimits) -> PreparedMedia:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return prepare(self, content, kind, limits)

    monkeypatch.setattr(MediaProcessors, "prepare", note)
    await make_loader().load([image_part("demo.png")])
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert priorities[0] > own or own >= 10


async def test_event_loop_goes_on_while_a_part_is_decoded(
    make_loader: MakeLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder waits for the event loop: it would wait for ever if it ran there."""
    is_alive = threading.Event()
    threads: list[str] = []
    prepare = MediaProcessors.prepare

    def waiting(self: MediaProcessors, content: Content, kind: MediaKind, limits: MediaLimits) -> PreparedMedia:
        assert is_alive.wait(30)
        threads.append(threading.current_thread().name)
        return prepare(self, content, kind, limits)

    monkeypatch.setattr(MediaProcessors, "prepare", waiting)
    task = asyncio.create_task(make_loader().load([image_part("demo.png")]))
    await asyncio.sleep(0.01)
    is_alive.set()
    await task
    assert threads[0].startswith("media")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
async def test_bombs(make_loader: MakeLoader) -> None:
    """Small files that promise much: refused, whatever they are called."""
    gif = image_bytes(picture(), "GIF", save_all=True, append_images=[picture(colour=(n, 0, 0)) for n in range(99)])
    for bomb in (png_header(60_000, 60_000), png_header(10_000, 9_000), gif):
        for source in (base64_of(bomb), data("image/png", bomb)):
            message = await refusal(make_loader(), [image_part(source)])
            assert "Invalid image content" in message or "The image has 90000000 pixels" in message


async def test_bugs_are_not_hidden(make_loader: MakeLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(loader_module, "media_digest", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        await make_loader().load([image_part("demo.png")])


async def test_closed_loader(make_loader: MakeLoader) -> None:
    loader = make_loader()
    await loader.load([image_part("demo.png")])
    before = threading.active_count()
    loader.close()
    gc.collect()
    assert threading.active_count() <= before
    with pytest.raises(RuntimeError):
        await loader.load([image_part("demo.png")])


def media(name: bytes, size: int) -> PreparedMedia:
    return PreparedMedia(kind=MediaKind.IMAGE, features={"x": np.zeros(size, np.uint8)}, tokens=1, digest=name)


def test_cache_forgets_what_was_not_used_for_longest() -> None:
    cache = MediaCache(100)
    for name in (b"a", b"b"):
        cache.keep(media(name, 50))
    assert cache.find(b"a") is not None
    cache.keep(media(b"c", 50))
    assert cache.find(b"b") is None
    assert cache.find(b"a") is not None
    assert cache.find(b"c") is not None
    cache.keep(media(b"large", 101))
    assert cache.find(b"large") is None
    assert cache.find(b"a") is not None
    cache.keep(media(b"whole", 100))
    assert cache.find(b"whole") is not None
    assert cache.find(b"a") is None


def test_same_bytes_as_another_kind_are_other_media() -> None:
    with closing(Content(max_bytes=10, too_large="", budget=SizeBudget(10))) as content:
        content.write(b"abc")
        assert len({media_digest(content, kind) for kind in MediaKind}) == len(MediaKind)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("qwen2-vl", {MediaKind.IMAGE, MediaKind.VIDEO}),
        ("qwen2.5-vl", {MediaKind.IMAGE, MediaKind.VIDEO}),
        ("qwen2-audio", {MediaKind.AUDIO}),
        ("qwen2", set[MediaKind]()),
    ],
)
def test_processors_of_a_model(family: str, kinds: set[MediaKind]) -> None:
    processors = load_processors(GOLDENS / family / "model", max_tokens=7)
    assert processors.kinds == kinds
    if processors.vision is not None:
        assert processors.vision.config.max_pixels == 12544
        assert processors.max_tokens == 7


@pytest.mark.parametrize("text", ["", "{", "[]", '{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 0}'])
def test_unusable_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json"):
        load_processors(tmp_path)


def test_every_kind_of_part_is_some_media() -> None:
    assert {loader_module.MEDIA_KINDS[kind] for kind in PartKind} == set(MediaKind)
