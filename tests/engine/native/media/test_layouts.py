"""The same models in the other layouts that their files have: newer Hugging Face directories, GGUF with a projector."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from references import GOLDENS, TOLERANCE, cases
from safetensors.numpy import load_file, save_file

from mindserve.engine.base import MediaKind
from mindserve.engine.native.kernels import EXACT
from mindserve.engine.native.models.checkpoint import model_files
from mindserve.engine.native.models.loader import LoadedModel, load_model
from mindserve.engine.native.models.towers.spec import MediaSpec
from mindserve.engine.native.towers import NativeTowers
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision

Tensors = dict[str, np.ndarray]


def load(path: Path) -> LoadedModel:
    return load_model(path, Precision.F32, progress=lambda _what, _share: None)


def check_towers(model: LoadedModel, family: str) -> None:
    """Against the family's reference numbers."""
    assert model.towers is not None
    towers = NativeTowers(model.towers, EXACT, threads=1)
    for case in cases(family):
        for media, expected in zip(case.media, case.embeddings, strict=True):
            assert np.abs(towers.encode(media) - expected).max() < TOLERANCE, case.name
        if family != "qwen2-audio":
            assert (towers.positions(len(case.ids), case.media) == case.arrays["position_ids"]).all()


def newer(family: str, folder: Path, rename: Callable[[str], str], nest: Callable[[dict[str, Any]], None]) -> Path:
    """The family's directory as newer library versions write it."""
    shutil.copytree(GOLDENS / family / "model", folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    save_file({rename(name): values for name, values in tensors.items()}, folder / "model.safetensors")
    config = json.loads((GOLDENS / family / "model" / "config.json").read_text())
    nest(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def nest_vision(config: dict[str, Any]) -> None:
    outside = ("architectures", "model_type", "vision_config", "tie_word_embeddings")
    text = {key: value for key, value in config.items() if key not in outside and not key.endswith("_token_id")}
    for key in text:
        del config[key]
    scaling = text.pop("rope_scaling")
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": text.pop("rope_theta"),
        "mrope_section": scaling["mrope_section"],
    }
    text["eos_token_id"] = config.pop("eos_token_id")
    config["text_config"] = {**text, "model_type": config["model_type"] + "_text"}


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl"])
def test_newer_vision_directories(family: str, tmp_path: Path) -> None:
    def rename(name: str) -> str:
        if name.startswith("visual."):
            return "model." + name
        return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name

    model = load(newer(family, tmp_path / "model", rename, nest_vision))
    old = load(GOLDENS / family / "model")
    assert model.config == old.config
    check_towers(model, family)


def test_newer_audio_directories(tmp_path: Path) -> None:
    def rename(name: str) -> str:
        if name.startswith("language_model.model."):
            return name.replace("language_model.model.", "model.language_model.", 1)
        return name.removeprefix("language_model.") if name.startswith("language_model.") else "model." + name

    def nest(config: dict[str, Any]) -> None:
        config["audio_token_id"] = config.pop("audio_token_index")

    model = load(newer("qwen2-audio", tmp_path / "model", rename, nest))
    check_towers(model, "qwen2-audio")


VISION_NAMES = {
    "visual.merger.ln_q": "v.post_ln",
    "visual.merger.mlp.0": "mm.0",
    "visual.merger.mlp.2": "mm.2",
    "visual.blocks": "v.blk",
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
AUDIO_NAMES = {
    "audio_tower.conv": "a.conv1d.",
    "audio_tower.embed_positions": "a.position_embd",
    "audio_tower.layer_norm": "a.post_ln",
    "audio_tower.layers": "a.blk",
    "self_attn_layer_norm": "ln1",
    "final_layer_norm": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "multi_modal_projector.linear": "mm.a.fc",
}
TEXT_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def renamed(name: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        name = name.replace(old, new)
    return name


def write(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vision_tensors(tensors: Tensors) -> Tensors:
    """Under the names of projector files: q, k, v apart, and the two frames of the patches' kernel too."""
    found: Tensors = {}
    for name, values in tensors.items():
        if name == "visual.patch_embed.proj.weight":
            found["v.patch_embd.weight"], found["v.patch_embd.weight.1"] = values[:, :, 0], values[:, :, 1]
        elif ".attn.qkv." in name:
            for part, rows in zip("qkv", np.split(values, 3), strict=True):
                found[renamed(name, VISION_NAMES).replace("attn.qkv", f"attn_{part}")] = rows
        elif name.startswith("visual."):
            found[renamed(name, VISION_NAMES)] = values
    return found


def audio_tensors(tensors: Tensors) -> Tensors:
    found = {
        renamed(name, AUDIO_NAMES): values
        for name, values in tensors.items()
        if name.startswith(("audio_tower.", "multi_modal_projector."))
    }
    for name in ("a.conv1d.1.bias", "a.conv1d.2.bias"):
        found[name] = found[name][:, None]
    return found


def write_projector(path: Path, family: str, *, swaps_mlp: bool = False) -> None:
    tensors = load_file(GOLDENS / family / "model" / "model.safetensors")
    config = json.loads((GOLDENS / family / "model" / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "clip")
    tower = "audio" if family == "qwen2-audio" else "vision"
    writer.add_bool(f"clip.has_{tower}_encoder", True)
    kinds = {"qwen2-vl": "qwen2vl_merger", "qwen2.5-vl": "qwen2.5vl_merger", "qwen2-audio": "qwen2a"}
    writer.add_string("clip.projector_type", kinds[family])
    if tower == "audio":
        audio = config["audio_config"]
        sizes = (audio["d_model"], audio["encoder_layers"], audio["encoder_attention_heads"])
        found = audio_tensors(tensors)
    else:
        vision = config["vision_config"]
        sizes = (vision.get("embed_dim", vision["hidden_size"]), vision["depth"], vision["num_heads"])
        found = vision_tensors(tensors)
    for name, size in zip(("embedding_length", "block_count", "attention.head_count"), sizes, strict=True):
        writer.add_uint32(f"clip.{tower}.{name}", size)
    writer.add_float32(f"clip.{tower}.attention.layer_norm_epsilon", 1e-6 if tower == "vision" else 1e-5)
    if family == "qwen2.5-vl":
        writer.add_bool("clip.use_silu", True)
        writer.add_uint32("clip.vision.n_wa_pattern", 2)
        writer.add_uint32("clip.vision.window_size", 56)
    if swaps_mlp:
        swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
        found = {renamed_once(name, swap): values for name, values in found.items()}
    write(writer, found)


def renamed_once(name: str, table: dict[str, str]) -> str:
    return next((name.replace(old, new) for old, new in table.items() if old in name), name)


def write_text_model(path: Path, family: str, *, placeholders: bool = True) -> None:
    folder = GOLDENS / family / "model"
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    is_vision = family != "qwen2-audio"
    writer = gguf.GGUFWriter(path, "qwen2vl" if is_vision else "qwen2")
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_freq_base(text["rope_theta"])
    if is_vision:
        writer.add_rope_dimension_sections([*text["rope_scaling"]["mrope_section"], 0])
    tokens = [f"[{index}]" for index in range(config["vocab_size"])]
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "audio_token_index": "<|AUDIO|>"}
    for key, token in names.items():
        if key in config and placeholders:
            tokens[config[key]] = token
    writer.add_token_list(tokens)
    tensors = load_file(folder / "model.safetensors")
    of_text = {name.removeprefix("language_model."): values for name, values in tensors.items()}
    write(
        writer,
        {renamed(name, TEXT_NAMES): v for name, v in of_text.items() if name.startswith(("model.", "lm_head."))},
    )


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl", "qwen2-audio"])
def test_a_gguf_file_with_its_projector(family: str, tmp_path: Path) -> None:
    write_text_model(tmp_path / "model.gguf", family)
    write_projector(tmp_path / "mmproj-model.gguf", family)
    model, original = load(tmp_path), load(GOLDENS / family / "model")
    assert model.towers is not None and original.towers is not None
    assert rounded(model.towers.spec) == rounded(original.towers.spec)
    check_towers(model, family)


def rounded(spec: MediaSpec) -> MediaSpec:
    """GGUF files hold the epsilon in single precision."""
    vision, audio = (
        tower and replace(tower, norm_epsilon=round(tower.norm_epsilon, 9)) for tower in (spec.vision, spec.audio)
    )
    return replace(spec, vision=vision, audio=audio)


def test_old_projectors_with_exchanged_names(tmp_path: Path) -> None:
    write_text_model(tmp_path / "model.gguf", "qwen2-vl")
    write_projector(tmp_path / "MMPROJ.gguf", "qwen2-vl", swaps_mlp=True)
    check_towers(load(tmp_path), "qwen2-vl")


def test_without_its_projector_it_is_a_text_model(tmp_path: Path) -> None:
    write_text_model(tmp_path / "model.gguf", "qwen2-vl")
    model = load(tmp_path)
    assert model.towers is None
    names = {name for each in model.graph.inputs for name in each.get_names()}
    assert "rotary_positions" in names
    assert "embeddings" not in names


def test_a_projector_for_another_kind_of_text_model(tmp_path: Path) -> None:
    write_text_model(tmp_path / "model.gguf", "qwen2-vl", placeholders=False)
    write_projector(tmp_path / "mmproj.gguf", "qwen2-vl")
    with pytest.raises(ModelLoadError, match=r"the text model has no token <\|image_pad\|>"):
        load(tmp_path)


def test_a_model_directory_holds_one_model(tmp_path: Path) -> None:
    write_text_model(tmp_path / "model.gguf", "qwen2-vl")
    (tmp_path / "mmproj-a.gguf").touch()
    assert [file.name for file in model_files(tmp_path)] == ["model.gguf", "mmproj-a.gguf"]
    with pytest.raises(ModelLoadError, match=r"mmproj-a\.gguf: not a readable GGUF file"):
        load(tmp_path)
    (tmp_path / "mmproj-b.gguf").touch()
    with pytest.raises(ModelLoadError, match="found 1 and 2"):
        load(tmp_path)
    (tmp_path / "model.gguf").unlink()
    with pytest.raises(ModelLoadError, match="found 0 and 2"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"vision_config": None}, "vision_config is missing"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3]}}, "mrope_section should be"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 4]}}, "add up to 8"),
        ({"image_token_id": None}, "image_token_id is missing"),
        ({"vision_config": {"embed_dim": 32, "num_heads": 3}}, "num_heads 3 does not fit"),
        ({"vision_config": {"embed_dim": 32, "num_heads": 2, "hidden_act": "relu"}}, "hidden_act should be one of"),
        ({"vision_config": {"embed_dim": 64, "num_heads": 2}}, r"has shape \[32, 3, 2, 14, 14\], expected \[64,"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    folder = newer("qwen2-vl", tmp_path / "model", lambda name: name, lambda config: config.update(change))
    with pytest.raises(ModelLoadError, match=text):
        load(folder)


def test_kinds_of_media_follow_from_the_towers(tmp_path: Path) -> None:
    kinds = {"qwen2-vl": {MediaKind.IMAGE, MediaKind.VIDEO}, "qwen2-audio": {MediaKind.AUDIO}}
    for family, expected in kinds.items():
        towers = load(GOLDENS / family / "model").towers
        assert towers is not None and set(towers.spec.placeholders) == expected
