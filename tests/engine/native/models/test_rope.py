"""Rotary frequencies of every kind of scaling, against values worked out by hand from their definitions."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig, RopeKind, RopeScaling, for_context, read_config
from mindserve.engine.native.models.rope import frequencies, head_order, magnitude
from mindserve.errors import ModelLoadError

BASE = ModelConfig(
    model_type="any",
    vocab_size=1,
    hidden_size=1,
    intermediate_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=128,
    max_position=131072,
    norm_epsilon=1e-6,
    rope_theta=1e6,
    rotary_dim=128,
)
PLAIN = np.array([1e6 ** (-2 * i / 128) for i in range(64)])


def scaled(**scaling: object) -> ModelConfig:
    return replace(BASE, rope=RopeScaling(**scaling))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RopeKind.DEFAULT, RopeKind.DYNAMIC])
def test_within_the_trained_context_nothing_is_scaled(kind: RopeKind) -> None:
    config = scaled(kind=kind, factor=4.0, original_max_position=32768)
    assert frequencies(config) == pytest.approx(PLAIN, rel=1e-6)
    assert magnitude(config) == 1.0


def test_linear_divides_all() -> None:
    assert frequencies(scaled(kind=RopeKind.LINEAR, factor=4.0)) == pytest.approx(PLAIN / 4, rel=1e-6)


def test_yarn_keeps_fast_dimensions_and_interpolates_slow_ones() -> None:
    """32 turns over 32768 positions: dimension 23.6; one turn: 39.6. So up to 23 kept, from 40 on divided."""
    config = scaled(kind=RopeKind.YARN, factor=4.0, original_max_position=32768)
    result = frequencies(config)
    assert result[:24] == pytest.approx(PLAIN[:24], rel=1e-6)
    assert result[40:] == pytest.approx(PLAIN[40:] / 4, rel=1e-6)
    ramp = (30 - 23) / (40 - 23)
    assert result[30] == pytest.approx(PLAIN[30] * (1 - ramp) + PLAIN[30] / 4 * ramp, rel=1e-6)
    assert magnitude(config) == pytest.approx(1.1386294)


def test_yarn_magnitude_is_what_the_configuration_says() -> None:
    yarn = {"kind": RopeKind.YARN, "factor": 40.0, "original_max_position": 4096}
    assert magnitude(scaled(**yarn, attention_factor=1.5)) == 1.5
    assert magnitude(scaled(**yarn, mscale=1.0, mscale_all_dim=1.0)) == 1.0
    assert magnitude(scaled(**yarn, mscale=0.707, mscale_all_dim=1.0)) == pytest.approx(0.9210426, rel=1e-4)


def test_llama3_divides_long_wavelengths_and_blends_between() -> None:
    config = scaled(
        kind=RopeKind.LLAMA3, factor=8.0, original_max_position=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )
    wavelengths = 2 * math.pi / PLAIN
    result = frequencies(config)
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert short.any() and long.any() and not (short | long).all()
    assert result[short] == pytest.approx(PLAIN[short], rel=1e-6)
    assert result[long] == pytest.approx(PLAIN[long] / 8, rel=1e-6)
    between = ~(short | long)
    blend = (8192 / wavelengths[between] - 1) / 3
    assert result[between] == pytest.approx((1 - blend) * PLAIN[between] / 8 + blend * PLAIN[between], rel=1e-6)


def test_longrope_takes_the_factors_that_suit_the_served_length() -> None:
    short, long = (1.5,) * 64, tuple(2.0 + i for i in range(64))
    config = scaled(kind=RopeKind.LONGROPE, original_max_position=4096, short_factors=short, long_factors=long)
    beyond, within = for_context(config, None), for_context(config, 4096)
    assert for_context(config, 4097) == beyond
    assert frequencies(beyond) == pytest.approx(PLAIN / np.array(long), rel=1e-6)
    assert frequencies(within) == pytest.approx(PLAIN / 1.5, rel=1e-6)
    for each in (beyond, within):
        assert magnitude(each) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    original = replace(config, max_position=4096)
    assert for_context(original, 100000) == original
    assert magnitude(original) == 1.0


def test_longrope_needs_a_factor_for_each_frequency() -> None:
    config = scaled(kind=RopeKind.LONGROPE, original_max_position=4096, short_factors=(1.5,) * 63)
    with pytest.raises(ModelLoadError, match="longrope needs 64 long and short factors, got 63"):
        frequencies(config)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 1000),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
        ({"type": "yarn", "factor": 4.0}, 4000),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 100}, 1000),
        ({"type": "dynamic", "factor": 4.0}, 1000),
        ({"type": "linear", "factor": 4.0}, 1000),
    ],
)
def test_yarn_alone_extends_the_context(scaling: dict[str, Any] | None, expected: int) -> None:
    sizes = {"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
    values = {**sizes, "model_type": "llama", "vocab_size": 10, "max_position_embeddings": 1000}
    config = read_config(Fields("config.json", {**values, "rope_scaling": scaling}), Fields("", {}))
    assert config.max_position == expected


def test_divisors_from_the_file_win() -> None:
    divisors = np.linspace(1, 8, 64, dtype=np.float32)
    config = scaled(kind=RopeKind.LINEAR, factor=4.0)
    assert frequencies(config, divisors) == pytest.approx(PLAIN / divisors, rel=1e-6)


def test_dimensions_that_do_not_rotate_have_frequency_zero() -> None:
    result = frequencies(replace(BASE, rotary_dim=32))
    assert result.shape == (64,)
    assert result[:16] == pytest.approx([1e6 ** (-2 * i / 32) for i in range(16)], rel=1e-6)
    assert (result[16:] == 0).all()


def test_heads_are_reordered_so_that_pairs_are_half_a_head_apart() -> None:
    assert head_order(8, 8, is_interleaved=False).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert head_order(8, 8, is_interleaved=True).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert head_order(8, 4, is_interleaved=True).tolist() == [0, 2, 4, 5, 1, 3, 6, 7]
    assert head_order(8, 4, is_interleaved=False).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
