"""Rotary positions of prompts with images and videos: three coordinates (time, height, width) per token.

Text counts on in all three. An image or video starts where the text before it ended, its tokens lie on a grid from
there, and the text after it goes on above the largest coordinate.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput, MediaKind
from mindserve.engine.native.models.towers.spec import MediaSpec


def grid_positions(spec: MediaSpec, length: int, media: Sequence[MediaInput]) -> NDArray[np.int64]:
    """`[3, length]` for a prompt of `length` tokens with `media` at their places, in order."""
    parts: list[NDArray[np.int64]] = []
    index = start = 0
    for item in media:
        if item.kind is MediaKind.AUDIO:
            continue
        parts.append(_text(start, item.offset - index))
        start += item.offset - index
        parts.append(start + _grid(spec, item))
        start = int(parts[-1].max()) + 1
        index = item.offset + item.length
    return np.concatenate([*parts, _text(start, length - index)], axis=1)


def _text(start: int, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(start, start + count, dtype=np.int64), (3, count))


def _grid(spec: MediaSpec, item: MediaInput) -> NDArray[np.int64]:
    """`[3, tokens]` from 0."""
    assert spec.vision is not None
    steps, height, width = (int(size) for size in item.features["grid_thw"])
    merge = spec.vision.merge_size
    places = np.mgrid[:steps, : height // merge, : width // merge].reshape(3, -1)
    if spec.tokens_per_second is not None and item.kind is MediaKind.VIDEO:
        seconds = float(item.features["second_per_grid"])
        places[0] = np.floor(places[0] * seconds * spec.tokens_per_second).astype(np.int64)
    return places.astype(np.int64)
