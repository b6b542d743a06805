"""What the projector (mmproj) beside a GGUF model says about pixels and spectrograms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mindserve.errors import ModelLoadError
from mindserve.media.qwen_vision import QwenVisionConfig
from mindserve.media.whisper_features import WhisperConfig
from mindserve.text.gguf_metadata import read_metadata

_VISION: Final = "clip.vision."
_AUDIO: Final = "clip.audio."
_VISION_KEYS: Final = {
    "patch_size": "patch_size",
    "spatial_merge_size": "merge_size",
    "image_min_pixels": "min_pixels",
    "image_max_pixels": "max_pixels",
    "image_mean": "image_mean",
    "image_std": "image_std",
}
"""Keys of the file and of preprocessor_config.json."""


def read_projector(model_dir: Path) -> tuple[QwenVisionConfig | None, WhisperConfig | None]:
    """Of the projector in a directory; both None where there is none. Raises ModelLoadError."""
    files = sorted(file for file in model_dir.glob("*.gguf") if "mmproj" in file.name.lower())
    if not files:
        return None, None
    if len(files) > 1:
        raise ModelLoadError(f"{model_dir} holds several projectors ({files[0].name}, {files[1].name}, ...)")
    metadata = read_metadata(files[0], prefix="clip.")
    has_vision, has_audio = (metadata.get(f"clip.has_{name}_encoder") is True for name in ("vision", "audio"))
    return (_vision(metadata) if has_vision else None, _audio(metadata) if has_audio else None)


def _vision(metadata: Mapping[str, object]) -> QwenVisionConfig:
    config: dict[str, Any] = {
        key: metadata[_VISION + own] for own, key in _VISION_KEYS.items() if _VISION + own in metadata
    }
    return QwenVisionConfig.parse(config)


def _audio(metadata: Mapping[str, object]) -> WhisperConfig:
    bins = metadata.get(_AUDIO + "num_mel_bins")
    return WhisperConfig.parse({} if bins is None else {"feature_size": bins})
