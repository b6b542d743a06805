"""The decoder that all text families are instances of: a family's file fills in a `DecoderSpec`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig


class Activation(StrEnum):
    """What the gate of an MLP passes through."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Which tensors of a layer normalise what. After-norms act on a branch before it is added."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP."""

    count: int
    per_token: int
    intermediate_size: int
    renormalises: bool
    """Whether the chosen experts' weights are made to add up to 1."""
    shared_intermediate_size: int | None = None
    """Size of a gated expert that every token passes through."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with an ordinary MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """What a family's graph needs to know beyond sizes."""

    config: ModelConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    normalises_qk: bool = False
    is_rotary_interleaved: bool = False
    norms: Norms = Norms()
    norm_offset: float = 0.0
    """Added to every norm's weight."""
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """What products of q and k are multiplied by; None: 1 / sqrt(head_dim)."""
    logit_softcap: float | None = None
    """Logits are bent into (-cap, cap)."""
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer; (): none has one."""
    windowed_rope_theta: float | None = None
    """Base of the rotary frequencies, unscaled, of layers with a window; None: they turn as the others do."""
    experts: Experts | None = None
    takes_embeddings: bool = False
    """Whether rows of the embedding can be replaced from outside (media)."""
    rotary_sections: tuple[int, ...] = ()
    """Rotating pairs that turn with a token's time, height and width; (): positions are plain numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a `model_type` means: how its graph is described, and where its files use words of their own."""

    describe: Callable[[ModelConfig, Fields], DecoderSpec]
    config_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Usual keys of config.json -> the family's."""
    tensor_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parts of the usual tensor names -> the family's."""
    newer_tensor_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The same in files of newer library versions, where those differ."""
    config_defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What published config.json files of the family leave out, by usual key."""
