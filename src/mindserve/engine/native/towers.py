"""The compiled towers of a model."""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_native_id

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput, MediaKind
from mindserve.engine.native.kernels import EXACT, Kernels
from mindserve.engine.native.models.towers.build import TowerGraphs
from mindserve.engine.native.models.towers.grid import grid_inputs
from mindserve.engine.native.models.towers.positions import grid_positions
from mindserve.engine.native.models.towers.spec import VisionSpec
from mindserve.errors import EngineFailure

NICENESS = 4
"""How far the towers stand behind running streams."""

Features = Mapping[str, NDArray[np.generic]]


class NativeTowers:
    """`step.Towers` on the OpenVINO runtime.

    They leave half of the threads to the text model and give way to it: what is running goes on beside them. Where the
    processor multiplies bfloat16 directly they use it (several times faster), unless the model is to be exact.
    """

    def __init__(self, graphs: TowerGraphs, kernels: Kernels, *, threads: int) -> None:
        core = ov.Core()
        self._spec = graphs.spec
        properties = {**kernels.properties(max(1, threads // 2)), "ENABLE_CPU_PINNING": False}
        del properties["KV_CACHE_PRECISION"]
        if kernels != EXACT and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            properties["INFERENCE_PRECISION_HINT"] = "bf16"

        def compiled(graph: ov.Model | None) -> ov.InferRequest | None:
            return None if graph is None else core.compile_model(graph, "CPU", properties).create_infer_request()

        # The runtime's threads inherit the priority of the thread that compiles.
        with ThreadPoolExecutor(1, initializer=_give_way) as thread:
            self._vision, self._audio = thread.map(compiled, (graphs.vision, graphs.audio))

    def encode(self, media: MediaInput) -> NDArray[np.float32]:
        """`[media.length, hidden size]`. Raises EngineFailure."""
        try:
            rows = self._hear(media.features) if media.kind is MediaKind.AUDIO else self._see(media.features)
        except RuntimeError as error:
            raise EngineFailure(f"The model could not read the {media.kind}.") from error
        if len(rows) != media.length:
            raise EngineFailure(f"The {media.kind} makes {len(rows)} tokens where the prompt has {media.length}.")
        return rows

    def positions(self, length: int, media: Sequence[MediaInput]) -> NDArray[np.int64] | None:
        """`[3, length]`, or None where tokens just count."""
        return grid_positions(self._spec, length, media) if self._spec.has_rotary_grid else None

    def interrupt(self) -> None:
        """Let `encode` fail now, if it runs."""
        for request in (self._vision, self._audio):
            if request is not None:
                request.cancel()

    def _see(self, features: Features) -> NDArray[np.float32]:
        """One time step after the other."""
        spec = self._spec.vision
        assert self._vision is not None and spec is not None
        steps, height, width = (int(size) for size in features["grid_thw"])
        frames = np.asarray(features["pixel_values"], np.float32).reshape(steps, height * width, spec.patch_values)
        return np.concatenate([_inferred(self._vision, self._frame(spec, each, height, width)) for each in frames])

    def _frame(self, spec: VisionSpec, pixels: NDArray[np.float32], height: int, width: int) -> Features:
        return {"pixels": pixels, **grid_inputs(spec, height, width)}

    def _hear(self, features: Features) -> NDArray[np.float32]:
        """What lies behind the sound is left out, but for the columns that the convolutions look ahead."""
        assert self._audio is not None
        columns = int(np.asarray(features["feature_attention_mask"]).sum())
        encoded = (columns + 1) // 2
        heard = np.asarray(features["input_features"], np.float32)[None, :, : 2 * encoded + 2]
        inputs = {"features": np.ascontiguousarray(heard), "encoded": np.array([encoded], np.int64)}
        return _inferred(self._audio, inputs)


def _inferred(request: ov.InferRequest, inputs: Features) -> NDArray[np.float32]:
    for name, values in inputs.items():
        # A copy: features are read-only, and a tensor in their memory would have to be allowed to write.
        request.set_tensor(name, ov.Tensor(np.ascontiguousarray(values)))
    request.start_async()
    request.wait()
    return request.get_output_tensor(0).data.copy()


def _give_way() -> None:
    """Let this thread have less than a third of a core that the text model wants too. Only Linux can."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
