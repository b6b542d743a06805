"""Gemma 3 in every form of its files; what of the family cannot be served is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import gguf_name, write_gguf
from numpy.typing import NDArray
from paged_driver import PagedDriver, driver, golden
from safetensors.numpy import load_file, save_file

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import read_config
from mindserve.engine.native.models.families.registry import describe, family_of, usual_keys
from mindserve.engine.native.models.gguf_metadata import ARCHITECTURES, hf_config
from mindserve.engine.native.models.spec import DecoderSpec
from mindserve.errors import ModelLoadError

REFERENCE = golden("gemma3")
CONFIG: dict[str, Any] = json.loads((REFERENCE.folder / "model" / "config.json").read_text())
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors() -> dict[str, NDArray[np.float32]]:
    read = load_file(REFERENCE.folder / "model" / "model.safetensors")
    return {name: tensor.astype(np.float32) for name, tensor in read.items()}


def write_model(directory: Path, config: dict[str, Any], prefix: str = "model.") -> Path:
    directory.mkdir()
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors().items()}
    save_file(renamed, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def largest_error(model: PagedDriver) -> float:
    expected = REFERENCE.array("last_logits.npy")
    rows = [model.step(ids, 0, [len(ids) - 1])[0] for ids in REFERENCE.prompts]
    return float(np.abs(np.stack(rows) - expected).max())


def spec_of(**changes: Any) -> DecoderSpec:
    fields = Fields("config.json", {key: value for key, value in (CONFIG | changes).items() if value is not None})
    family = family_of(fields)
    usual = usual_keys(fields, family)
    return describe(family, read_config(usual, Fields("", {})), usual)


def test_the_newer_configuration_says_the_same(tmp_path: Path) -> None:
    old = ("rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern")
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    newer = {key: value for key, value in CONFIG.items() if key not in old}
    newer |= {"rope_parameters": rope, "layer_types": kinds}
    assert largest_error(driver(write_model(tmp_path / "newer", newer))) < 2e-3


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_beside_a_vision_tower_is_the_same(tmp_path: Path, prefix: str) -> None:
    config = {"model_type": "gemma3", "vision_config": {"hidden_size": 8}, "text_config": CONFIG}
    assert largest_error(driver(write_model(tmp_path / "vision", config, prefix))) < 2e-3


@pytest.mark.parametrize("key", ["rope_local_base_freq", "rope_theta", "sliding_window_pattern", "sliding_window"])
def test_each_part_of_the_pattern_matters(tmp_path: Path, key: str) -> None:
    changed = CONFIG | {key: {"rope_local_base_freq": 20000.0, "rope_theta": 1000.0}.get(key, 4)}
    assert largest_error(driver(write_model(tmp_path / "changed", changed))) > 0.05


def test_a_gguf_file_is_the_same_model(tmp_path: Path) -> None:
    """Its norms hold what config.json's files hold less one; logits are never softcapped, so the reference is bent by
    hand. The window's base and the scale of the products come from the code."""
    cap, head_dim = CONFIG["final_logit_softcapping"], CONFIG["head_dim"]
    adjust = np.sqrt(head_dim / CONFIG["query_pre_attn_scalar"])
    written: dict[str, NDArray[np.float32]] = {}
    for name, tensor in tensors().items():
        whole = tensor + 1 if "norm" in name else tensor
        written[gguf_name(name, PARTS)] = whole * np.float32(adjust) if "q_norm" in name else whole
    metadata = {
        "block_count": 5,
        "context_length": 4096,
        "embedding_length": 48,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 12,
        "attention.sliding_window_pattern": 3,
        "rope.freq_base": 1000000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    model = driver(write_gguf(tmp_path / "gemma.gguf", "gemma3", metadata, written))
    for ids, expected in zip(REFERENCE.prompts, REFERENCE.array("last_logits.npy"), strict=True):
        logits = model.step(ids, 0, [len(ids) - 1])[0]
        assert np.abs(cap * np.tanh(logits / cap) - expected).max() < 2e-3


@pytest.mark.parametrize(("layers", "scale"), [(26, 16**-0.5), (62, 168**-0.5)])
def test_a_gguf_file_of_27b_has_a_scale_of_its_own(layers: int, scale: float) -> None:
    sizes = {"block_count": layers, "embedding_length": 64, "feed_forward_length": 64, "attention.head_count": 4}
    metadata = {f"gemma3.{key}": value for key, value in sizes.items()} | {"general.architecture": "gemma3"}
    fields = Fields("x.gguf", hf_config(metadata, ARCHITECTURES["gemma3"]) | {"vocab_size": 10, "head_dim": 16})
    spec = describe(family_of(fields), read_config(fields, Fields("", {})), fields)
    assert (spec.attention_scale, spec.norm_offset) == (pytest.approx(scale), 0.0)


def test_every_sixth_layer_sees_all_by_default() -> None:
    spec = spec_of(sliding_window_pattern=None, num_hidden_layers=13)
    assert spec.windows == (12,) * 5 + (None,) + (12,) * 5 + (None, 12)


def test_what_published_configurations_leave_out() -> None:
    spec = spec_of(tie_word_embeddings=None, hidden_activation=None, rope_theta=None, head_dim=None)
    assert spec.config.ties_embeddings
    assert (spec.activation, spec.config.rope_theta, spec.config.head_dim) == ("gelu_pytorch_tanh", 1e6, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "model_type gemma2 is not supported .*attn_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ({"hidden_activation": "silly"}, "hidden_activation should be one of"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern should be an integer of at least 1"),
        ({"layer_types": ["full_attention"]}, "layer_types should be a list of one kind for each of 5 layers"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_of(**changes)
