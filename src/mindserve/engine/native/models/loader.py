"""From a model's files to the graph that the engine runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import openvino as ov

from mindserve.engine.native.models.checkpoint import Checkpoint, model_files
from mindserve.engine.native.models.config import ModelConfig, for_context, read_config
from mindserve.engine.native.models.decoder import build_decoder
from mindserve.engine.native.models.families.registry import describe, family_of, tensor_names, usual_keys
from mindserve.engine.native.models.gguf_checkpoint import GgufCheckpoint
from mindserve.engine.native.models.paged import to_paged
from mindserve.engine.native.models.safetensors_checkpoint import SafetensorsCheckpoint
from mindserve.engine.native.models.spec import DecoderSpec, Family
from mindserve.engine.native.models.towers.build import TowerGraphs, build_towers
from mindserve.engine.native.models.towers.hf_config import media_spec
from mindserve.engine.native.models.towers.projector import ProjectorCheckpoint, projector_spec
from mindserve.engine.native.models.towers.spec import MediaSpec
from mindserve.engine.native.models.weights import Weights
from mindserve.settings.values import Precision

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done (0 to 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to be compiled.

    `graph` takes `input_ids`, `position_ids` `[T]` int64, `past_lens`, `subsequence_begins`, `block_indices`,
    `block_indices_begins`, `max_context_len` (int32), `key_cache.N`, `value_cache.N` and `sample_rows` `[R]` int64, and
    gives `logits` `[R, vocab_size]`. With media it also takes what `build_decoder` says.
    """

    graph: ov.Model
    config: ModelConfig
    towers: TowerGraphs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulModel:
    """The graph before the paged transformation: what can be saved."""

    graph: ov.Model
    config: ModelConfig
    windows: tuple[int | None, ...]
    towers: TowerGraphs | None = None


def load_model(path: Path, precision: Precision, *, progress: Progress, max_context: int | None = None) -> LoadedModel:
    """Read and build, for sequences of at most `max_context` tokens (None: the model's most). Raises ModelLoadError."""
    return paged_model(build_model(path, precision, progress=progress, max_context=max_context))


def build_model(
    path: Path, precision: Precision, *, progress: Progress, max_context: int | None = None
) -> StatefulModel:
    """Read, compress and build, without the paged transformation. Raises ModelLoadError."""
    progress("reading", 0.0)
    checkpoint = open_checkpoint(path)
    spec, family = _describe(checkpoint, max_context)
    media = _media(path, checkpoint, spec)
    spec = replace(spec, takes_embeddings=media is not None)
    weights = Weights(checkpoint, precision, tensor_names(family, checkpoint))

    def on_layer(index: int) -> None:
        progress("building", (index + 1) / spec.config.num_layers)

    graph = build_decoder(spec, weights, on_layer)
    towers = None if media is None else build_towers(media[0], media[1], precision)
    return StatefulModel(graph=graph, config=spec.config, windows=spec.windows, towers=towers)


def read_spec(path: Path) -> tuple[DecoderSpec, Family]:
    """What a model's graph is built from, without its weights. Raises ModelLoadError."""
    return _describe(open_checkpoint(path), None)


def _describe(checkpoint: Checkpoint, max_context: int | None) -> tuple[DecoderSpec, Family]:
    family = family_of(checkpoint.config)
    fields = usual_keys(checkpoint.config, family)
    config = for_context(read_config(fields, checkpoint.generation), max_context)
    return describe(family, config, fields), family


def _media(path: Path, checkpoint: Checkpoint, spec: DecoderSpec) -> tuple[MediaSpec, Checkpoint] | None:
    """What is not text about a model, and the files that hold its towers; None: nothing."""
    size = spec.config.hidden_size
    if not isinstance(checkpoint, GgufCheckpoint):
        media = media_spec(checkpoint.config, size)
        return None if media is None else (media, checkpoint)
    files = model_files(path)[1:]
    if not files:
        return None
    projector = ProjectorCheckpoint(files[0])
    has_rotary_grid = bool(spec.rotary_sections)
    token_id = checkpoint.token_id
    media = projector_spec(projector, output_size=size, token_id=token_id, has_rotary_grid=has_rotary_grid)
    return media, projector


def paged_model(model: StatefulModel) -> LoadedModel:
    """Transform (in place)."""
    to_paged(model.graph, model.windows)
    return LoadedModel(graph=model.graph, config=model.config, towers=model.towers)


def open_checkpoint(path: Path) -> Checkpoint:
    """A Hugging Face directory, a GGUF file, or a directory with one. Raises ModelLoadError."""
    first = model_files(path)[0]
    return SafetensorsCheckpoint(first.parent) if first.name == "config.json" else GgufCheckpoint(first)
