"""What the media room hands on: one part, ready for the model's tower."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import DecodedMedia, MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    """One image, video or sound; its place in the prompt is not known yet."""

    kind: MediaKind
    features: Mapping[str, NDArray[np.generic]]
    """Vision: `pixel_values` `[patches, 1176]`, `grid_thw` `[3]`, for videos `second_per_grid` `[]`. Audio:
    `input_features` `[bins, frames]`, `feature_attention_mask` `[frames]`. Read-only: parts with equal content share
    them."""
    tokens: int
    """Placeholders in the prompt."""
    digest: bytes
    """Hash of the file and its kind, 32 bytes."""
    decoded: DecodedMedia | None = None
    """Instead of features, for engines that make them themselves; resized already."""

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        decoded = 0 if self.decoded is None else self.decoded.data.nbytes
        return decoded + sum(array.nbytes for array in self.features.values())


class MediaCache:
    """The media used last, by digest, within a budget of bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, PreparedMedia] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> PreparedMedia | None:
        """What was kept for this content."""
        with self._lock:
            media = self._entries.get(digest)
            if media is not None:
                self._entries.move_to_end(digest)
            return media

    def keep(self, media: PreparedMedia) -> None:
        """Remember `media`, forgetting what was not used for longest; what exceeds the whole budget is not kept."""
        with self._lock:
            if media.size_bytes > self._max_bytes or media.digest in self._entries:
                return
            self._entries[media.digest] = media
            self._size_bytes += media.size_bytes
            while self._size_bytes > self._max_bytes:
                _, forgotten = self._entries.popitem(last=False)
                self._size_bytes -= forgotten.size_bytes
