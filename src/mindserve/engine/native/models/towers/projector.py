"""GGUF projector files (mmproj): the towers that go with a text model in a GGUF file of its own."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mindserve.engine.base import MediaKind
from mindserve.engine.fields import Fields
from mindserve.engine.native.models.gguf_file import GgufFile
from mindserve.engine.native.models.stored import StoredTensor
from mindserve.engine.native.models.towers.hf_config import window_patches
from mindserve.engine.native.models.towers.spec import AudioSpec, MediaSpec, TowerActivation, VisionSpec
from mindserve.errors import ModelLoadError

PATCH_KERNEL = "visual.patch_embed.proj.weight"
STEM_NAMES = {
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
    "a.conv1d.1": "audio_tower.conv1",
    "a.conv1d.2": "audio_tower.conv2",
    "a.position_embd": "audio_tower.embed_positions",
    "a.post_ln": "audio_tower.layer_norm",
    "mm.a.fc": "multi_modal_projector.linear",
}
VISION_LAYER_NAMES = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_qkv": "attn.qkv",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_out": "attn.proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
GATED_NAMES = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
AUDIO_LAYER_NAMES = {
    "ln1": "self_attn_layer_norm",
    "ln2": "final_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}
PLACEHOLDERS = {
    MediaKind.IMAGE: "<|image_pad|>",
    MediaKind.VIDEO: "<|video_pad|>",
    MediaKind.AUDIO: "<|AUDIO|>",
}
PUBLISHED_TOKENS_PER_SECOND = 2.0
"""Of Qwen2.5-VL; the files do not say."""

_LAYER = re.compile(r"([va])\.blk\.(\d+)\.(\w+)\.(weight|bias)")


class ProjectorCheckpoint:
    """One file; tensors by the names of Hugging Face files, where those have one."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        if self._file.metadata.get("general.architecture") != "clip":
            raise ModelLoadError(f"{path}: not a projector file")
        self.config = Fields(str(path), self._file.metadata)
        self.generation = Fields(str(path), {})
        self.is_gated = "v.blk.0.ffn_gate.weight" in self._file
        self._names = {self._hf_name(name): name for name in self._file.names}

    def __contains__(self, name: str) -> bool:
        return name in self._names or (name == PATCH_KERNEL and "v.patch_embd.weight" in self._file)

    def source_of(self, name: str) -> str:
        """See Checkpoint."""
        return f"{self.config.source}: {self._names.get(name, name)}"

    def rows(self, name: str) -> int:
        """Size of a tensor's first axis."""
        return self.tensor(name).shape[0]

    def tensor(self, name: str) -> StoredTensor:
        """See Checkpoint."""
        if name == PATCH_KERNEL:
            return self._patch_kernel()
        if name not in self._names:
            raise ModelLoadError(f"{self.config.source}: tensor {name} is missing")
        stored = self._file.tensor(self._names[name])
        is_column = name.endswith(".bias") and stored.data.ndim == 2
        return StoredTensor(data=stored.data.reshape(-1)) if is_column else stored

    def _patch_kernel(self) -> StoredTensor:
        """`[hidden, channels, 2, height, width]`; the file has one tensor for each of the two frames."""
        frames = [self._file.tensor(f"v.patch_embd.{name}").dense() for name in ("weight", "weight.1")]
        return StoredTensor(data=np.stack(frames, axis=2))

    def _hf_name(self, name: str) -> str:
        match = _LAYER.fullmatch(name)
        if match is None:
            stem, _, kind = name.rpartition(".")
            return f"{STEM_NAMES.get(stem, stem)}.{kind}"
        tower, layer, part, kind = match.groups()
        part = self._straightened(tower, part)
        if tower == "a":
            return f"audio_tower.layers.{layer}.{AUDIO_LAYER_NAMES.get(part, part)}.{kind}"
        names = VISION_LAYER_NAMES | (GATED_NAMES if self.is_gated else {})
        return f"visual.blocks.{layer}.{names.get(part, part)}.{kind}"

    def _straightened(self, tower: str, part: str) -> str:
        """Old converters exchanged the names of the two matrices of the MLP: the one that widens is `ffn_up`."""
        if self.is_gated or part not in ("ffn_up", "ffn_down"):
            return part
        rows, columns = self._file.tensor(f"{tower}.blk.0.ffn_up.weight").shape
        return part if rows >= columns else {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}[part]


