"""The loaded model: compiled graphs, KV memory, and what the sampler reads of a step's logits."""

from functools import cached_property

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.head import Head
from mindserve.engine.native.kernels import KernelChoice
from mindserve.engine.native.split import split
from mindserve.engine.native.step import StepBatch
from mindserve.errors import EngineFailure


class LazyOutput:
    """A step's logits; candidates and log-sum-exp are computed for those who ask."""

    def __init__(self, head: Head, logits: ov.Tensor, inverse_temperature: NDArray[np.float32]) -> None:
        self._head, self._tensor, self._scale = head, logits, inverse_temperature

    @cached_property
    def logits(self) -> NDArray[np.float32]:
        """[R, vocab_size], where the runtime wrote them."""
        rows = self._tensor.data
        rows.flags.writeable = False
        return rows

    @cached_property
    def best_ids(self) -> NDArray[np.int32]:
        """[R]"""
        return self._head.best(self._tensor)

    @cached_property
    def _candidates(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        return self._head.candidates(self._tensor, self._scale)

    @property
    def candidate_ids(self) -> NDArray[np.int32]:
        """[R, CANDIDATES]"""
        return self._candidates[0]

    @property
    def candidate_logits(self) -> NDArray[np.float32]:
        """[R, CANDIDATES]"""
        return self._candidates[1]

    @property
    def log_sum_exp(self) -> NDArray[np.float32]:
        """[R]"""
        return self._candidates[2]


class NativeRunner:
    """`step.Runner` on the OpenVINO runtime."""

    def __init__(self, graph: ov.Model, choice: KernelChoice, *, cache_bytes: int, threads: int) -> None:
        core = ov.Core()
        self._decode = CompiledModel(core, graph, kernels=choice.decode, cache=choice.cache, threads=threads)
        self._prefill: CompiledModel | None = None
        if choice.prefill is not None:
            self._prefill = CompiledModel(core, graph, kernels=choice.prefill, cache=choice.cache, threads=threads)
        self._vocab_size = self._decode.vocab_size
        self._head = Head(core, self._vocab_size, threads)
        self._block_count = max(2, cache_bytes // self._decode.block_bytes)
        self._cache = self._allocate()

    def _allocate(self) -> dict[str, ov.Tensor]:
        """KV memory, touched now: it neither grows later nor holds garbage that a masked product could turn to NaN."""
        cache = self._decode.allocate_cache(self._block_count)
        for compiled in (self._decode, self._prefill):
            if compiled is not None:
                compiled.use_cache(cache)
        return cache

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._vocab_size

    @property
    def block_count(self) -> int:
        """KV blocks that exist."""
        return self._block_count

    def step(self, batch: StepBatch) -> LazyOutput:
        """Run the model once. Raises EngineFailure."""
        try:
            logits = self._decode.infer(batch) if self._prefill is None else self._infer_split(batch, self._prefill)
        except RuntimeError as error:
            raise EngineFailure("The model could not run the step.") from error
        return LazyOutput(self._head, logits, batch.inverse_temperature)

    def _infer_split(self, batch: StepBatch, prefill: CompiledModel) -> ov.Tensor:
        parts = list(split(batch))
        if len(parts) == 1:
            return (prefill if parts[0].is_prompt else self._decode).infer(batch)
        logits = ov.Tensor(ov.Type.f32, ov.Shape([len(batch.sample_rows), self._vocab_size]))
        for part in parts:
            rows = (prefill if part.is_prompt else self._decode).infer(part.batch)
            logits.data[part.rows] = rows.data
        return logits

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy block contents (source, target) in every layer."""
        sources, targets = (list(each) for each in zip(*pairs, strict=True))
        for tensor in self._cache.values():
            tensor.data[targets] = tensor.data[sources]

    def close(self) -> None:
        """Free the model."""
        self.__dict__.clear()
