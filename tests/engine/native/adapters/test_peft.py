"""Adapters as PEFT writes them: ranks, scales, and what is refused by the name of its field."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft_files import random_pair, write_adapter
from safetensors.numpy import save_file

from mindserve.engine.native.adapters.peft import read_adapter
from mindserve.errors import ModelLoadError

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"
A, B = random_pair(6, 8)


def test_the_scale_is_alpha_over_rank(tmp_path: Path) -> None:
    module = read_adapter(write_adapter(tmp_path, {Q: (A, B)}, lora_alpha=3)).modules[Q]
    assert np.array_equal(module.down, A)
    assert module.up == pytest.approx(B * 1.5)


def test_a_stabilised_scale_is_alpha_over_the_root_of_the_rank(tmp_path: Path) -> None:
    adapter = read_adapter(write_adapter(tmp_path, {Q: (A, B)}, lora_alpha=3, use_rslora=True))
    assert adapter.modules[Q].up == pytest.approx(B * 3 / math.sqrt(2))


def test_patterns_set_rank_and_alpha_of_their_modules(tmp_path: Path) -> None:
    wide = random_pair(4, 8, rank=5)
    patterns = {"rank_pattern": {"v_proj": 5}, "alpha_pattern": {r"layers\.[01]\.self_attn\.v_proj": 10, "proj": 1}}
    adapter = read_adapter(write_adapter(tmp_path, {Q: (A, B), V: wide}, **patterns))
    assert adapter.modules[Q].up == pytest.approx(B * 2)
    assert adapter.modules[V].up == pytest.approx(wide[1] * 2)
    assert adapter.rank == 5


def test_half_precision_and_the_adapters_name_in_tensors_are_fine(tmp_path: Path) -> None:
    write_adapter(tmp_path, {Q: (A, B)})
    tensors = {
        f"base_model.model.{Q}.lora_{side}.default.weight": m.astype(np.float16)
        for side, m in zip("AB", (A, B), strict=True)
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    module = read_adapter(tmp_path).modules[Q]
    assert module.down.dtype == np.float32
    assert module.up == pytest.approx(2 * B, abs=1e-2)


@pytest.mark.parametrize("targets", ["all-linear", r".*\.(q|v)_proj", [Q], ["q_proj"]])
def test_every_way_to_name_targets(tmp_path: Path, targets: Any) -> None:
    assert set(read_adapter(write_adapter(tmp_path, {Q: (A, B)}, target_modules=targets)).modules) == {Q}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("bias", "all"),
        ("use_dora", True),
        ("lora_bias", True),
        ("use_qalora", True),
        ("fan_in_fan_out", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1, 2]),
        ("layer_replication", [[0, 1]]),
        ("target_parameters", ["mlp.experts"]),
        ("alora_invocation_tokens", [1]),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "loftq"),
        ("r", 0),
        ("r", "2"),
        ("lora_alpha", "4"),
        ("use_rslora", 1),
        ("rank_pattern", {"q_proj": "2"}),
        ("rank_pattern", {"q_proj": 3}),
        ("rank_pattern", [2]),
        ("rank_pattern", {"(": 2}),
        ("target_modules", ["q_proj", "v_proj"]),
        ("target_modules", "(.*k_proj"),
        ("target_modules", ".*k_proj"),
        ("target_modules", [1]),
    ],
)
def test_what_is_not_supported_or_wrong_is_named(tmp_path: Path, key: str, value: Any) -> None:
    word = "expected rank 3" if value == {"q_proj": 3} else key
    with pytest.raises(ModelLoadError, match=word):
        read_adapter(write_adapter(tmp_path, {Q: (A, B)}, **{key: value}))


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.weight",
        f"base_model.model.{Q}.lora_magnitude_vector",
        f"{Q}.lora_A.weight",
    ],
)
def test_other_tensors_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path, {Q: (A, B)})
    save_file({name: A}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=name):
        read_adapter(tmp_path)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((A, B[:, :1]), "expected rank 2"),
        ((A[0], B), "expected rank 2"),
        ((np.where(A > 0, np.inf, A), B), "no numbers"),
        ((A.astype(np.int32), B), "type I32"),
        (random_pair(6, 8, rank=513), "more than 512"),
    ],
)
def test_matrices_that_make_no_sense_are_refused(tmp_path: Path, pair: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read_adapter(write_adapter(tmp_path, {Q: pair}, r=513 if len(pair[0]) == 513 else 2))


def test_half_a_module_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, {Q: (A, B)})
    save_file({f"base_model.model.{Q}.lora_A.weight": A}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match="has no lora_B"):
        read_adapter(tmp_path)


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="adapter_config"):
        read_adapter(tmp_path)
    write_adapter(tmp_path, {Q: (A, B)})
    (tmp_path / "adapter_model.safetensors").write_bytes(b"none")
    with pytest.raises(ModelLoadError, match="adapter_model"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="no adapter_model"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelLoadError, match="adapter_config"):
        read_adapter(tmp_path)
