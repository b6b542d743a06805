"""Chooses the kernels by a short measurement at the first load, and remembers the choice.

What counts: one decoding sequence, eight of them, and a prompt of 128 tokens, each relative to the first candidate's
time.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov

from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.kernels import Kernels
from mindserve.engine.native.step import BLOCK_SIZE, StepBatch
from mindserve.settings.values import CachePrecision

_PROMPT_TOKENS = 128
_SEQUENCES = 8
_REPEATS = 9
_CLEAR_GAIN = 0.95
"""What a choice must need at most of the time of the one that is expected to be best."""
_BLOCKS_PER_SEQUENCE = _PROMPT_TOKENS // BLOCK_SIZE + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is being tuned."""

    graph: ov.Model
    groups: tuple[int, ...]
    """DYNAMIC_QUANTIZATION_GROUP_SIZE values that suit the weights, the most likely first."""
    caches: tuple[CachePrecision, ...]
    """The same for KV_CACHE_PRECISION."""
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of the three steps: the least of several, since other processes only ever add."""

    single: float
    batch: float
    prompt: float

    def relative_to(self, other: "Timing") -> float:
        """Below 1: faster than `other`."""
        return (self.single / other.single + self.batch / other.batch + self.prompt / other.prompt) / 3


def tuned(workload: Workload, store: Path | None, report: Callable[[str], None]) -> Kernels:
    """The stored choice, or a fresh measurement's."""
    path = None if store is None else store / f"{_key(workload)}.json"
    choice = None if path is None else _read(path)
    if choice is None:
        choice = _measure_all(workload, report)
        if path is not None:
            _write(path, choice)
    return choice


def _measure_all(workload: Workload, report: Callable[[str], None]) -> Kernels:
    core = ov.Core()

    @cache
    def timing(kernels: Kernels) -> Timing:
        report(f"trying groups of {kernels.quantised_group}, {kernels.cache} cache")
        return _measure(core, workload, kernels)

    first, *other_caches = workload.caches
    best = _best([Kernels(quantised_group=group, cache=first) for group in workload.groups], timing)
    return _best([best, *(replace(best, cache=each) for each in other_caches)], timing)


def _best(choices: list[Kernels], timing: Callable[[Kernels], Timing]) -> Kernels:
    """The fastest. The first, unless another is clearly better."""
    first, *others = choices
    scores = [timing(each).relative_to(timing(first)) for each in others]
    least = min(scores, default=math.inf)
    return others[scores.index(least)] if least < _CLEAR_GAIN else first


def _measure(core: ov.Core, workload: Workload, kernels: Kernels) -> Timing:
    model = CompiledModel(core, workload.graph, kernels, threads=workload.threads)
    model.allocate_cache(_SEQUENCES * _BLOCKS_PER_SEQUENCE)
    return Timing(
        single=_least_s(model, _decodes(1)),
        batch=_least_s(model, _decodes(_SEQUENCES)),
        prompt=_least_s(model, _step([_PROMPT_TOKENS], past=0)),
    )


def _least_s(model: CompiledModel, batch: StepBatch) -> float:
    model.infer(batch)
    least = math.inf
    for _ in range(_REPEATS):
        start = time.perf_counter()
        model.infer(batch)
        least = min(least, time.perf_counter() - start)
    return least


def _decodes(count: int) -> StepBatch:
    return _step([1] * count, past=_PROMPT_TOKENS)


def _step(lengths: list[int], *, past: int) -> StepBatch:
    """A step of sequences of `lengths` new tokens after `past` ones each."""
    begins = np.cumsum([0, *lengths], dtype=np.int32)
    blocks = _BLOCKS_PER_SEQUENCE * np.arange(len(lengths) + 1, dtype=np.int32)
    positions = [past + offset for length in lengths for offset in range(length)]
    return StepBatch(
        token_ids=np.arange(begins[-1], dtype=np.int64) % 97,
        positions=np.array(positions, np.int64),
        past_lens=np.full(len(lengths), past, np.int32),
        subsequence_begins=begins,
        block_indices=np.arange(blocks[-1], dtype=np.int32),
        block_indices_begins=blocks,
        max_context_len=past + max(lengths),
        sample_rows=begins[1:].astype(np.int64) - 1,
        inverse_temperature=np.ones(len(lengths), np.float32),
    )


def _key(workload: Workload) -> str:
    """Same graph shapes on the same processor with the same runtime: same choice."""
    shapes = sorted(str(node.get_output_partial_shape(0)) for node in workload.graph.get_ops())
    cpu = ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    facts = (shapes, workload.groups, workload.caches, workload.threads, cpu, ov.__version__, 1)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _read(path: Path) -> Kernels | None:
    """None where it is missing or damaged."""
    try:
        return Kernels.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, choice: Kernels) -> None:
    """Atomically; a directory that cannot be written costs a measurement at the next start, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(choice.to_dict(), indent=1))
        temporary.replace(path)
    except OSError:
        return
