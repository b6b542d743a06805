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
        down, up = _inputs_for(place)
        inputs += [down, up]
        if place.has_twins:
            _add_twin_branch(products[place.name], down.output(0), up.output(0), masks.plain)
        else:
            of_blocks = masks.of_blocks(len(place.parts))
            _add_branch(products[place.name], down.output(0), up.output(0), of_blocks)
    ops.add_inputs(graph, inputs)
    return graph


class _Masks:
    """The mask, repeated for the blocks of a place; each repetition is made once."""

    def __init__(self, mask: Value) -> None:
        self.plain = mask
        self._repeated = {1: mask}

    def of_blocks(self, count: int) -> Value:
        """`[T, count * ranks]`"""
        if count not in self._repeated:
            self._repeated[count] = ops.concat([self.plain] * count, 1)
        return self._repeated[count]


def _add_branch(product: ov.Node, down: Value, up: Value, mask: Value) -> None:
    """One product for all parts: B is 0 where a part's rows meet another's ranks."""
    ranks = ops.multiply(ops.linear(_rows(product), down), mask)
    _add_to(product.output(0), ops.linear(ranks, up))


def _add_twin_branch(product: ov.Node, down: Value, up: Value, mask: Value) -> None:
    """A product for each of two equal parts, without the zeros, added behind where they are split."""
    ranks = ops.multiply(ops.linear(ops.unsqueeze(_rows(product), 0), down), mask)
    for part, branch in zip(_split_after(product).outputs(), ops.halves(ops.linear(ranks, up), 0), strict=True):
        _add_to(part, branch)


def _rows(product: ov.Node) -> Value:
    """x as `[T, columns]`: the paged graph's `[T, 1, columns]` would make T small products."""
    x = product.input_value(0)
    return ops.reshape(x, [-1, list(x.get_partial_shape())[-1].get_length()])


def _split_after(product: ov.Node) -> ov.Node:
    """Behind the bias, if there is one."""
    (user,) = product.output(0).get_target_inputs()
    node = user.get_node()
    return node if node.get_type_name() == "VariadicSplit" else _split_after(node)


def _add_to(output: Value, branch: Value) -> None:
    users = list(output.get_target_inputs())
    shape = list(output.get_partial_shape())
    total = ops.add(output, ops.reshape(branch, [-1, *[1] * (len(shape) - 2), shape[-1].get_length()]))
    for user in users:
        user.replace_source_output(total)


def stacked(
    place: Place, adapters: Mapping[str, PeftAdapter], slots: Mapping[str, slice], ranks: int
) -> dict[str, NDArray[np.float32]]:
    """The place's two inputs. `slots`: each adapter's ranks within a block of `ranks`."""
    count = len(place.parts)
    down = np.zeros((count, ranks, place.columns), np.float32)
    up = np.zeros((place.rows, count, ranks), np.float32)
    for key, adapter in adapters.items():
        for name in place.modules & adapter.modules.keys():
            module, begin = adapter.modules[name], slots[key].start
            for area in place.areas(name):
                down[area.block, begin : begin + module.rank] = module.down
                up[area.rows, area.block, begin : begin + module.rank] = module.up[area.own_rows]
    if place.order is not None:
        up = up[place.order]
    down_name, up_name = _names(place)
    if place.has_twins:
        first, second = np.split(up, 2)
        return {down_name: down, up_name: np.stack([first[:, 0], second[:, 1]])}
    return {down_name: down.reshape(-1, place.columns), up_name: up.reshape(place.rows, -1)}


def _inputs_for(place: Place) -> tuple[ov.Node, ov.Node]:
    down, up = _names(place)
    if place.has_twins:
        twins = [2, -1, place.columns], [2, place.rows // 2, -1]
        return ops.parameter(down, twins[0], np.float32), ops.parameter(up, twins[1], np.float32)
    return ops.parameter(down, [-1, place.columns], np.float32), ops.parameter(up, [place.rows, -1], np.float32)


def _names(place: Place) -> tuple[str, str]:
    return f"{place.name}.lora_A", f"{place.name}.lora_B"
