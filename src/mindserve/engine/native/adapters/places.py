"""Where adapters act: the products of the model's graph that have names, and the modules that each of them joins."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import openvino as ov

from mindserve.engine.native.adapters.peft import PeftAdapter
from mindserve.engine.native.models.layers import qkv_row_order
from mindserve.engine.native.models.spec import DecoderSpec, Family
from mindserve.engine.native.models.weights import RowOrder
from mindserve.errors import ModelLoadError

SUFFIXES = (".qkv_proj", ".o_proj", ".gate_up_proj", ".down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Rows of a place's W that one block of ranks acts on."""

    block: int
    rows: slice
    own_rows: slice
    """The same rows in the module's own matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One product `x @ W.T`, whose W is made of one or more modules' matrices, one under the other."""

    name: str
    """The product's node, and the module's name where a family stores the joined matrix."""
    columns: int
    parts: tuple[tuple[str, int], ...]
    """Modules and their rows."""
    order: RowOrder = None
    """Rows of W as the graph has them; None: as the parts come."""

    @property
    def rows(self) -> int:
        """Of W."""
        return sum(rows for _, rows in self.parts)

    @property
    def has_twins(self) -> bool:
        """Whether it joins two modules of equal size (gate and up)."""
        return len(self.parts) == 2 and self.parts[0][1] == self.parts[1][1] and self.order is None

    @property
    def modules(self) -> AbstractSet[str]:
        """Every module that may be adapted here, the joined one included."""
        return {self.name, *(name for name, _ in self.parts)}

    def areas(self, module: str) -> list[Area]:
        """Which parts of W a module's matrix covers: one, or in the case of the joined one all."""
        ends = np.cumsum([rows for _, rows in self.parts]).tolist()
        found: list[Area] = []
        for block, ((name, rows), end) in enumerate(zip(self.parts, ends, strict=True)):
            begin = end - rows
            if name == module:
                return [Area(block=block, rows=slice(begin, end), own_rows=slice(0, rows))]
            found.append(Area(block=block, rows=slice(begin, end), own_rows=slice(begin, end)))
        return found

    def rows_of(self, module: str) -> int:
        """Rows of a module's matrix."""
        return dict(self.parts).get(module, self.rows)


def places_of(graph: ov.Model, spec: DecoderSpec) -> dict[str, Place]:
    """All of a model's, by the name of every module that acts there."""
    places = [_place(node, spec) for node in graph.get_ops() if _is_place(node)]
    return {module: place for place in places for module in place.modules}


def _is_place(node: ov.Node) -> bool:
    return node.get_type_name() == "MatMul" and node.get_friendly_name().endswith(SUFFIXES)


def _place(node: ov.Node, spec: DecoderSpec) -> Place:
    name = node.get_friendly_name()
    prefix, _, role = name.rpartition(".")
    columns, rows = _width(node.input_value(0)), _width(node.output(0))
    config, order = spec.config, None
    parts = [(role, rows)]
    if role == "qkv_proj":
        kv_rows = config.num_kv_heads * config.head_dim
        parts = [("q_proj", config.num_heads * config.head_dim), ("k_proj", kv_rows), ("v_proj", kv_rows)]
        order = qkv_row_order(spec)
    elif role == "gate_up_proj":
        parts = [("gate_proj", rows // 2), ("up_proj", rows // 2)]
    return Place(name=name, columns=columns, parts=tuple((f"{prefix}.{part}", n) for part, n in parts), order=order)


def _width(value: ov.Output) -> int:
    return list(value.get_partial_shape())[-1].get_length()


def fit(adapter: PeftAdapter, places: Mapping[str, Place], family: Family) -> PeftAdapter:
    """The adapter with the graph's names for its modules. Raises ModelLoadError where it was made for another model."""
    modules = {_usual_name(name, family): module for name, module in adapter.modules.items()}
    for (own, module), name in zip(adapter.modules.items(), modules, strict=True):
        place = places.get(name)
        if place is None:
            raise ModelLoadError(f"{adapter.source}: {own[:200]} is no module of the model that can be adapted")
        expected, found = [place.rows_of(name), place.columns], [len(module.up), module.down.shape[1]]
        if found != expected:
            raise ModelLoadError(f"{adapter.source}: {own} is for a matrix of {found}, the model's is {expected}")
        if name != place.name and place.name in modules:
            raise ModelLoadError(f"{adapter.source}: {own} is adapted twice, also as part of {place.name}")
    return PeftAdapter(source=adapter.source, modules=modules)


def _usual_name(module: str, family: Family) -> str:
    """Families' files have names of their own, and adapters follow those."""
    name = module + "."
    for names in (family.tensor_names, family.newer_tensor_names):
        for usual, own in names.items():
            name = name.replace(own, usual)
    return name.removesuffix(".")
