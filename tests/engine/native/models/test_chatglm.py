"""ChatGLM3 directories: layers against a reference in numpy, end tokens, and that none of their code is run."""

import json
from pathlib import Path
from typing import Any

import chatglm_reference as reference
import numpy as np
import pytest
from paged_driver import driver, quiet
from safetensors.numpy import save_file

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.config import ModelConfig, read_config
from mindserve.engine.native.models.families.registry import describe, family_of, usual_keys
from mindserve.engine.native.models.loader import load_model
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision

CONFIG: dict[str, Any] = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "auto_map": {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration",
    },
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_softmax_in_fp32": True,
    "eos_token_id": 2,
    "ffn_hidden_size": 80,
    "hidden_size": 64,
    "kv_channels": 16,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 3,
    "original_rope": True,
    "padded_vocab_size": 96,
    "post_layer_norm": True,
    "quantization_bit": 0,
    "rmsnorm": True,
    "rope_ratio": 1.0,
    "seq_length": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
CODE = "import pathlib\npathlib.Path(__file__).with_name('was_run').touch()\n"


def write_model(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """As published: configuration, weights, and the code that would load them elsewhere."""
    tensors = reference.random_model(config, seed=5)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("configuration", "modeling", "tokenization"):
        (directory / f"{name}_chatglm.py").write_text(CODE)
    return tensors


def config_of(**changes: Any) -> ModelConfig:
    fields = Fields("config.json", CONFIG | changes)
    family = family_of(fields)
    usual = usual_keys(fields, family)
    return describe(family, read_config(usual, Fields("", {})), usual).config


@pytest.mark.parametrize(
    "changes",
    [{}, {"multi_query_attention": False}, {"add_qkv_bias": False}, {"rope_ratio": 50.0, "kv_channels": 32}],
)
def test_the_layers_are_those_of_the_reference(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = CONFIG | changes
    tensors = write_model(tmp_path, config)
    model = driver(tmp_path)
    ids = np.random.default_rng(1).integers(0, 96, 70).tolist()
    expected = reference.logits(tensors, config, ids)
    assert np.abs(model.step(ids, 0, list(range(len(ids)))) - expected).max() < 2e-3
    prompt, past = ids[:40], len(ids[:40])
    model.step(prompt, 0, [0])
    decoded = np.concatenate([model.step([ids[at]], at, [0]) for at in range(past, past + 20)])
    assert np.abs(decoded - expected[past : past + 20]).max() < 2e-3


def test_none_of_its_code_is_run(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG)
    load_model(tmp_path, Precision.INT8, progress=quiet)
    assert not (tmp_path / "was_run").exists()


def test_answers_end_at_the_next_turn() -> None:
    assert config_of(padded_vocab_size=65024).eos_token_ids == {2, 64795, 64797}
    assert config_of().eos_token_ids == {2}


def test_a_context_may_be_as_long_as_the_configuration_says() -> None:
    assert config_of(seq_length=32768).max_position == 32768


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_bias_linear": True}, "add_bias_linear should be false"),
        ({"rmsnorm": False}, "rmsnorm should be true"),
        ({"post_layer_norm": False}, "post_layer_norm should be true"),
        ({"apply_residual_connection_post_layernorm": True}, "post_layernorm should be false"),
        ({"quantization_bit": 4}, "quantization_bit is not supported"),
        ({"ffn_hidden_size": None}, "ffn_hidden_size is missing"),
        ({"num_layers": "x"}, "num_layers should be an integer"),
    ],
)
def test_variants_that_cannot_be_served_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        config_of(**changes)
