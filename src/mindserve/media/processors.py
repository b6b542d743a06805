"""From files to a model's features: which processor a model has, and what it is given."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from mindserve.contract.request import PartKind
from mindserve.engine.base import DecodedMedia, MediaKind
from mindserve.errors import InvalidRequest, ModelLoadError, PromptTooLong
from mindserve.media.audio import decode_audio
from mindserve.media.content import DIGEST_BYTES, Content
from mindserve.media.image import decode_image
from mindserve.media.limits import MediaLimits
from mindserve.media.prepared import PreparedMedia
from mindserve.media.projector import read_projector
from mindserve.media.qwen_vision import QwenVisionConfig, QwenVisionProcessor, VisionFeatures
from mindserve.media.video import open_video
from mindserve.media.whisper_features import WhisperConfig, WhisperProcessor

MEDIA_KINDS: Final[Mapping[PartKind, MediaKind]] = MappingProxyType(
    {
        PartKind.IMAGE_URL: MediaKind.IMAGE,
        PartKind.VIDEO_URL: MediaKind.VIDEO,
        PartKind.AUDIO_URL: MediaKind.AUDIO,
        PartKind.INPUT_AUDIO: MediaKind.AUDIO,
    }
)
"""What each kind of part carries."""

TOO_LONG: Final = "The media take {tokens} tokens, more than the limit of {limit}."

_CONFIG_FILE: Final = "preprocessor_config.json"
_MAX_CONFIG_BYTES: Final = 1024 * 1024
_Features = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _Processed:
    features: _Features
    tokens: int
    decoded: DecodedMedia


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcessors:
    """What a model can see and hear. Thread-safe; blocks, so it runs in worker threads."""

    vision: QwenVisionProcessor | None = None
    audio: WhisperProcessor | None = None
    max_tokens: int | None = None
    """Placeholders that the media of one request may take: more would not fit into a prompt."""
    keeps_decoded: bool = False
    """Whether the engine makes the features itself: it gets what was decoded instead."""

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """Media that the model takes."""
        seen = {MediaKind.IMAGE, MediaKind.VIDEO} if self.vision is not None else set[MediaKind]()
        return frozenset(seen | ({MediaKind.AUDIO} if self.audio is not None else set[MediaKind]()))

    def check_tokens(self, tokens: int) -> None:
        """Raises PromptTooLong."""
        if self.max_tokens is not None and tokens > self.max_tokens:
            raise PromptTooLong(TOO_LONG.format(tokens=tokens, limit=self.max_tokens), param="messages")

    def prepare(self, content: Content, kind: MediaKind, limits: MediaLimits) -> PreparedMedia:
        """Decode and process one file. Raises InvalidRequest and PromptTooLong."""
        done = self._process(content.open(), kind, limits)
        digest = media_digest(content, kind)
        if self.keeps_decoded:
            done.decoded.data.setflags(write=False)
            return PreparedMedia(kind=kind, features={}, tokens=done.tokens, digest=digest, decoded=done.decoded)
        for array in done.features.values():
            array.setflags(write=False)
        return PreparedMedia(kind=kind, features=done.features, tokens=done.tokens, digest=digest)

    def _process(self, file: IO[bytes], kind: MediaKind, limits: MediaLimits) -> _Processed:
        if kind is MediaKind.AUDIO and self.audio is not None:
            return _hear(file, self.audio)
        if kind is MediaKind.IMAGE and self.vision is not None:
            image = decode_image(file, max_pixels=limits.max_image_pixels)
            seen = self.vision.image(image, self.check_tokens)
            return _seen(seen, DecodedMedia(data=seen.frames[0]))
        if kind is MediaKind.VIDEO and self.vision is not None:
            with open_video(file, self.vision.sampling, limits) as clip:
                seen = self.vision.video(clip, self.check_tokens)
                return _seen(seen, DecodedMedia(data=seen.frames, rate=clip.fps))
        raise InvalidRequest(f"The model does not support {kind} input", param="messages")


def media_digest(content: Content, kind: MediaKind) -> bytes:
    """Name of a file's features: the same bytes may be asked for as different kinds."""
    return hashlib.blake2b(content.digest(), digest_size=DIGEST_BYTES, person=kind.encode()).digest()


def load_processors(model_dir: Path, *, max_tokens: int | None = None, keeps_decoded: bool = False) -> MediaProcessors:
    """Of a model directory: by its preprocessor_config.json, or by the projector beside a GGUF file; none without
    either. Raises ModelLoadError.

    `max_tokens`: placeholders that the media of one request may take; `keeps_decoded`: see MediaProcessors.
    """
    vision, audio = _configs(model_dir)
    return MediaProcessors(
        vision=None if vision is None else QwenVisionProcessor(vision),
        audio=None if audio is None else WhisperProcessor(audio),
        max_tokens=max_tokens,
        keeps_decoded=keeps_decoded,
    )


def _configs(model_dir: Path) -> tuple[QwenVisionConfig | None, WhisperConfig | None]:
    path = model_dir / _CONFIG_FILE
    if not path.is_file():
        return read_projector(model_dir)
    config = _read_config(path)
    if "image_processor_type" in config:
        return QwenVisionConfig.parse(config), None
    if config.get("feature_extractor_type") == "WhisperFeatureExtractor":
        return None, WhisperConfig.parse(config)
    return None, None


def _hear(file: IO[bytes], processor: WhisperProcessor) -> _Processed:
    config = processor.config
    samples = decode_audio(file, sampling_rate=config.sampling_rate, max_samples=config.max_samples)
    heard = processor.audio(samples)
    features: _Features = {
        "input_features": heard.input_features,
        "feature_attention_mask": heard.feature_attention_mask,
    }
    return _Processed(features, heard.tokens, DecodedMedia(data=samples, rate=config.sampling_rate))


def _seen(seen: VisionFeatures, decoded: DecodedMedia) -> _Processed:
    features: _Features = {"pixel_values": seen.pixel_values, "grid_thw": np.array(seen.grid_thw, np.int64)}
    if seen.seconds_per_grid:
        features["second_per_grid"] = np.array(seen.seconds_per_grid, np.float32)
    return _Processed(features, seen.tokens, decoded)


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{_CONFIG_FILE}: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{_CONFIG_FILE}: not an object")
    return cast("Mapping[str, Any]", config)
