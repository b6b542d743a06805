"""What the vision tower's graph must be told about the shape of an image: angles and windows. Plain numbers."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.models.towers.spec import VisionSpec

_THETA = 10000.0
_OUTSIDE = np.float32(-1e9)
"""Added to products with places of a window that hold no patch."""


@lru_cache(maxsize=16)
def grid_inputs(spec: VisionSpec, height: int, width: int) -> dict[str, NDArray[np.generic]]:
    """Inputs of the graph for `height` x `width` patches, pixels excepted."""
    inputs: dict[str, NDArray[np.generic]] = {}
    inputs["cos"], inputs["sin"] = _rotations(spec, height, width)
    if spec.window is not None:
        rows, mask, places = _windows(spec, height, width)
        inputs |= {"window_rows": rows, "window_mask": mask, "window_places": places}
    return inputs


def _patch_order(height: int, width: int, merge_size: int) -> NDArray[np.int64]:
    """`[P, 2]` row and column of each patch: the patches of a token follow each other."""
    rows, columns = np.mgrid[:height, :width]
    places = np.stack([rows, columns], axis=-1)
    blocks = places.reshape(height // merge_size, merge_size, width // merge_size, merge_size, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def _rotations(spec: VisionSpec, height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`[P, head_dim]` cos and sin: half of the rotating pairs turns with the row, the other with the column."""
    pairs = spec.head_dim // 4
    frequencies = _THETA ** -(np.arange(pairs) / pairs)
    places = _patch_order(height, width, spec.merge_size)
    angles = (places[:, :, None] * frequencies).reshape(len(places), -1)
    angles = np.concatenate([angles, angles], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _windows(
    spec: VisionSpec, height: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """`window_rows` `[W, S]` patches of each window (0 in unused places), `window_mask` `[W, 1, 1, S]` 0 where there is
    a patch, `window_places` `[P]` place of each patch among all `W * S`."""
    assert spec.window is not None
    places = _patch_order(height, width, spec.merge_size) // spec.window
    window = places[:, 0] * -(-width // spec.window) + places[:, 1]
    count, size = int(window.max()) + 1, spec.window**2
    order = np.argsort(window, kind="stable")
    first = np.searchsorted(window[order], np.arange(count))
    slots = np.empty(len(window), np.int64)
    slots[order] = window[order] * size + np.arange(len(window)) - first[window[order]]
    rows, mask = np.zeros(count * size, np.int64), np.full(count * size, _OUTSIDE)
    rows[slots], mask[slots] = np.arange(len(window)), 0
    return rows.reshape(count, size), mask.reshape(count, 1, 1, size), slots
