"""What media a model takes, and the shapes of the towers that read them."""

from dataclasses import dataclass, field
from enum import StrEnum

from mindserve.engine.base import MediaKind


class TowerActivation(StrEnum):
    """Between the two products of a tower's MLP; in a gated one, what the gate passes through."""

    GELU = "gelu"
    GELU_QUICK = "quick_gelu"
    SILU = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """The vision tower of Qwen2-VL, or of Qwen2.5-VL with `is_gated`, RMS norms and windows."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    output_size: int
    """Hidden size of the text model."""
    channels: int = 3
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    """Patches per side of what becomes one token."""
    norm_epsilon: float = 1e-6
    activation: TowerActivation = TowerActivation.GELU_QUICK
    is_gated: bool = False
    """Whether the MLP has a gate, and norms are RMS norms."""
    window: int | None = None
    """Patches per side of the windows that attention is limited to; None: every patch sees its whole frame."""
    full_attention_layers: frozenset[int] = frozenset()
    """Layers without windows."""
    has_final_norm: bool = True

    @property
    def patch_values(self) -> int:
        """Numbers per patch."""
        return self.channels * self.temporal_patch_size * self.patch_size**2

    @property
    def head_dim(self) -> int:
        """Of the tower's attention."""
        return self.hidden_size // self.num_heads

    def has_windows(self, layer: int) -> bool:
        """Whether a layer's attention is limited to windows."""
        return self.window is not None and layer not in self.full_attention_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec:
    """The Whisper-like encoder of Qwen2-Audio with its projector."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    output_size: int
    mel_bins: int = 128
    max_positions: int = 1500
    norm_epsilon: float = 1e-5
    has_final_norm: bool = True

    @property
    def head_dim(self) -> int:
        """Of the tower's attention."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpec:
    """All that is not text about a model."""

    vision: VisionSpec | None = None
    audio: AudioSpec | None = None
    placeholders: dict[MediaKind, int] = field(default_factory=dict[MediaKind, int])
    """Token that stands in the prompt for each kind: the kinds that the model takes."""
    has_rotary_grid: bool = False
    """Whether positions of images and videos have three coordinates (time, height, width)."""
    tokens_per_second: float | None = None
    """Steps in time per second of video; None: one per frame pair."""
