import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mindserve.errors import InvalidRequest, ModelLoadError, PromptTooLong
from mindserve.media.image import decode_image
from mindserve.media.qwen_vision import QwenVisionConfig, QwenVisionProcessor, smart_resize
from mindserve.media.video import VideoClip
from tests.media.samples import picture

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
FAMILIES = ("qwen2-vl", "qwen2.5-vl")


def config(family: str) -> dict[str, Any]:
    return json.loads((GOLDENS / family / "model" / "preprocessor_config.json").read_text())


def processor(family: str) -> QwenVisionProcessor:
    return QwenVisionProcessor(QwenVisionConfig.parse(config(family)))


def image(family: str, name: str) -> Image.Image:
    with (GOLDENS / family / name).open("rb") as file:
        return decode_image(file, max_pixels=1_000_000)


def clip(frames: list[Image.Image], fps: float = 2.0) -> VideoClip:
    return VideoClip(frame_count=len(frames), fps=fps, frames=iter(frames))


def media_cases() -> Iterator[tuple[str, str]]:
    for family in FAMILIES:
        golden = json.loads((GOLDENS / family / "golden.json").read_text())
        yield from ((family, case["name"]) for case in golden["cases"] if case["name"] != "text_only")


@pytest.mark.parametrize(("family", "name"), list(media_cases()))
def test_reference_pixels(family: str, name: str) -> None:
    golden = json.loads((GOLDENS / family / "golden.json").read_text())
    (case,) = [case for case in golden["cases"] if case["name"] == name]
    parts = [part for message in case["messages"] for part in message["content"]]
    images = [processor(family).image(image(family, part["image"])) for part in parts if part["type"] == "image"]
    videos = [
        processor(family).video(clip([image(family, frame) for frame in part["video"]]))
        for part in parts
        if part["type"] == "video"
    ]
    assert images or videos
    with np.load(GOLDENS / family / f"{name}.npz") as arrays:
        for seen, pixels, grids in (
            (images, "pixel_values", "image_grid_thw"),
            (videos, "pixel_values_videos", "video_grid_thw"),
        ):
            if not seen:
                assert pixels not in arrays
                continue
            values = np.concatenate([features.pixel_values for features in seen])
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, arrays[pixels], rtol=0, atol=1e-4)
            np.testing.assert_array_equal([features.grid_thw for features in seen], arrays[grids])
            embeds = arrays["image_embeds" if seen is images else "video_embeds"]
            assert sum(features.tokens for features in seen) == len(embeds)
    assert all(video.seconds_per_grid == 1.0 for video in videos)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((56, 84), (56, 84)),
        ((1, 1), (56, 56)),
        ((57, 85), (56, 84)),
        ((14, 14), (56, 56)),
        ((42, 98), (56, 112)),
        ((70, 70), (56, 56)),
        ((3000, 2000), (1204, 812)),
        ((28, 5600), (28, 5600)),
        ((1, 200), (28, 812)),
    ],
)
def test_smart_resize(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert smart_resize(*size, factor=28, min_pixels=3136, max_pixels=1_003_520) == expected


@pytest.mark.parametrize("size", [(1, 201), (201, 1), (10, 2001)])
def test_extreme_shapes(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="ratio of its sides must be smaller than 200"):
        QwenVisionProcessor().image(picture(*size))


@pytest.mark.parametrize("size", [(1, 1), (33, 17), (64, 48), (641, 359), (3000, 40)])
def test_shapes(size: tuple[int, int]) -> None:
    config = QwenVisionConfig()
    features = QwenVisionProcessor(config).image(picture(*size))
    time, height, width = features.grid_thw
    assert (time, height % 2, width % 2) == (1, 0, 0)
    assert features.pixel_values.shape == (height * width, 1176)
    assert features.tokens == height * width // 4
    assert config.min_pixels <= height * width * 14**2 <= config.max_pixels
    assert features.seconds_per_grid == 0


def test_colour_is_normalised() -> None:
    features = QwenVisionProcessor().image(picture(56, 56, (255, 0, 128)))
    expected = [(1 - 0.48145466) / 0.26862954, -0.4578275 / 0.26130258, (128 / 255 - 0.40821073) / 0.27577711]
    channels = features.pixel_values.reshape(-1, 3, 2, 14, 14)
    np.testing.assert_allclose(channels.max(axis=(0, 2, 3, 4)), expected, rtol=1e-6)
    np.testing.assert_allclose(channels.min(axis=(0, 2, 3, 4)), expected, rtol=1e-6)


def test_odd_number_of_frames_repeats_the_last() -> None:
    frames = [picture(56, 56, (value, value, value)) for value in (0, 100, 200)]
    features = QwenVisionProcessor().video(clip(frames))
    assert features.grid_thw == (2, 4, 4)
    pairs = features.pixel_values.reshape(2, 16, 3, 2, 14 * 14)
    assert not np.array_equal(pairs[0, :, :, 0], pairs[0, :, :, 1])
    np.testing.assert_array_equal(pairs[1, :, :, 0], pairs[1, :, :, 1])


def test_video_time() -> None:
    assert QwenVisionProcessor().video(clip([picture()] * 4, fps=0.5)).seconds_per_grid == 4.0


def test_frames_of_a_long_video_share_its_pixels() -> None:
    """A frame of 768 tokens at most, and fewer when there are many frames."""
    few = QwenVisionProcessor().video(clip([picture(1500, 1000)] * 2))
    assert 700 < few.tokens <= 768
    many = QwenVisionProcessor()._frame_size(picture(1500, 1000), 768)
    assert 250 < many[0] * many[1] // 28**2 <= 300


def test_tokens_are_checked_before_pixels_are_made() -> None:
    told: list[int] = []

    def refuse(tokens: int) -> None:
        told.append(tokens)
        raise PromptTooLong("too long")

    with pytest.raises(PromptTooLong):
        QwenVisionProcessor().image(picture(560, 280), refuse)
    with pytest.raises(PromptTooLong):
        QwenVisionProcessor().video(clip([picture(560, 280)] * 3), refuse)
    assert told == [200, 400]


def test_configuration_of_newer_files() -> None:
    assert QwenVisionConfig.parse({"size": {"shortest_edge": 3136, "longest_edge": 12544}, "patch_size": 16}) == (
        QwenVisionConfig(min_pixels=3136, max_pixels=12544, patch_size=16)
    )
    assert QwenVisionConfig.parse({}) == QwenVisionConfig()
    assert QwenVisionConfig.parse(config("qwen2-vl")).max_pixels == 12544


@pytest.mark.parametrize(
    "config",
    [
        {"min_pixels": "many"},
        {"patch_size": 0},
        {"patch_size": None},
        {"image_mean": [0.5]},
        {"image_std": [0.5, 0.5, 0.0]},
        {"min_pixels": 5000, "max_pixels": 4000},
        {"size": 448},
        {"merge_size": -2},
    ],
)
def test_unusable_configuration(config: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json"):
        QwenVisionConfig.parse(config)
