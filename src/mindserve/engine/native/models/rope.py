"""Rotary positions: one rotation for all families, over whole heads, between dimension i and i + head_dim / 2.

Attention does not change when the dimensions of q and k are reordered alike. So families that rotate neighbouring
pairs, or a part of each head only, get their rows reordered once at load (`head_order`), and pairs that do not rotate
get frequency 0.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.models.config import ModelConfig, RopeKind
from mindserve.errors import ModelLoadError

Floats = NDArray[np.float64]


def head_order(head_dim: int, rotary_dim: int, *, is_interleaved: bool) -> NDArray[np.int64]:
    """`[head_dim]` old dimension for each new one: rotating pairs first, each pair half a head apart."""
    rotary = np.arange(rotary_dim)
    pairs = rotary.reshape(-1, 2).T if is_interleaved else rotary.reshape(2, -1)
    still = np.arange(rotary_dim, head_dim).reshape(2, -1)
    return np.concatenate([pairs[0], still[0], pairs[1], still[1]])


def frequencies(config: ModelConfig, divisors: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """`[head_dim / 2]` radians per position. `divisors` (`[rotary_dim / 2]`, from the file) replace the scaling."""
    exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim
    base = 1.0 / config.rope_theta**exponents
    scaled = base / divisors if divisors is not None else SCALINGS[config.rope.kind](base, config)
    return np.pad(scaled, (0, (config.head_dim - config.rotary_dim) // 2)).astype(np.float32)


def magnitude(config: ModelConfig) -> float:
    """What cos and sin are multiplied by (yarn, longrope: temperature of attention)."""
    rope = config.rope
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind is RopeKind.YARN:
        if rope.mscale and rope.mscale_all_dim:
            return _yarn_scale(rope.factor, rope.mscale) / _yarn_scale(rope.factor, rope.mscale_all_dim)
        return _yarn_scale(rope.factor, 1.0)
    if rope.kind is RopeKind.LONGROPE:
        stretch = config.max_position / rope.original_max_position
        return math.sqrt(1 + math.log(stretch) / math.log(rope.original_max_position)) if stretch > 1 else 1.0
    return 1.0


def _yarn_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _default(base: Floats, _: ModelConfig) -> Floats:
    """Also for `dynamic`, which changes nothing within the trained context (see `RopeKind`)."""
    return base


def _linear(base: Floats, config: ModelConfig) -> Floats:
    return base / config.rope.factor


def _llama3(base: Floats, config: ModelConfig) -> Floats:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    rope = config.rope
    turns = rope.original_max_position * base / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return (1 - blend) * base / rope.factor + blend * base


def _yarn(base: Floats, config: ModelConfig) -> Floats:
    """Dimensions below `low` keep their frequency, those above `high` are interpolated, a ramp between."""
    rope = config.rope
    low, high = (_yarn_dimension(turns, config) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    ramp = np.clip((np.arange(len(base)) - low) / max(high - low, 0.001), 0, 1)
    return base / rope.factor * ramp + base * (1 - ramp)


def _yarn_dimension(turns: float, config: ModelConfig) -> float:
    """The dimension that turns so many times over the original context."""
    ratio = config.rope.original_max_position / (turns * 2 * math.pi)
    return config.rotary_dim * math.log(ratio) / (2 * math.log(config.rope_theta))


def _longrope(base: Floats, config: ModelConfig) -> Floats:
    """One set of factors for all requests (`for_context`)."""
    rope = config.rope
    factors = np.asarray(rope.long_factors if rope.is_beyond_original else rope.short_factors)
    if factors.shape != base.shape:
        raise ModelLoadError(f"rope_scaling: longrope needs {len(base)} long and short factors, got {len(factors)}")
    return base / factors


SCALINGS: dict[RopeKind, Callable[[Floats, ModelConfig], Floats]] = {
    RopeKind.DEFAULT: _default,
    RopeKind.DYNAMIC: _default,
    RopeKind.LINEAR: _linear,
    RopeKind.LLAMA3: _llama3,
    RopeKind.YARN: _yarn,
    RopeKind.LONGROPE: _longrope,
}
