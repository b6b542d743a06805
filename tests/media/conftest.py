"""Fixtures of the media tests: a web server, a media directory and loaders."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from mindserve.media import MediaLimits, MediaLoader, MediaProcessors
from mindserve.media.fetch import Fetcher, Resolver
from mindserve.media.qwen_vision import QwenVisionProcessor
from mindserve.media.whisper_features import WhisperProcessor
from tests.media.samples import image_bytes, picture
from tests.media.servers import MediaServer, running_server

MakeLoader = Callable[..., MediaLoader]


@pytest.fixture
async def media_server() -> AsyncIterator[MediaServer]:
    async with running_server() as server:
        server.file("/x.png", image_bytes(picture()))
        yield server


@pytest.fixture
def media_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "multimodal_inputs"
    directory.mkdir()
    (directory / "demo.png").write_bytes(image_bytes(picture()))
    return directory


@pytest.fixture
def make_loader(media_dir: Path) -> Iterator[MakeLoader]:
    """Loaders of a model that sees and hears; `allowed` is the operator's list."""
    loaders: list[MediaLoader] = []

    def make(
        allowed: str = "127.0.0.1",
        *,
        limits: MediaLimits | None = None,
        resolver: Resolver | None = None,
        processors: MediaProcessors | None = None,
    ) -> MediaLoader:
        limits = limits or MediaLimits()
        loader = MediaLoader(
            processors or MediaProcessors(vision=QwenVisionProcessor(), audio=WhisperProcessor()),
            media_dir,
            limits=limits,
            fetcher=Fetcher(limits, resolver=resolver) if resolver else Fetcher(limits),
            domains=lambda: allowed,
        )
        loaders.append(loader)
        return loader

    yield make
    for loader in loaders:
        loader.close()
