import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindserve.errors import ModelLoadError
from mindserve.media.audio import decode_audio
from mindserve.media.whisper_features import WhisperConfig, WhisperProcessor, audio_tokens, mel_filters

GOLDENS = Path(__file__).parents[1] / "data" / "goldens" / "qwen2-audio"
CASES = ("audio_short", "audio_long", "audio_resampled", "audios_two")


@pytest.fixture(scope="module")
def processor() -> WhisperProcessor:
    return WhisperProcessor(
        WhisperConfig.parse(json.loads((GOLDENS / "model" / "preprocessor_config.json").read_text()))
    )


def hear(name: str) -> NDArray[np.float32]:
    with (GOLDENS / "media" / f"{name}.wav").open("rb") as file:
        return decode_audio(file, sampling_rate=16_000, max_samples=480_000)


@pytest.mark.parametrize("name", CASES)
def test_reference_features(name: str, processor: WhisperProcessor) -> None:
    golden = json.loads((GOLDENS / "golden.json").read_text())
    (case,) = [case for case in golden["cases"] if case["name"] == name]
    heard = [processor.audio(hear(sound)) for sound in case["audios"]]
    with np.load(GOLDENS / f"{name}.npz") as arrays:
        features = np.stack([features.input_features for features in heard])
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, arrays["input_features"], rtol=0, atol=1e-4)
        masks = [features.feature_attention_mask for features in heard]
        np.testing.assert_array_equal(masks, arrays["feature_attention_mask"])
        assert sum(features.tokens for features in heard) == len(arrays["audio_embeds"])
    assert [features.tokens for features in heard] == case["audio_tokens"]


def test_reference_resampling() -> None:
    np.testing.assert_allclose(hear("resampled"), np.load(GOLDENS / "media" / "resampled.16k.npy"), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("samples", "frames", "tokens"), [(1, 3, 1), (160, 3, 1), (481, 4, 1), (480_000, 3000, 750)])
def test_lengths(samples: int, frames: int, tokens: int, processor: WhisperProcessor) -> None:
    features = processor.audio(np.full(samples, 0.1, np.float32))
    assert features.input_features.shape == (128, 3000)
    assert np.isfinite(features.input_features).all()
    assert features.feature_attention_mask.sum() == frames
    assert features.feature_attention_mask[:frames].all()
    assert features.tokens == tokens


def test_what_comes_after_half_a_minute_is_not_heard(processor: WhisperProcessor) -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 500_000).astype(np.float32)
    np.testing.assert_array_equal(
        processor.audio(noise).input_features, processor.audio(noise[:480_000]).input_features
    )


def test_silence(processor: WhisperProcessor) -> None:
    np.testing.assert_allclose(processor.audio(np.zeros(16_000, np.float32)).input_features, -1.5)


def test_encoder_halves_twice() -> None:
    assert [audio_tokens(frames) for frames in (3, 4, 5, 6, 7, 100, 150, 3000)] == [1, 1, 1, 1, 2, 25, 37, 750]


def test_mel_filters_cover_the_spectrum() -> None:
    filters = mel_filters(bins=80, frequencies=201, sampling_rate=16_000)
    assert filters.shape == (80, 201)
    assert (filters >= 0).all()
    assert (filters.sum(axis=1) > 0).all()
    peaks = filters.argmax(axis=1)
    assert (np.diff(peaks) >= 0).all()


@pytest.mark.parametrize("config", [{"feature_size": 0}, {"n_fft": "x"}, {"hop_length": None}, {"chunk_length": -1}])
def test_unusable_configuration(config: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json"):
        WhisperConfig.parse(config)
