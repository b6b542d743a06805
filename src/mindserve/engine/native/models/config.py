"""What is common to all text models: their sizes, rotary positions and end tokens, from an HF-shaped configuration.

GGUF metadata are brought into the same shape first (`gguf_config`), so there is one reading of them.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from mindserve.engine.fields import Fields
from mindserve.engine.model_files import default_top_k, eos_token_ids
from mindserve.errors import ModelLoadError


class RopeKind(StrEnum):
    """How the rotary frequencies are stretched for contexts beyond the trained one (`rope_type`).

    Yarn extends `max_position` to what it is stretched to. Dynamic does not: beyond the trained context its frequencies
    would depend on the length of each sequence and change under keys that are cached already. So a model is served up
    to the trained context, where dynamic scaling is none.
    """

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LONGROPE = "longrope"


DEFAULT_MAX_POSITION = 2048
OTHER_ROPE_NAMES = {"su": RopeKind.LONGROPE, "mrope": RopeKind.DEFAULT}
"""`mrope` says how positions are made, not how frequencies are stretched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """`rope_scaling` / `rope_parameters`. Fields that a kind does not use keep their defaults."""

    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Yarn: whether the correction range is rounded to whole dimensions."""
    attention_factor: float | None = None
    """Scales cos and sin; None: what the kind prescribes."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    is_beyond_original: bool = False
    """Longrope: whether requests may be longer than the original context (`for_context`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts about a text model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_epsilon: float
    rope_theta: float
    rotary_dim: int
    """Leading dimensions of each head that rotate."""
    rope: RopeScaling = RopeScaling()
    sliding_window: int | None = None
    """Tokens that a windowed layer sees, itself included."""
    ties_embeddings: bool = False
    eos_token_ids: frozenset[int] = frozenset()
    default_top_k: int | None = None


def read_config(config: Fields, generation: Fields) -> ModelConfig:
    """From config.json and generation_config.json (which may be empty). Raises ModelLoadError."""
    heads, hidden = config.positive("num_attention_heads"), config.positive("hidden_size")
    head_dim = config.positive("head_dim", hidden // heads)
    rope = _rope_parameters(config) or Fields(config.source, {})
    scaling = _rope_scaling(config)
    rotary_share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    result = ModelConfig(
        model_type=config.text("model_type"),
        vocab_size=config.positive("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.positive("intermediate_size"),
        num_layers=config.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.positive("num_key_value_heads", heads),
        head_dim=head_dim,
        max_position=_max_position(config, scaling),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", config.number("rope_theta", 10000.0)),
        rotary_dim=int(head_dim * rotary_share),
        rope=scaling,
        sliding_window=_sliding_window(config),
        ties_embeddings=config.flag("tie_word_embeddings", False),
        eos_token_ids=eos_token_ids(config, generation),
        default_top_k=default_top_k(config, generation),
    )
    if result.num_heads % result.num_kv_heads or result.rotary_dim % 2 or not result.rotary_dim:
        raise ModelLoadError(f"{config.source}: heads and head_dim do not fit each other")
    return result


def for_context(config: ModelConfig, max_context: int | None) -> ModelConfig:
    """For a server whose sequences are at most so long. Longrope has one set of frequencies for sequences within the
    original context and another for longer ones: all sequences get the one that suits the longest allowed."""
    if config.rope.kind is not RopeKind.LONGROPE:
        return config
    longest = min(config.max_position, max_context or config.max_position)
    is_beyond = longest > config.rope.original_max_position
    return replace(config, rope=replace(config.rope, is_beyond_original=is_beyond))


def _rope_parameters(config: Fields) -> Fields | None:
    """Of layers without a window, where the two kinds of layer have their own."""
    rope = config.section("rope_parameters")
    return rope and (rope.section("full_attention") or rope)


def _max_position(config: Fields, scaling: RopeScaling) -> int:
    trained = config.positive("max_position_embeddings", DEFAULT_MAX_POSITION)
    stretched = int(scaling.original_max_position * scaling.factor) if scaling.kind is RopeKind.YARN else 0
    return max(trained, stretched)


def _rope_scaling(config: Fields) -> RopeScaling:
    fields = _rope_parameters(config) or config.section("rope_scaling")
    if fields is None:
        return RopeScaling()
    trained = config.positive("max_position_embeddings", DEFAULT_MAX_POSITION)
    name = fields.text("rope_type", fields.text("type", "default"))
    name = OTHER_ROPE_NAMES.get(name, name)
    if name not in set(RopeKind):
        raise fields.wrong("rope_type", "one of " + ", ".join(RopeKind))
    original = config.positive("original_max_position_embeddings", trained)
    return RopeScaling(
        kind=RopeKind(name),
        factor=fields.number("factor", 1.0),
        original_max_position=fields.positive("original_max_position_embeddings", original),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        attention_factor=fields.number("attention_factor") if "attention_factor" in fields else None,
        mscale=fields.number("mscale", 0.0),
        mscale_all_dim=fields.number("mscale_all_dim", 0.0),
        short_factors=fields.numbers("short_factor") if "short_factor" in fields else (),
        long_factors=fields.numbers("long_factor") if "long_factor" in fields else (),
    )


def _sliding_window(config: Fields) -> int | None:
    """`use_sliding_window: false` (qwen) and 0 switch it off."""
    if not config.flag("use_sliding_window", True):
        return None
    return config.integer("sliding_window", 0) or None
