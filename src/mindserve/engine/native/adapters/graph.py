"""The model's graph with a branch beside each adapted product.

    x @ W.T  becomes  x @ W.T + ((x @ A.T) * mask) @ B.T

A holds the ranks of all adapters, one under the other, and B the same ranks side by side, so one branch serves them
all: the mask lets each token see its own adapter's ranks only. Where W joins several modules (q, k and v) each of them
has a block of ranks of its own. A and B are inputs with a varying number of ranks: other adapters need no other graph.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.adapters.peft import PeftAdapter
from mindserve.engine.native.adapters.places import Place
from mindserve.engine.native.models import ops
from mindserve.engine.native.models.ops import Value

MASK = "adapter_mask"
"""Input `[T, ranks]`: 1 where a token's own adapter is, else 0."""


def with_branches(graph: ov.Model, places: Iterable[Place]) -> ov.Model:
    """Add them in place, and the inputs: the mask, and for each place what `stacked` makes."""
    mask = ops.parameter(MASK, [-1, -1], np.float32)
    products = {node.get_friendly_name(): node for node in graph.get_ops()}
    inputs, masks = [mask], _Masks(mask.output(0))
    for place in places:
        down, up = _names(place)
        a = ops.parameter(down, [-1, place.columns], np.float32)
        b = ops.parameter(up, [place.rows, -1], np.float32)
        inputs += [a, b]
        _add_branch(products[place.name], a.output(0), b.output(0), masks.of_blocks(len(place.parts)))
    ops.add_inputs(graph, inputs)
    return graph


class _Masks:
    """The mask, repeated for the blocks of a place; each repetition is made once."""

    def __init__(self, mask: Value) -> None:
        self._masks = {1: mask}

    def of_blocks(self, count: int) -> Value:
        """`[T, count * ranks]`"""
        if count not in self._masks:
            self._masks[count] = ops.concat([self._masks[1]] * count, 1)
        return self._masks[count]


def _add_branch(product: ov.Node, down: Value, up: Value, mask: Value) -> None:
    """Products are `[T, 1, ...]` in the paged graph, which would make T small products of each: hence the reshapes."""
    x, output = product.input_value(0), product.output(0)
    users = list(output.get_target_inputs())
    shape = list(output.get_partial_shape())
    columns = list(x.get_partial_shape())[-1].get_length()
    ranks = ops.multiply(ops.linear(ops.reshape(x, [-1, columns]), down), mask)
    branch = ops.reshape(ops.linear(ranks, up), [-1, *[1] * (len(shape) - 2), shape[-1].get_length()])
    total = ops.add(output, branch)
    for user in users:
        user.replace_source_output(total)


def stacked(
    place: Place, adapters: Mapping[str, PeftAdapter], slots: Mapping[str, slice], ranks: int
) -> dict[str, NDArray[np.float32]]:
    """The place's two inputs. `slots`: each adapter's ranks within a block of `ranks`."""
    count = len(place.parts)
    down = np.zeros((count * ranks, place.columns), np.float32)
    up = np.zeros((place.rows, count * ranks), np.float32)
    for key, adapter in adapters.items():
        for name, (block, rows) in place.areas.items():
            module = adapter.modules.get(name)
            if module is not None:
                begin = block * ranks + slots[key].start
                down[begin : begin + module.rank] = module.down
                up[rows, begin : begin + module.rank] = module.up
    down_name, up_name = _names(place)
    return {down_name: down, up_name: up if place.order is None else np.ascontiguousarray(up[place.order])}


def _names(place: Place) -> tuple[str, str]:
    return f"{place.name}.lora_A", f"{place.name}.lora_B"
