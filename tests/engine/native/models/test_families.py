"""Options of families that no reference model uses: one of them rewritten must compute the same, or differ."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paged_driver import driver, golden
from safetensors.numpy import load_file, save_file

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import RopeKind, read_config
from mindserve.engine.native.models.families.registry import describe, family_of
from mindserve.engine.native.models.loader import open_checkpoint
from mindserve.engine.native.models.spec import DecoderSpec
from mindserve.errors import ModelLoadError

Tensors = dict[str, NDArray[Any]]


def write_model(directory: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def check_last_logits(path: Path, family: str) -> None:
    reference = golden(family)
    model = driver(path)
    for ids, expected in zip(reference.prompts, reference.array("last_logits.npy"), strict=True):
        assert np.abs(model.step(ids, 0, [len(ids) - 1])[0] - expected).max() < 2e-3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ()),
        ({"use_sliding_window": True, "sliding_window": None}, ()),
        ({"use_sliding_window": True, "max_window_layers": 1}, (None, 32768)),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}, (32768, None)),
    ],
)
def test_qwen_windows_are_those_of_the_configuration(changes: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    source = golden("qwen2").folder / "model" / "config.json"
    fields = Fields(str(source), json.loads(source.read_text()) | changes)
    config = read_config(fields, Fields("", {}))
    assert describe(family_of(fields), config, fields).windows == expected


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_biases_on_every_projection_are_added(tmp_path: Path, family: str) -> None:
    """A zero bias changes nothing, a large one much: both tell that it is read."""
    reference = golden(family)
    source = reference.folder / "model"
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"attention_bias": True}
    weights = [name for name in tensors if ".self_attn." in name and name.endswith("_proj.weight")]
    zeros = {name.replace(".weight", ".bias"): np.zeros(tensors[name].shape[0], np.float32) for name in weights}
    path = write_model(tmp_path / "zero", {**tensors, **zeros}, config)
    check_last_logits(path, family)
    for name, zero in zeros.items():
        biased = {**tensors, **zeros, name: zero + 0.5}
        if "k_proj" in name or ".layers.0." not in name:
            continue
        model = driver(write_model(tmp_path / name, biased, config))
        ids = reference.prompts[0]
        assert np.abs(model.step(ids, 0, [len(ids) - 1])[0] - reference.array("last_logits.npy")[0]).max() > 0.05


def test_the_attention_factor_scales_queries_and_keys(tmp_path: Path) -> None:
    """Scaling cos and sin by a is scaling q and k by a: rows of their matrices."""
    source = golden("llama").folder / "model"
    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(source / "model.safetensors").items()}
    config = json.loads((source / "config.json").read_text())
    rope = {"rope_type": "yarn", "factor": 1.0, "attention_factor": 1.3, "original_max_position_embeddings": 4096}
    stretched = driver(write_model(tmp_path / "yarn", tensors, config | {"rope_scaling": rope}))
    scaled = {n: t * 1.3 if "q_proj" in n or "k_proj" in n else t for n, t in tensors.items()}
    plain = driver(write_model(tmp_path / "plain", scaled, config))
    ids = golden("llama").prompts[0]
    logits = stretched.step(ids, 0, [len(ids) - 1])
    assert np.abs(logits - plain.step(ids, 0, [len(ids) - 1])).max() < 1e-4
    assert np.abs(logits[0] - golden("llama").array("last_logits.npy")[0]).max() > 0.01


def test_experts_may_come_in_one_stacked_tensor_or_one_by_one() -> None:
    """Both layouts meet the reference numbers (`test_goldens`); this is that the two files do differ in it."""
    folder = golden("qwen3-moe").folder
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in open_checkpoint(folder / "model")
    assert "model.layers.0.mlp.experts.gate_proj.weight" in open_checkpoint(folder / "qwen3-moe.q8_0.gguf")


def test_some_layers_of_a_mixture_may_be_dense(tmp_path: Path) -> None:
    """`mlp_only_layers`: with a dense MLP of zeros in one layer the answer changes, and without one nothing loads."""
    source = golden("qwen3-moe").folder / "model"
    config = json.loads((source / "config.json").read_text()) | {"mlp_only_layers": [1]}
    tensors = load_file(source / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"tensor model\.layers\.1\.mlp\.gate_proj\.weight is missing"):
        driver(write_model(tmp_path / "incomplete", tensors, config))
    hidden, size = config["hidden_size"], config["intermediate_size"]
    for name, shape in {"gate": (size, hidden), "up": (size, hidden), "down": (hidden, size)}.items():
        tensors[f"model.layers.1.mlp.{name}_proj.weight"] = np.zeros(shape, np.float32)
    model = driver(write_model(tmp_path / "mixed", tensors, config))
    reference = golden("qwen3-moe")
    ids = reference.prompts[0]
    assert np.abs(model.step(ids, 0, [len(ids) - 1])[0] - reference.array("last_logits.npy")[0]).max() > 0.01


DISTILLED_QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 131072,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DISTILLED_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def spec_of(values: dict[str, Any]) -> DecoderSpec:
    fields = Fields("config.json", values)
    return describe(family_of(fields), read_config(fields, Fields("", {})), fields)


def test_models_distilled_from_deepseek_are_qwen_and_llama() -> None:
    qwen, llama = spec_of(DISTILLED_QWEN), spec_of(DISTILLED_LLAMA)
    assert (qwen.qkv_bias, qwen.windows, qwen.config.rope.kind) == (True, (), RopeKind.DEFAULT)
    assert (qwen.config.max_position, qwen.config.eos_token_ids) == (131072, {151643})
    assert (llama.qkv_bias, llama.windows, llama.config.rope.kind) == (False, (), RopeKind.LLAMA3)
    assert (llama.config.max_position, llama.config.eos_token_ids) == (131072, {128001})