def projector_spec(
    projector: ProjectorCheckpoint,
    *,
    output_size: int,
    token_id: Callable[[str], int | None],
    has_rotary_grid: bool,
) -> MediaSpec:
    """What the file describes. `token_id` looks a token of the text model up. Raises ModelLoadError."""
    fields = projector.config
    vision = _vision(projector, output_size) if fields.flag("clip.has_vision_encoder", False) else None
    audio = _audio(projector, output_size) if fields.flag("clip.has_audio_encoder", False) else None
    kinds = [MediaKind.IMAGE, MediaKind.VIDEO] if vision is not None else []
    kinds += [MediaKind.AUDIO] if audio is not None else []
    return MediaSpec(
        vision=vision,
        audio=audio,
        placeholders={kind: _placeholder(fields, kind, token_id) for kind in kinds},
        has_rotary_grid=has_rotary_grid,
        tokens_per_second=PUBLISHED_TOKENS_PER_SECOND if vision is not None and vision.window is not None else None,
    )


def _placeholder(fields: Fields, kind: MediaKind, token_id: Callable[[str], int | None]) -> int:
    found = token_id(PLACEHOLDERS[kind])
    if found is None:
        raise ModelLoadError(f"{fields.source}: the text model has no token {PLACEHOLDERS[kind]}")
    return found


def _check_type(fields: Fields, prefix: str, supported: tuple[str, ...]) -> str:
    key = prefix + "projector_type" if prefix + "projector_type" in fields else "clip.projector_type"
    name = fields.text(key)
    if name not in supported:
        raise fields.wrong(key, "one of " + ", ".join(supported))
    return name


def _vision(projector: ProjectorCheckpoint, output_size: int) -> VisionSpec:
    fields, prefix = projector.config, "clip.vision."
    has_windows = _check_type(fields, prefix, ("qwen2vl_merger", "qwen2.5vl_merger")) == "qwen2.5vl_merger"
    inner = "visual.blocks.0.mlp." + ("up_proj" if projector.is_gated else "fc1") + ".weight"
    spec = VisionSpec(
        depth=fields.positive(prefix + "block_count"),
        hidden_size=fields.positive(prefix + "embedding_length"),
        num_heads=fields.positive(prefix + "attention.head_count"),
        intermediate_size=projector.rows(inner),
        output_size=output_size,
        patch_size=fields.positive(prefix + "patch_size", 14),
        merge_size=fields.positive(prefix + "spatial_merge_size", 2),
        norm_epsilon=fields.number(prefix + "attention.layer_norm_epsilon", 1e-6),
        activation=_activation(fields),
        is_gated=projector.is_gated,
        has_final_norm="visual.merger.ln_q.weight" in projector,
    )
    return _windowed(spec, fields) if has_windows else spec


def _windowed(spec: VisionSpec, fields: Fields) -> VisionSpec:
    every = fields.positive("clip.vision.n_wa_pattern", 8)
    pixels = fields.positive("clip.vision.window_size", 112)
    full = frozenset(layer for layer in range(spec.depth) if (layer + 1) % every == 0)
    return replace(spec, window=window_patches(pixels, spec), full_attention_layers=full)


def _activation(fields: Fields) -> TowerActivation:
    if fields.flag("clip.use_silu", False):
        return TowerActivation.SILU
    return TowerActivation.GELU if fields.flag("clip.use_gelu", False) else TowerActivation.GELU_QUICK


def _audio(projector: ProjectorCheckpoint, output_size: int) -> AudioSpec:
    fields, prefix = projector.config, "clip.audio."
    _check_type(fields, prefix, ("qwen2a",))
    return AudioSpec(
        depth=fields.positive(prefix + "block_count"),
        hidden_size=fields.positive(prefix + "embedding_length"),
        num_heads=fields.positive(prefix + "attention.head_count"),
        intermediate_size=projector.rows("audio_tower.layers.0.fc1.weight"),
        output_size=output_size,
        mel_bins=fields.positive(prefix + "num_mel_bins", 128),
        max_positions=projector.rows("audio_tower.embed_positions.weight"),
        norm_epsilon=fields.number(prefix + "attention.layer_norm_epsilon", 1e-5),
        has_final_norm="audio_tower.layer_norm.weight" in projector,
    )
