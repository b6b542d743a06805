"""The loaded model: compiled graphs, KV memory, and what the sampler reads of a step's logits."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.adapters.loaded import BaseModel, NativeAdapters
from mindserve.engine.native.companion import with_companion
from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.head import Head
from mindserve.engine.native.kernels import Kernels
from mindserve.engine.native.step import Adapters, StepBatch, Towers
from mindserve.errors import EngineFailure


class LazyOutput:
    """A step's logits; candidates and log-sum-exp are computed for those who ask."""

    def __init__(self, head: Head, logits: ov.Tensor, inverse_temperature: NDArray[np.float32]) -> None:
        self._head, self._tensor, self._scale = head, logits, inverse_temperature

    @property
    def logits(self) -> NDArray[np.float32]:
        """[R, vocab_size], where the runtime wrote them."""
        rows = self._tensor.data
        rows.flags.writeable = False
        return rows

    @property
    def best_ids(self) -> NDArray[np.int32]:
        """[R]"""
        return self._best_ids

    @cached_property
    def _best_ids(self) -> NDArray[np.int32]:
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

    def __init__(
        self,
        graph: ov.Model,
        kernels: Kernels,
        *,
        threads: int,
        count_blocks: Callable[[int], int],
        towers: Towers | None = None,
        open_model: Callable[[], BaseModel],
    ) -> None:
        """`count_blocks` says how many KV blocks to make, given the bytes of one; `open_model` reads the graph again,
        for adapters."""
        self.towers = towers
        core = ov.Core()
        self._model = CompiledModel(core, graph, kernels, threads=threads)
        self._head = Head(core, self._model.vocab_size, threads)
        self._block_count = count_blocks(self._model.block_bytes)
        self._cache = self._model.allocate_cache(self._block_count + 1)
        """One block more than anybody knows of, for the companion."""

        def compile_beside(other: ov.Model) -> CompiledModel:
            compiled = CompiledModel(core, other, kernels, threads=threads)
            compiled.share_cache(self._cache)
            return compiled

        self._adapters = NativeAdapters(open_model, compile_beside)
        self.adapters: Adapters | None = self._adapters

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._model.vocab_size

    @property
    def block_count(self) -> int:
        """KV blocks that exist."""
        return self._block_count

    def step(self, batch: StepBatch) -> LazyOutput:
        """Run the model once. Raises EngineFailure."""
        if batch.is_reproducible and len(batch.token_ids) == 1:
            batch = with_companion(batch, self._block_count)
        try:
            logits = self._adapters.infer(batch) if batch.adapters else self._model.infer(batch)
        except RuntimeError as error:
            raise EngineFailure("The model could not run the step.") from error
        return LazyOutput(self._head, logits, batch.inverse_temperature)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy block contents (source, target) in every layer."""
        sources, targets = (list(each) for each in zip(*pairs, strict=True))
        for tensor in self._cache:
            tensor.data[targets] = tensor.data[sources]

    def close(self) -> None:
        """Free the model."""
        self.__dict__.clear()
