"""Asking a loader, and hearing it refuse."""

import asyncio
from collections.abc import Sequence

import pytest

from mindserve.contract.request import MediaPart
from mindserve.errors import InvalidRequest, MindserveError
from mindserve.media import MediaLoader
from tests.media.samples import base64_of


def data(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64_of(content)}"


async def refusal(loader: MediaLoader, parts: Sequence[MediaPart], kind: type[MindserveError] = InvalidRequest) -> str:
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(loader.load(parts), 60)
    assert caught.value.param == "messages"
    assert str(caught.value) == caught.value.message
    return caught.value.message
