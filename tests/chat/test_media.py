"""Placeholders in the prompt become as many as each part's tokens, in order."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from mindserve.chat.media import PlacedMedia
from mindserve.contract.request import MediaPart, PartKind
from mindserve.engine.base import MediaInput, MediaKind
from mindserve.errors import InvalidRequest, PromptTooLong
from mindserve.media import MediaLoader, PreparedMedia
from mindserve.media.processors import MEDIA_KINDS

IMAGE, VIDEO = 7, 8


class FakeLoader:
    """Media of as many tokens as their source says."""

    def __init__(self) -> None:
        self.loaded: list[MediaPart] = []

    async def load(self, parts: Sequence[MediaPart]) -> list[PreparedMedia]:
        await asyncio.sleep(0)
        self.loaded += parts
        if any(part.source == "999" for part in parts):
            raise PromptTooLong("too long", param="messages")
        return [
            PreparedMedia(
                kind=MEDIA_KINDS[part.kind],
                features={"pixel_values": np.zeros(int(part.source))},
                tokens=int(part.source),
                digest=part.source.encode(),
            )
            for part in parts
        ]


def part(kind: PartKind, tokens: int) -> MediaPart:
    return MediaPart(kind=kind, source=str(tokens))


async def read(
    parts: list[MediaPart], token_ids: list[int], loader: FakeLoader | None = None
) -> tuple[list[int], tuple[MediaInput, ...]]:
    """On a worker thread, as the service does."""
    loader = loader or FakeLoader()
    placeholders = {MediaKind.IMAGE: IMAGE, MediaKind.VIDEO: VIDEO}
    reader = PlacedMedia(cast("MediaLoader", cast("Any", loader)), placeholders, asyncio.get_running_loop())
    return await asyncio.to_thread(reader.read, parts, token_ids)


async def test_each_placeholder_is_repeated() -> None:
    parts = [part(PartKind.IMAGE_URL, 3), part(PartKind.VIDEO_URL, 1), part(PartKind.IMAGE_URL, 2)]
    token_ids, media = await read(parts, [1, IMAGE, 2, VIDEO, IMAGE, 3])
    assert token_ids == [1, IMAGE, IMAGE, IMAGE, 2, VIDEO, IMAGE, IMAGE, 3]
    assert [(each.kind, each.offset, each.length, each.digest) for each in media] == [
        (MediaKind.IMAGE, 1, 3, b"3"),
        (MediaKind.VIDEO, 5, 1, b"1"),
        (MediaKind.IMAGE, 6, 2, b"2"),
    ]
    assert [len(each.features["pixel_values"]) for each in media] == [3, 1, 2]


@pytest.mark.parametrize(
    "token_ids", [[1, 2], [IMAGE, IMAGE], [VIDEO], [IMAGE, VIDEO], []], ids=["none", "more", "other", "both", "empty"]
)
async def test_placeholders_that_do_not_match_the_parts_are_refused_before_any_fetch(token_ids: list[int]) -> None:
    loader = FakeLoader()
    with pytest.raises(InvalidRequest, match="media placeholders where the messages have 1 media parts") as refused:
        await read([part(PartKind.IMAGE_URL, 3)], token_ids, loader)
    assert refused.value.param == "messages"
    assert loader.loaded == []


async def test_what_the_loader_refuses_comes_through() -> None:
    with pytest.raises(PromptTooLong):
        await read([part(PartKind.IMAGE_URL, 999)], [IMAGE])
