"""The adapters that a model runs with. Whatever takes time happens beside the model's thread, which only swaps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.adapters.graph import MASK, stacked, with_branches
from mindserve.engine.native.adapters.peft import PeftAdapter, read_adapter
from mindserve.engine.native.adapters.places import Place, fit, places_of
from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.models.spec import DecoderSpec, Family
from mindserve.engine.native.step import StepBatch
from mindserve.errors import ModelLoadError

MAX_TOTAL_RANK = 1024
"""Of all adapters together: every one of them costs every step that has any."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model's graph before compilation, and how its modules are named."""

    graph: ov.Model
    spec: DecoderSpec
    family: Family


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSet:
    """Adapters that are in use together."""

    adapters: Mapping[str, PeftAdapter] = field(default_factory=dict[str, PeftAdapter])
    """By key."""
    places: Mapping[str, Place] = field(default_factory=dict[str, Place])
    """Where `model` has branches, by the product's name."""
    model: CompiledModel | None = None
    """None without adapters."""

    @property
    def total_rank(self) -> int:
        """Ranks of all adapters."""
        return sum(adapter.rank for adapter in self.adapters.values())

    @property
    def slots(self) -> dict[str, slice]:
        """Each adapter's ranks."""
        ends = accumulate(adapter.rank for adapter in self.adapters.values())
        return {key: slice(end - self.adapters[key].rank, end) for key, end in zip(self.adapters, ends, strict=True)}

    def inputs(self) -> dict[str, ov.Tensor]:
        """The matrices of all places."""
        slots, ranks = self.slots, self.total_rank
        parts = [stacked(place, self.adapters, slots, ranks) for place in self.places.values()]
        return {name: ov.Tensor(values) for part in parts for name, values in part.items()}

    def mask(self, batch: StepBatch) -> NDArray[np.float32]:
        """`[T, total_rank]` 1 where a token's own adapter is."""
        mask = np.zeros((len(batch.token_ids), self.total_rank), np.float32)
        slots, begins = self.slots, batch.subsequence_begins
        for i, key in enumerate(batch.adapters):
            if key is not None:
                mask[begins[i] : begins[i + 1], slots[key]] = 1
        return mask


class NativeAdapters:
    """`step.Adapters` of one model. `add` and `remove` may be called on any thread, one at a time; what they return,
    and `infer`, on the model's."""

    def __init__(self, open_model: Callable[[], BaseModel], compile_model: Callable[[ov.Model], CompiledModel]) -> None:
        """`open_model` reads the base model again: between loads nothing of it is kept beside the compiled ones."""
        self._open_model = open_model
        self._compile_model = compile_model
        self._modules: Mapping[str, Place] = {}
        """All that can be adapted; empty before the first adapter."""
        self._family: Family | None = None
        self._planned = self._current = AdapterSet()
        """What the changes made so far lead to, and what is in use."""

    def add(self, key: str, path: Path) -> Callable[[], None]:
        """Read an adapter. Raises ModelLoadError."""
        adapter, planned = read_adapter(path), self._planned
        if planned.total_rank + adapter.rank > MAX_TOTAL_RANK:
            raise ModelLoadError(f"{path}: rank {adapter.rank} is too much: all adapters may have {MAX_TOTAL_RANK}")
        base = None
        if self._family is None:
            base = self._open_model()
            self._modules, self._family = places_of(base.graph, base.spec), base.family
        adapter = fit(adapter, self._modules, self._family)
        places = {**planned.places, **{place.name: place for place in map(self._modules.__getitem__, adapter.modules)}}
        model = planned.model
        if model is None or len(places) > len(planned.places):
            model = self._compile_model(with_branches((base or self._open_model()).graph, places.values()))
        return self._plan(AdapterSet(adapters={**planned.adapters, key: adapter}, places=places, model=model))

    def remove(self, key: str) -> Callable[[], None]:
        """Forget an adapter that no step needs any more. Without any, the graph with branches goes too."""
        others = {other: adapter for other, adapter in self._planned.adapters.items() if other != key}
        return self._plan(replace(self._planned, adapters=others) if others else AdapterSet())

    def infer(self, batch: StepBatch) -> ov.Tensor:
        """As `CompiledModel.infer`, each sequence with its adapter."""
        current = self._current
        assert current.model is not None
        return current.model.infer(batch, {MASK: current.mask(batch)})

    def _plan(self, planned: AdapterSet) -> Callable[[], None]:
        """What puts the set to use, with its tensors made already."""
        inputs = planned.inputs()
        self._planned = planned

        def use() -> None:
            if planned.model is not None:
                planned.model.bind(inputs)
            self._current = planned

        return use
