"""Towers as config.json describes them, per `model_type`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypedDict

from mindserve.engine.fields import Fields
from mindserve.engine.model_files import heard_token_ids, seen_token_ids
from mindserve.engine.native.models.towers.spec import AudioSpec, MediaSpec, TowerActivation, VisionSpec
from mindserve.errors import ModelLoadError


def media_spec(fields: Fields, output_size: int) -> MediaSpec | None:
    """None for models that take text only. `output_size`: hidden size of the text model. Raises ModelLoadError."""
    read = READERS.get(fields.text("model_type"))
    return None if read is None else read(fields, output_size)


def _qwen2_vl(fields: Fields, output_size: int) -> MediaSpec:
    vision = _section(fields, "vision_config")
    size = vision.positive("embed_dim")
    spec = VisionSpec(
        **_common(vision, size),
        output_size=output_size,
        intermediate_size=int(size * vision.number("mlp_ratio", 4.0)),
        activation=_activation(vision, "hidden_act", TowerActivation.GELU_QUICK),
    )
    return MediaSpec(vision=spec, placeholders=seen_token_ids(fields), has_rotary_grid=True)


def _qwen2_5_vl(fields: Fields, output_size: int) -> MediaSpec:
    vision = _section(fields, "vision_config")
    spec = VisionSpec(
        **_common(vision, vision.positive("hidden_size")),
        output_size=output_size,
        intermediate_size=vision.positive("intermediate_size"),
        activation=_activation(vision, "hidden_act", TowerActivation.SILU),
    )
    spec = replace(
        spec,
        is_gated=True,
        window=window_patches(vision.positive("window_size", 112), spec),
        full_attention_layers=frozenset(vision.integers("fullatt_block_indexes")),
    )
    return MediaSpec(
        vision=spec,
        placeholders=seen_token_ids(fields),
        has_rotary_grid=True,
        tokens_per_second=vision.number("tokens_per_second", 4.0),
    )


def _qwen2_audio(fields: Fields, output_size: int) -> MediaSpec:
    audio = _section(fields, "audio_config")
    _activation(audio, "activation_function", TowerActivation.GELU, allowed={TowerActivation.GELU})
    spec = AudioSpec(
        depth=audio.positive("encoder_layers", 32),
        hidden_size=audio.positive("d_model", 1280),
        num_heads=audio.positive("encoder_attention_heads", 20),
        intermediate_size=audio.positive("encoder_ffn_dim", 5120),
        mel_bins=audio.positive("num_mel_bins", 128),
        max_positions=audio.positive("max_source_positions", 1500),
        output_size=output_size,
    )
    return MediaSpec(audio=spec, placeholders=heard_token_ids(fields))


READERS: Mapping[str, Callable[[Fields, int], MediaSpec]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_audio": _qwen2_audio,
}


def window_patches(window_pixels: int, spec: VisionSpec) -> int:
    """Patches per side of a window: whole tokens."""
    return max(1, window_pixels // (spec.patch_size * spec.merge_size)) * spec.merge_size


class _Common(TypedDict):
    depth: int
    hidden_size: int
    num_heads: int
    channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int


def _common(vision: Fields, hidden_size: int) -> _Common:
    """Sizes that both generations name alike."""
    heads = vision.positive("num_heads", 16)
    if hidden_size % (4 * heads):
        raise ModelLoadError(f"{vision.source}: num_heads {heads} does not fit a size of {hidden_size}")
    channels = "in_channels" if "in_channels" in vision else "in_chans"
    return {
        "depth": vision.positive("depth", 32),
        "hidden_size": hidden_size,
        "num_heads": heads,
        "channels": vision.positive(channels, 3),
        "patch_size": vision.positive("patch_size", 14),
        "temporal_patch_size": vision.positive("temporal_patch_size", 2),
        "merge_size": vision.positive("spatial_merge_size", 2),
    }


def _section(fields: Fields, key: str) -> Fields:
    section = fields.section(key)
    if section is None:
        raise ModelLoadError(f"{fields.source}: {key} is missing")
    return section


def _activation(
    fields: Fields,
    key: str,
    default: TowerActivation,
    allowed: frozenset[TowerActivation] | set[TowerActivation] = frozenset(TowerActivation),
) -> TowerActivation:
    name = fields.text(key, default)
    if name not in allowed:
        raise fields.wrong(key, "one of " + ", ".join(sorted(allowed)))
    return TowerActivation(name)
