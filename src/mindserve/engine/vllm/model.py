"""What a model's and its adapters' files say, read without vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindserve.engine.base import MediaKind
from mindserve.engine.fields import Fields
from mindserve.engine.model_files import (
    CONFIG,
    default_top_k,
    eos_token_ids,
    heard_token_ids,
    read_fields,
    read_json,
    seen_token_ids,
)
from mindserve.errors import ModelLoadError
from mindserve.settings.values import ModelSettings

ADAPTER_CONFIG = "adapter_config.json"
_MEDIA = {"qwen2_vl": seen_token_ids, "qwen2_5_vl": seen_token_ids, "qwen2_audio": heard_token_ids}
"""Families whose media can be prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Of the files of a model that vLLM is going to load."""

    model_type: str
    eos_token_ids: frozenset[int] = frozenset()
    default_top_k: int | None = None
    media_token_ids: Mapping[MediaKind, int] = field(default_factory=dict[MediaKind, int])
    adapter_ranks: tuple[int, ...] = ()
    """Of the configured adapters."""


def read_facts(model: ModelSettings) -> ModelFacts:
    """Raises ModelLoadError."""
    config, generation = read_fields(_directory(model.path))
    text = config.section("text_config") or config
    read_media = _MEDIA.get(config.text("model_type"))
    return ModelFacts(
        model_type=config.text("model_type"),
        eos_token_ids=eos_token_ids(config, generation) | eos_token_ids(text, generation),
        default_top_k=default_top_k(config, generation),
        media_token_ids={} if read_media is None else read_media(config),
        adapter_ranks=tuple(adapter_rank(adapter.path) for adapter in model.adapters),
    )


def adapter_rank(directory: Path) -> int:
    """Raises ModelLoadError for what is no adapter."""
    path = directory / ADAPTER_CONFIG
    config = Fields(str(path), read_json(path))
    patterns = config.section("rank_pattern")
    exceptions = [] if patterns is None else [patterns.positive(key) for key in patterns.values]
    return max([config.positive("r"), *exceptions])


def _directory(path: Path) -> Path:
    if path.suffix.lower() == ".gguf" or (any(path.glob("*.gguf")) and not (path / CONFIG).is_file()):
        raise ModelLoadError(
            f"{path}: vLLM needs a Hugging Face directory (config.json and safetensors); "
            "the native engine reads GGUF files."
        )
    if not (path / CONFIG).is_file():
        raise ModelLoadError(f"{path}: no {CONFIG}: vLLM needs a Hugging Face directory.")
    return path
