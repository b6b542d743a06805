"""From the stateful graph to the one that the engine runs: tokens of many sequences in one row, KV in blocks."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import re
from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset15
from openvino._offline_transformations import (  # pyright: ignore[reportMissingTypeStubs]
    paged_attention_transformation,
)

from mindserve.errors import ModelLoadError

ATTENTION = "PagedAttentionExtension"
KEY_CACHE, SLIDING_WINDOW = 3, 10
"""Indices of the operator's inputs."""


def to_paged(graph: ov.Model, windows: Sequence[int | None]) -> None:
    """Transform in place; `windows`: the sliding window of each layer, () for none."""
    layers = sum(node.get_type_name() == "ScaledDotProductAttention" for node in graph.get_ops())
    paged_attention_transformation(graph)
    found = [node for node in graph.get_ops() if node.get_type_name() == ATTENTION]
    if len(found) != layers:
        raise ModelLoadError(f"only {len(found)} of {layers} attention layers could be paged")
    for node in found:
        window = windows[_layer_of(node)] if windows else None
        if window is not None:
            node.input(SLIDING_WINDOW).replace_source_output(opset15.constant(np.int32(window)).output(0))
    graph.validate_nodes_and_infer_types()


def _layer_of(node: ov.Node) -> int:
    name = node.input_value(KEY_CACHE).get_any_name()
    match = re.fullmatch(r"key_cache\.(\d+)", name)
    if match is None:
        raise ModelLoadError(f"unexpected cache input {name}")
    return int(match[1])
