"""From a model's files to the graphs of its towers."""

from collections.abc import Mapping
from dataclasses import dataclass

import openvino as ov

from mindserve.engine.native.models.checkpoint import Checkpoint
from mindserve.engine.native.models.towers.audio import AudioGraph
from mindserve.engine.native.models.towers.spec import MediaSpec
from mindserve.engine.native.models.towers.vision import VisionGraph
from mindserve.engine.native.models.weights import Weights
from mindserve.settings.values import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerGraphs:
    """Graphs of the towers that a model has."""

    spec: MediaSpec
    vision: ov.Model | None = None
    audio: ov.Model | None = None


NESTED = {
    "visual.": "model.visual.",
    "audio_tower.": "model.audio_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
"""How files of newer library versions call the parts."""


def build_towers(spec: MediaSpec, checkpoint: Checkpoint, precision: Precision) -> TowerGraphs:
    """Read, compress and build. Raises ModelLoadError."""
    weights = Weights(checkpoint, precision, _layout(checkpoint))
    return TowerGraphs(
        spec=spec,
        vision=None if spec.vision is None else VisionGraph(spec.vision, weights).build(),
        audio=None if spec.audio is None else AudioGraph(spec.audio, weights).build(),
    )


def _layout(checkpoint: Checkpoint) -> Mapping[str, str]:
    probes = ("model.visual.patch_embed.proj.weight", "model.audio_tower.conv1.weight")
    return NESTED if any(name in checkpoint for name in probes) else {}
