"""The contract's media cases: validation, then everything this room does."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from mindserve.chat.messages import media_parts
from mindserve.contract.context import ValidationContext
from mindserve.contract.request import MediaPart, PartKind
from mindserve.contract.validate import parse_request
from mindserve.errors import InvalidRequest
from mindserve.media import PreparedMedia
from tests.contract.cases import Case, load_cases
from tests.media.conftest import MakeLoader
from tests.media.placeholders import media_placeholders
from tests.media.samples import image_bytes, picture
from tests.media.servers import MediaServer

NEEDS_MEDIA = frozenset({"vision", "video", "audio"})
NAMES = sorted({case.name for case in load_cases({}) if not case.needs.isdisjoint(NEEDS_MEDIA)})


@pytest.fixture
def placeholders(media_dir: Path, media_server: MediaServer) -> dict[str, str]:
    outside = media_dir.parent / "outside.png"
    outside.write_bytes(image_bytes(picture()))
    (media_dir / "out.png").symlink_to(outside)
    (media_dir / "in.png").symlink_to("demo.png")
    (media_dir / "large.png").write_bytes(image_bytes(picture()))
    os.truncate(media_dir / "large.png", 41 * 1024 * 1024)
    return {
        "MODEL": "some-model",
        **media_placeholders(media_dir, port=media_server.port),
    }


@pytest.mark.parametrize("name", NAMES)
async def test_case(name: str, placeholders: dict[str, str], make_loader: MakeLoader) -> None:
    cases = [case for case in load_cases(placeholders) if case.name == name]
    assert cases
    for case in cases:
        loader = make_loader(case.env.get("ALLOWED_MEDIA_DOMAINS_ENV", ""))
        if case.status == 200:
            parts, media = await answer(case, loader.load)
            assert len(media) == len(parts) > 0
            assert all(item.tokens > 0 for item in media)
            continue
        assert case.status == 422
        with pytest.raises(InvalidRequest) as caught:
            await answer(case, loader.load)
        assert (case.error_contains or "") in caught.value.message
        assert len(caught.value.message) < 500


async def answer(case: Case, load: object) -> tuple[Sequence[MediaPart], list[PreparedMedia]]:
    context = ValidationContext(models={"some-model": None}, mode=case.mode, media=frozenset(PartKind))
    parts = media_parts(parse_request(case.body, context).messages)
    return parts, await asyncio.wait_for(load(parts), 60)  # type: ignore[operator]


def test_there_are_cases() -> None:
    assert len(NAMES) >= 38
