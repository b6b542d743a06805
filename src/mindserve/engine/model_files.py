"""What every engine reads from a Hugging Face directory's JSON files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from mindserve.engine.base import MediaKind
from mindserve.engine.fields import Fields
from mindserve.errors import ModelLoadError

CONFIG, GENERATION = "config.json", "generation_config.json"


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON object. Raises ModelLoadError."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return cast("dict[str, object]", value)


def read_fields(directory: Path) -> tuple[Fields, Fields]:
    """config.json, and generation_config.json, which is empty where there is none. Raises ModelLoadError."""
    config, generation = directory / CONFIG, directory / GENERATION
    return (
        Fields(str(config), read_json(config)),
        Fields(str(generation), read_json(generation) if generation.is_file() else {}),
    )


def eos_token_ids(config: Fields, generation: Fields) -> frozenset[int]:
    """Every id of `eos_token_id` in both files (decisions: end tokens)."""
    return frozenset(generation.integers("eos_token_id") + config.integers("eos_token_id"))


def default_top_k(config: Fields, generation: Fields) -> int | None:
    """`top_k` of generation_config.json, else of config.json."""
    source = generation if "top_k" in generation else config
    return source.integer("top_k") if "top_k" in source else None


def seen_token_ids(config: Fields) -> dict[MediaKind, int]:
    """The placeholders of Qwen2-VL and Qwen2.5-VL."""
    return {MediaKind.IMAGE: config.integer("image_token_id"), MediaKind.VIDEO: config.integer("video_token_id")}


def heard_token_ids(config: Fields) -> dict[MediaKind, int]:
    """The placeholder of Qwen2-Audio."""
    key = "audio_token_index" if "audio_token_index" in config else "audio_token_id"
    return {MediaKind.AUDIO: config.integer(key)}
