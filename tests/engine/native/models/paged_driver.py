"""Runs a loaded model one sequence at a time, in plain float32, for comparison with reference numbers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.native.models.loader import LoadedModel, load_model
from mindserve.settings.values import Precision

GOLDENS = Path(__file__).parents[3] / "data" / "goldens"
BLOCK, BLOCKS = 32, 16
EXACT = {
    "KV_CACHE_PRECISION": "f32",
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "INFERENCE_NUM_THREADS": 2,
}


def quiet(_what: str, _share: float) -> None:
    """Nobody watches the progress."""


class PagedDriver:
    """One sequence over blocks that lie in reverse order, so that a block table that is not followed shows."""

    def __init__(self, model: LoadedModel) -> None:
        self.compiled = ov.Core().compile_model(model.graph, "CPU", EXACT)
        self._request = self.compiled.create_infer_request()
        for each in self.compiled.inputs:
            if "_cache." in each.any_name:
                shape = [BLOCKS, *(size.get_length() for size in list(each.partial_shape)[1:])]
                self._request.set_tensor(each.any_name, ov.Tensor(each.element_type, ov.Shape(shape)))

    def step(self, ids: list[int], past: int, rows: list[int]) -> NDArray[np.float32]:
        """Logits [rows, vocab] after `ids`, of which `past` tokens come before."""
        total = past + len(ids)
        used = -(-total // BLOCK)
        inputs = {
            "input_ids": np.array(ids, np.int64),
            "position_ids": np.arange(past, total, dtype=np.int64),
            "past_lens": np.array([past], np.int32),
            "subsequence_begins": np.array([0, len(ids)], np.int32),
            "block_indices": np.arange(BLOCKS - 1, BLOCKS - 1 - used, -1, dtype=np.int32),
            "block_indices_begins": np.array([0, used], np.int32),
            "max_context_len": np.array(total, np.int32),
            "sample_rows": np.array(rows, np.int64),
        }
        for name, values in inputs.items():
            self._request.set_tensor(name, ov.Tensor(values))
        self._request.infer()
        return self._request.get_output_tensor(0).data.copy()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The `count` best next tokens."""
        logits = self.step(prompt, 0, [len(prompt) - 1])
        tokens: list[int] = []
        for past in range(len(prompt), len(prompt) + count):
            tokens.append(int(logits[0].argmax()))
            logits = self.step(tokens[-1:], past, [0])
        return tokens


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Reference numbers of one family."""

    folder: Path
    facts: dict[str, Any]

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids."""
        return [prompt["ids"] for prompt in self.facts["prompts"]]

    def array(self, name: str) -> NDArray[np.float32]:
        """One of its .npy files."""
        return np.load(self.folder / name)


def golden(family: str) -> Golden:
    """Of that folder."""
    folder = GOLDENS / family
    return Golden(folder=folder, facts=json.loads((folder / "golden.json").read_text()))


def driver(path: Path, precision: Precision = Precision.F32, *, max_context: int | None = None) -> PagedDriver:
    """A model from its files."""
    return PagedDriver(load_model(path, precision, progress=quiet, max_context=max_context))
