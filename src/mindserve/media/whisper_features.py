"""Sound as Whisper-like encoders take it (Qwen2-Audio): a log-mel spectrogram of 30 seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from mindserve.errors import ModelLoadError

_FLOOR: Final = 1e-10
_DYNAMIC_RANGE: Final = 8.0
"""Decades below the loudest bin that are kept."""
_MIN_FRAMES: Final = 3
"""Fewer would leave no token after the encoder's two halvings; shorter sounds are padded with silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """`preprocessor_config.json` of a WhisperFeatureExtractor; the defaults are Qwen2-Audio's."""

    mel_bins: int = 128
    sampling_rate: int = 16_000
    window: int = 400
    """`n_fft`."""
    hop: int = 160
    seconds: int = 30
    """`chunk_length`."""

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Self:
        """Raises ModelLoadError."""
        default = cls()
        try:
            parsed = cls(
                mel_bins=int(config.get("feature_size", default.mel_bins)),
                sampling_rate=int(config.get("sampling_rate", default.sampling_rate)),
                window=int(config.get("n_fft", default.window)),
                hop=int(config.get("hop_length", default.hop)),
                seconds=int(config.get("chunk_length", default.seconds)),
            )
        except (TypeError, ValueError) as error:
            raise ModelLoadError(f"preprocessor_config.json: {error}") from error
        if min(parsed.mel_bins, parsed.sampling_rate, parsed.window, parsed.hop, parsed.seconds) <= 0:
            raise ModelLoadError("preprocessor_config.json: sizes of the spectrogram are out of range")
        return parsed

    @property
    def max_samples(self) -> int:
        """Of one sound; the rest is not heard."""
        return self.seconds * self.sampling_rate

    @property
    def frames(self) -> int:
        """Columns of the spectrogram."""
        return self.max_samples // self.hop


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFeatures:
    """What the audio tower takes for one sound."""

    input_features: NDArray[np.float32]
    """`[mel_bins, frames]`."""
    feature_attention_mask: NDArray[np.int32]
    """`[frames]`, 1 where there is sound."""
    tokens: int
    """Placeholders in the prompt."""


class WhisperProcessor:
    """Stateless but for its tables; thread-safe."""

    def __init__(self, config: WhisperConfig | None = None) -> None:
        self.config = config or WhisperConfig()
        window, rate = self.config.window, self.config.sampling_rate
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
        self._filters = mel_filters(bins=self.config.mel_bins, frequencies=window // 2 + 1, sampling_rate=rate)

    def audio(self, samples: NDArray[np.float32]) -> AudioFeatures:
        """Mono samples `[n]` at the configured rate; those beyond 30 seconds are left out."""
        config = self.config
        samples = samples[: config.max_samples]
        frames = max(_MIN_FRAMES, -(-len(samples) // config.hop))
        padded = np.zeros(config.max_samples, np.float64)
        padded[: len(samples)] = samples
        mask = (np.arange(config.frames) < frames).astype(np.int32)
        return AudioFeatures(
            input_features=self._log_mel(padded), feature_attention_mask=mask, tokens=audio_tokens(frames)
        )

    def _log_mel(self, samples: NDArray[np.float64]) -> NDArray[np.float32]:
        """`[mel_bins, frames]`; windows are centred on multiples of the hop, the signal mirrored at its ends."""
        config = self.config
        mirrored = np.pad(samples, config.window // 2, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(mirrored, config.window)[:: config.hop][: config.frames]
        power = np.abs(np.fft.rfft(windows * self._window, axis=1)) ** 2
        decades = np.log10(np.maximum(self._filters @ power.T, _FLOOR))
        decades = np.maximum(decades, decades.max() - _DYNAMIC_RANGE)
        return ((decades + 4) / 4).astype(np.float32)


def audio_tokens(frames: int) -> int:
    """Placeholders for a sound of `frames` spectrogram columns: the encoder halves twice."""
    encoded = (frames - 1) // 2 + 1
    return (encoded - 2) // 2 + 1


def mel_filters(*, bins: int, frequencies: int, sampling_rate: int) -> NDArray[np.float64]:
    """Triangles `[bins, frequencies]` on Slaney's scale, of equal area, from 0 Hz to half the sampling rate."""
    top = _hertz_to_mel(np.array(sampling_rate / 2))
    edges = _mel_to_hertz(np.linspace(0, float(top), bins + 2))
    hertz = np.linspace(0, sampling_rate / 2, frequencies)
    rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * area[:, None]


# Slaney's scale: linear up to 1000 Hz (15 mel), then logarithmic, 27 mel for a factor of 6.4.
_LINEAR_HERTZ: Final = 200 / 3
_BREAK_HERTZ: Final = 1000.0
_BREAK_MEL: Final = 15.0
_LOG_STEP: Final = np.log(6.4) / 27


def _hertz_to_mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_MEL + np.log(np.maximum(hertz, _BREAK_HERTZ) / _BREAK_HERTZ) / _LOG_STEP
    return np.where(hertz < _BREAK_HERTZ, hertz / _LINEAR_HERTZ, above)


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _BREAK_HERTZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HERTZ, above)
