"""Reading model files: the same model from every layout, and errors that name file and tensor."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from paged_driver import GOLDENS, PagedDriver, driver, golden, quiet
from safetensors.numpy import load_file, save_file

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig, RopeKind, read_config
from mindserve.engine.native.models.gguf_metadata import ARCHITECTURES, hf_config
from mindserve.engine.native.models.loader import load_model, open_checkpoint
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    target = Path(shutil.copytree(GOLDENS / "qwen2" / "model", tmp_path / "model"))
    for file in target.iterdir():
        file.chmod(0o644)
    return target


def load(path: Path) -> PagedDriver:
    return driver(path)


def config_of(path: Path) -> ModelConfig:
    checkpoint = open_checkpoint(path)
    return read_config(checkpoint.config, checkpoint.generation)


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes a key out."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.mark.parametrize("family", ["llama", "llama-untied", "qwen2", "qwen3", "glm", "glm4", "qwen2-moe", "qwen3-moe"])
def test_gguf_metadata_say_what_config_json_says(family: str) -> None:
    folder = GOLDENS / family
    ours, theirs = config_of(folder / "model"), config_of(folder / f"{family}.q8_0.gguf")
    for name in ("model_type", "vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("rotary_dim", "rope_theta", "max_position", "ties_embeddings", "default_top_k", "intermediate_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.norm_epsilon == pytest.approx(theirs.norm_epsilon)
    assert ours.eos_token_ids == theirs.eos_token_ids or ours.eos_token_ids > theirs.eos_token_ids


def test_end_tokens_of_both_files_count_and_top_k_of_the_first_that_has_it(model_dir: Path) -> None:
    edit(model_dir / "config.json", eos_token_id=5, top_k=7)
    edit(model_dir / "generation_config.json", eos_token_id=[6, 8], top_k=9)
    config = config_of(model_dir)
    assert (config.eos_token_ids, config.default_top_k) == ({5, 6, 8}, 9)
    (model_dir / "generation_config.json").unlink()
    config = config_of(model_dir)
    assert (config.eos_token_ids, config.default_top_k) == ({5}, 7)


@pytest.mark.parametrize(
    ("scaling", "kind", "factor"),
    [
        ({}, RopeKind.DEFAULT, None),
        ({"type": "none"}, RopeKind.DEFAULT, None),
        ({"type": "linear", "factor": 2.0}, RopeKind.LINEAR, None),
        ({"type": "yarn", "factor": 4.0, "attn_factor": 1.0}, RopeKind.YARN, None),
        ({"attn_factor": 1.19}, RopeKind.DEFAULT, 1.19),
    ],
)
def test_rope_scaling_of_gguf_metadata(scaling: dict[str, Any], kind: RopeKind, factor: float | None) -> None:
    sizes = {"block_count": 1, "embedding_length": 64, "feed_forward_length": 64, "attention.head_count": 4}
    metadata = {f"llama.{key}": value for key, value in sizes.items()} | {"general.architecture": "llama"}
    metadata |= {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    fields = hf_config(metadata, ARCHITECTURES["llama"]) | {"vocab_size": 10}
    rope = read_config(Fields("x.gguf", fields), Fields("", {})).rope
    assert (rope.kind, rope.factor, rope.attention_factor) == (kind, scaling.get("factor", 1.0), factor)


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "llama" / "llama.q8_0.gguf", tmp_path)
    assert config_of(tmp_path) == config_of(GOLDENS / "llama" / "llama.q8_0.gguf")


def test_the_newer_configuration_form_is_read() -> None:
    config = config_of(GOLDENS / "llama-untied" / "model")
    assert (config.rope.kind, config.rope.factor, config.rope.original_max_position) == (RopeKind.LLAMA3, 8.0, 64)
    assert config.rope_theta == 500000.0


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 0.0), (np.float16, 0.02), (ml_dtypes.bfloat16, 0.2)])
def test_every_stored_type_gives_the_model(model_dir: Path, dtype: Any, tolerance: float) -> None:
    file = model_dir / "model.safetensors"
    ids = golden("qwen2").prompts[0]
    before = load(model_dir).step(ids, 0, [len(ids) - 1])
    save_file({name: tensor.astype(dtype) for name, tensor in load_file(file).items()}, file)
    after = load(model_dir).step(ids, 0, [len(ids) - 1])
    assert np.abs(after - before).max() <= tolerance
    assert tolerance == 0.0 or np.abs(after - before).max() > 0


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def with_tensor(name: str, value: np.ndarray) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: value})


K_BIAS, NORM = "model.layers.1.self_attn.k_proj.bias", "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(K_BIAS), f"tensor {K_BIAS} is missing"),
        (without("model.embed_tokens.weight"), "tensor model.embed_tokens.weight is missing"),
        (without("lm_head.weight"), "tensor lm_head.weight is missing"),
        (with_tensor(NORM, np.ones(63, np.float32)), rf"tensor {NORM} has shape \[63\], expected \[64\]"),
        (with_tensor(NORM, np.ones((64, 1), np.float32)), r"has shape \[64, 1\], expected \[64\]"),
        (with_tensor(NORM, np.ones(64, np.int32)), f"tensor {NORM} has type I32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    model_dir: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    file = model_dir / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=message) as error:
        load(model_dir)
    assert str(model_dir) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type mamba is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
        ({"hidden_size": "64"}, "hidden_size should be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers should be an integer of at least 1"),
        ({"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight is missing"),
        ({"num_key_value_heads": 3}, "heads and head_dim do not fit"),
        ({"vocab_size": 600}, "expected .600, 64."),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type should be one of default, linear"),
        ({"eos_token_id": "x"}, "eos_token_id should be an integer or a list"),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings should be true or false"),
        ({"hidden_act": "relu2"}, "hidden_act should be one of silu"),
    ],
)
def test_configurations_that_do_not_fit_are_named(model_dir: Path, changes: dict[str, Any], message: str) -> None:
    edit(model_dir / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=message) as error:
        load(model_dir)
    assert str(model_dir) in str(error.value)


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_a_cut_safetensors_file_is_named(model_dir: Path, kept: float) -> None:
    file = model_dir / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load(model_dir)


@pytest.mark.parametrize("kept", [0, 3, 20, 500, 0.1, 0.5, 0.99])
def test_a_cut_gguf_file_is_named(tmp_path: Path, kept: float) -> None:
    data = (GOLDENS / "llama" / "llama.q8_0.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
        load(file)


def test_a_gguf_file_of_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    data = (GOLDENS / "qwen2" / "qwen2.q8_0.gguf").read_bytes()
    name = struct.pack("<Q", 5) + b"qwen2"
    assert data.count(name) >= 1
    file = tmp_path / "model.gguf"
    file.write_bytes(data.replace(name, struct.pack("<Q", 5) + b"mamba", 1))
    with pytest.raises(ModelLoadError, match="architecture mamba is not supported"):
        load(file)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "llama-untied" / "model", tmp_path / "model")
    (tmp_path / "model" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"index\.json: names model-00002-of-00002\.safetensors"):
        load(tmp_path / "model")


def test_a_shard_outside_the_directory_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "llama-untied" / "model", tmp_path / "model")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.chmod(0o644)
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))
    with pytest.raises(ModelLoadError, match="not in the directory"):
        load(tmp_path / "model")


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00\x01"])
def test_a_damaged_config_json_is_named(model_dir: Path, content: str) -> None:
    (model_dir / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load(model_dir)


def test_paths_without_a_model_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such model file or directory"):
        load(tmp_path / "nothing")
    with pytest.raises(ModelLoadError, match="found 0"):
        load(tmp_path)


def test_tied_embeddings_are_stored_once() -> None:
    graph = load_model(GOLDENS / "llama" / "model", Precision.INT8, progress=quiet).graph
    table = 462 * 64
    large = [n for n in graph.get_ops() if n.get_type_name() == "Constant" and np.prod(n.get_output_shape(0)) == table]
    assert len(large) == 1


def test_the_progress_of_building_reaches_its_end(model_dir: Path) -> None:
    seen: list[tuple[str, float]] = []
    load_model(model_dir, Precision.INT8, progress=lambda what, share: seen.append((what, share)))
    assert seen[-1] == ("building", 1.0)
    assert all(0 <= share <= 1 for _, share in seen)
    load_model(model_dir, Precision.INT8, progress=quiet)


def test_fields_say_where_they_come_from() -> None:
    with pytest.raises(ModelLoadError, match=r"here\.json: rope: theta should be a number, got x"):
        section = Fields("here.json", {"rope": {"theta": "x"}}).section("rope")
        assert section is not None
        section.number("theta")
