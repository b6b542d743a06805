"""Phi-3 GGUF files: fused projections and rotary factors as tensors."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_files import gguf_name, write_gguf
from paged_driver import driver, golden
from safetensors.numpy import load_file

REFERENCE = golden("phi3")
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
METADATA = {
    "block_count": 2,
    "context_length": 192,
    "embedding_length": 48,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 12,
    "rope.freq_base": 10000.0,
    "rope.scaling.original_context_length": 48,
    "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(4) / np.log(48))),
}


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = REFERENCE.folder / "model"
    tensors = {gguf_name(n, PARTS): t.astype(np.float32) for n, t in load_file(model / "model.safetensors").items()}
    scaling = json.loads((model / "config.json").read_text())["rope_scaling"]
    for kind in ("short", "long"):
        tensors[f"rope_factors_{kind}.weight"] = np.array(scaling[f"{kind}_factor"], np.float32)
    return write_gguf(tmp_path_factory.mktemp("phi3") / "phi3.gguf", "phi3", METADATA, tensors)


@pytest.mark.parametrize(
    ("max_context", "prompts", "rows"),
    [(None, "prompts", "last_logits.npy"), (48, "short_prompts", "short_last_logits.npy")],
)
def test_a_gguf_file_is_the_same_model(gguf_file: Path, max_context: int | None, prompts: str, rows: str) -> None:
    model = driver(gguf_file, max_context=max_context)
    for prompt, expected in zip(REFERENCE.facts[prompts], REFERENCE.array(rows), strict=True):
        assert np.abs(model.step(prompt["ids"], 0, [prompt["len"] - 1])[0] - expected).max() < 2e-3
