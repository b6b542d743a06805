"""How the model is compiled: dynamic quantisation and the form of the KV cache.

The right choice differs by processor (the same settings are the fastest on one and half as fast on another), so
`tuning` measures it once, at the first load, and keeps it beside the prepared models. Arithmetic stays f32: with bf16
prompts are faster where the processor has tiles for it, but decoding is slower and results depend on the batch.
"""

from dataclasses import asdict, dataclass
from typing import Any

from mindserve.settings.values import CachePrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What one model runs with on one machine."""

    quantised_group: int = 0
    """DYNAMIC_QUANTIZATION_GROUP_SIZE: activations that share a scale; 0: activations stay as they are."""
    cache: CachePrecision = CachePrecision.F32
    """KV_CACHE_PRECISION."""

    def properties(self, threads: int) -> dict[str, Any]:
        """As the runtime wants them."""
        return {
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.quantised_group,
            "KV_CACHE_PRECISION": self.cache.value,
        }

    def to_dict(self) -> dict[str, Any]:
        """For the stored choice."""
        return {**asdict(self), "cache": self.cache.value}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Kernels":
        """The inverse. Raises KeyError, TypeError or ValueError on anything else."""
        return cls(quantised_group=int(stored["quantised_group"]), cache=CachePrecision(stored["cache"]))


EXACT = Kernels()
"""Nothing but float32: what the reference numbers are checked with."""
