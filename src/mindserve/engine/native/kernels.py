"""How the model is compiled: dynamic quantisation and the form of the KV cache.

Fixed per precision and not measured at load: a choice that a busy machine can tip would give other numbers after the
next start. Arithmetic is f32: with bf16 prompts are faster where the processor has tiles for it, but decoding is slower
and results depend on what else is in the batch.
"""

import os
from dataclasses import dataclass
from typing import Any

from mindserve.settings.values import CachePrecision, Precision

QUANTISED_GROUP = 32
"""Activations quantised in groups of 32 cost half a percent of perplexity, per row five times that; without any
quantisation integer weights are half as fast."""

MAX_KERNELS = 256
"""Compiled kernels of each kind that are kept for later steps. Every number of tokens in a step has its own set, half a
megabyte for a small model, and the runtime would keep thousands of sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Properties of a compilation."""

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
            "CPU_RUNTIME_CACHE_CAPACITY": MAX_KERNELS,
        }


EXACT = Kernels()
"""Nothing but f32: what reference numbers are checked with."""


def bound_shared_kernels() -> None:
    """Keep the runtime's library from holding on to what MAX_KERNELS lets go. It reads this when it first works."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def kernels_for(precision: Precision, cache: CachePrecision) -> Kernels:
    """EXACT for f32 weights, unless the cache is to be something else."""
    is_dense = precision in (Precision.F32, Precision.F16)
    if cache is CachePrecision.AUTO:
        cache = CachePrecision.F32 if precision is Precision.F32 else CachePrecision.F16
    return Kernels(quantised_group=0 if is_dense else QUANTISED_GROUP, cache=cache)
