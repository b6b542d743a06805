"""Images and videos as the vision towers of Qwen2-VL and Qwen2.5-VL take them: patches of normalised pixels.

Equal to the published processors: resizing to multiples of a merged patch within a range of pixels (Pillow's bicubic
filter), normalising with CLIP's statistics, and cutting into patches in the order in which the tower merges them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mindserve.errors import InvalidRequest, ModelLoadError
from mindserve.media.video import FrameSampling, VideoClip

MAX_ASPECT_RATIO: Final = 200
TOO_NARROW: Final = "Invalid image content: the ratio of its sides must be smaller than 200"

_VIDEO_FRAME_TOKENS: Final = 768
_VIDEO_TOTAL_TOKENS: Final = 115_200
"""The published pipeline spends at most so many tokens on a frame, and on a video (90 % of 128 000)."""
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVisionConfig:
    """`preprocessor_config.json` of a Qwen2VLImageProcessor; the defaults are the published ones."""

    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    mean: tuple[float, ...] = _CLIP_MEAN
    std: tuple[float, ...] = _CLIP_STD

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Older files have `min_pixels` and `max_pixels`, newer ones `size`. Raises ModelLoadError."""
        size = cast("Mapping[str, Any]", config.get("size") or {})
        default = cls()
        try:
            parsed = cls(
                min_pixels=int(config.get("min_pixels") or size.get("shortest_edge") or default.min_pixels),
                max_pixels=int(config.get("max_pixels") or size.get("longest_edge") or default.max_pixels),
                patch_size=int(config.get("patch_size", default.patch_size)),
                temporal_patch_size=int(config.get("temporal_patch_size", default.temporal_patch_size)),
                merge_size=int(config.get("merge_size", default.merge_size)),
                mean=tuple(map(float, config.get("image_mean", default.mean))),
                std=tuple(map(float, config.get("image_std", default.std))),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"preprocessor_config.json: {error}") from error
        if not parsed._is_sound():
            raise ModelLoadError("preprocessor_config.json: sizes of patches or pixels are out of range")
        return parsed

    @property
    def factor(self) -> int:
        """Sides of resized images are multiples of it: one merged patch, one token."""
        return self.patch_size * self.merge_size

    def _is_sound(self) -> bool:
        sizes = (self.patch_size, self.temporal_patch_size, self.merge_size, self.min_pixels)
        has_statistics = len(self.mean) == len(self.std) == 3 and all(self.std)
        return min(sizes) > 0 and self.min_pixels <= self.max_pixels and has_statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFeatures:
    """What the tower takes for one image or video."""

    pixel_values: NDArray[np.float32]
    """`[patches, 3 * temporal_patch_size * patch_size ** 2]`."""
    frames: NDArray[np.uint8]
    """`[frames, height, width, 3]`, what the patches were cut from; an image is there `temporal_patch_size` times."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width."""
    tokens: int
    """Placeholders in the prompt."""
    seconds_per_grid: float = 0.0
    """Video time between two steps of the grid (Qwen2.5-VL's positions); 0 for an image."""


TokenCheck = Callable[[int], None]
"""Told how many placeholders an image or video takes before its pixels are made; raises when there are too many."""


def _any_number(_tokens: int) -> None:
    """No limit."""


class QwenVisionProcessor:
    """Stateless but for its tables; thread-safe."""

    def __init__(self, config: QwenVisionConfig | None = None, *, sampling: FrameSampling | None = None) -> None:
        self.config = config or QwenVisionConfig()
        self.sampling = sampling or FrameSampling(multiple_of=self.config.temporal_patch_size)
        std = np.array(self.config.std)
        self._scale = _by_channel(1 / (255 * std))
        self._shift = _by_channel(-np.array(self.config.mean) / std)

    def image(self, image: Image.Image, check_tokens: TokenCheck = _any_number) -> VisionFeatures:
        """RGB. Raises InvalidRequest for extreme shapes, and what `check_tokens` raises."""
        config = self.config
        height, width = smart_resize(
            image.height,
            image.width,
            factor=config.factor,
            min_pixels=config.min_pixels,
            max_pixels=config.max_pixels,
        )
        check_tokens(height * width // config.factor**2)
        pixels = _resized(image, height, width)
        return self._features([pixels] * config.temporal_patch_size)

    def video(self, clip: VideoClip, check_tokens: TokenCheck = _any_number) -> VisionFeatures:
        """Frames are resized one by one as they are decoded. Raises as `image` does, and for broken content."""
        step = self.config.temporal_patch_size
        frames: list[NDArray[np.uint8]] = []
        height = width = 0
        for frame in clip.frames:
            if not frames:
                height, width = self._frame_size(frame, clip.frame_count)
                check_tokens(math.ceil(clip.frame_count / step) * height * width // self.config.factor**2)
            frames.append(_resized(frame, height, width))
        frames += frames[-1:] * (-len(frames) % step)
        return self._features(frames, seconds_per_grid=step / clip.fps)

    def _frame_size(self, frame: Image.Image, frame_count: int) -> tuple[int, int]:
        """A frame may have an even share of the pixels of a whole video."""
        config = self.config
        token_pixels = config.factor**2
        share = _VIDEO_TOTAL_TOKENS * token_pixels * config.temporal_patch_size // frame_count
        most = min(config.max_pixels, _VIDEO_FRAME_TOKENS * token_pixels, share)
        return smart_resize(
            frame.height,
            frame.width,
            factor=config.factor,
            min_pixels=config.min_pixels,
            max_pixels=max(most, int(config.min_pixels * 1.05)),
        )

    def _features(self, images: Sequence[NDArray[np.uint8]], *, seconds_per_grid: float = 0.0) -> VisionFeatures:
        frames = np.stack(images)
        patches, grid = _patches(frames, self.config)
        values = patches.astype(np.float32)
        values *= self._scale
        values += self._shift
        return VisionFeatures(
            pixel_values=values.reshape(len(values), -1),
            frames=frames,
            grid_thw=grid,
            tokens=len(values) // self.config.merge_size**2,
            seconds_per_grid=seconds_per_grid,
        )


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width nearest to the given ones that are multiples of `factor`, with an area within the range.

    Raises InvalidRequest for sides that differ more than 200 times.
    """
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise InvalidRequest(TOO_NARROW, param="messages")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def _by_channel(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """`[3]` to the shape that fits `_patches`."""
    return values.astype(np.float32)[:, None, None, None]


def _resized(image: Image.Image, height: int, width: int) -> NDArray[np.uint8]:
    """`[height, width, 3]`."""
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def _patches(frames: NDArray[np.uint8], config: QwenVisionConfig) -> tuple[NDArray[np.uint8], tuple[int, int, int]]:
    """`[patches, 3, temporal_patch_size, patch_size, patch_size]` and the grid; merged neighbours follow each other."""
    time, size, merge = config.temporal_patch_size, config.patch_size, config.merge_size
    count, height, width, _ = frames.shape
    grid = (count // time, height // size, width // size)
    pixels = frames.reshape(
        grid[0], time, grid[1] // merge, merge, size, grid[2] // merge, merge, size, 3
    )  # t T h m p w m p c
    ordered = pixels.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return ordered.reshape(-1, 3, time, size, size), grid
