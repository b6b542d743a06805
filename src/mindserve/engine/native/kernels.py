"""How the model is compiled: arithmetic, dynamic quantisation and the form of the KV cache.

The right choice differs by processor (the same settings are the fastest on one and half as fast on another), so
`tuning` measures it once, at the first load, and keeps it beside the prepared model.
"""

from dataclasses import asdict, dataclass
from typing import Any

from mindserve.settings.values import CachePrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Properties of one compilation."""

    arithmetic: str = "f32"
    """INFERENCE_PRECISION_HINT: f32 or bf16."""
    quantised_group: int = 0
    """DYNAMIC_QUANTIZATION_GROUP_SIZE: activations that share a scale; 0: activations stay as they are."""

    def properties(self, threads: int, cache: CachePrecision) -> dict[str, Any]:
        """As the runtime wants them."""
        return {
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": self.arithmetic,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.quantised_group,
            "KV_CACHE_PRECISION": cache.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """What one model runs with on one machine."""

    decode: Kernels = Kernels()
    """For steps of few tokens, and for all where `prefill` is None."""
    prefill: Kernels | None = None
    """A second compilation for prompts, where that is much faster: it costs the weights' memory again."""
    cache: CachePrecision = CachePrecision.F32

    def to_dict(self) -> dict[str, Any]:
        """For the stored choice."""
        return {**asdict(self), "cache": self.cache.value}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "KernelChoice":
        """The inverse. Raises KeyError or TypeError on anything else."""
        prefill = stored["prefill"]
        return cls(
            decode=Kernels(**stored["decode"]),
            prefill=None if prefill is None else Kernels(**prefill),
            cache=CachePrecision(stored["cache"]),
        )


EXACT = KernelChoice()
"""Nothing but float32: what the reference numbers are checked with."""
