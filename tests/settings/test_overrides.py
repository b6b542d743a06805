"""Command-line options over the configuration, model-only settings, per-type settings, and the masked display."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mindserve.settings.mindie import from_json, load
from mindserve.settings.models import for_model_type
from mindserve.settings.overrides import Overrides, apply, for_model, name_of
from mindserve.settings.show import as_plain
from mindserve.settings.values import EngineKind, Precision

FILE = Path(__file__).parent / "data" / "config.json"


def test_a_model_alone_makes_a_plain_server() -> None:
    settings = for_model(Path("/models/SmolLM2-135M.gguf"))
    assert settings.model.name == "SmolLM2-135M"
    assert settings.server.service == settings.server.management == settings.server.metrics
    assert settings.server.service.port == 1025
    assert settings.server.service.tls is None
    assert settings.model.max_input_len == settings.model.max_seq_len - 1
    assert settings.scheduler.max_iter_times == settings.model.max_seq_len


@pytest.mark.parametrize(
    ("path", "name"),
    [("/m/qwen 2", "qwen-2"), ("/m/a.b.gguf", "a.b"), ("/", "model"), ("/m/---", "model"), ("/m/v1.5", "v1.5")],
)
def test_a_path_becomes_a_usable_name(path: str, name: str) -> None:
    assert name_of(Path(path)) == name


def test_options_win_and_absent_ones_change_nothing() -> None:
    settings = load(FILE)
    assert apply(settings, Overrides()) == settings
    overrides = Overrides(
        host="0.0.0.0",
        port=9000,
        model_name="m",
        precision=Precision.INT8,
        threads=3,
        cache_gb=0.25,
        max_seq_len=100,
        max_draft_tokens=6,
        engine=EngineKind.SCRIPTED,
        instances=3,
        log_level="debug",
        api_key="k",
    )
    changed = apply(settings, overrides)
    assert (changed.server.service.host, changed.server.service.port) == ("0.0.0.0", 9000)
    assert changed.server.service.tls == settings.server.service.tls
    assert changed.server.management == settings.server.management
    assert (changed.model.name, changed.model.max_seq_len, changed.model.max_input_len) == ("m", 100, 99)
    assert (changed.scheduler.max_iter_times, changed.scheduler.max_ngram_draft) == (100, 6)
    assert (changed.engine.precision, changed.engine.threads) == (Precision.INT8, 3)
    assert changed.engine.cache_bytes == 1024**3 // 4
    assert (changed.engine.kind, changed.engine.instances) == (EngineKind.SCRIPTED, 3)
    assert (changed.log_level, changed.server.api_key) == ("debug", "k")


def test_planes_that_shared_an_address_move_together() -> None:
    server = apply(for_model(Path("/m")), Overrides(port=0, host="127.0.0.3")).server
    assert server.service == server.management == server.metrics
    assert (server.service.host, server.service.port) == ("127.0.0.3", 0)


def test_settings_of_the_loaded_model_type() -> None:
    raw = json.loads(FILE.read_text())
    entry = {
        "enable_reasoning": True,
        "chat_template": "t.jinja",
        "early_stopping_text": "enough",
        "tool_call_options": {"tool_call_parser": "hermes"},
        "some_npu_switch": 1,
    }
    raw["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["models"] = {"qwen3": entry}
    settings = from_json(raw, home=Path("/home"))
    model = for_model_type(settings, "qwen3").model
    assert model.enable_reasoning
    assert model.chat_template == Path("/home/t.jinja")
    assert model.early_stopping_text == "enough"
    assert model.tool_call_parser == "hermes"
    assert for_model_type(settings, "llama") is settings


def test_the_display_is_json_and_masks_secrets() -> None:
    settings = load(FILE)
    engine = replace(settings.engine, vllm={"hf_token": "hunter3", "enforce_eager": True})
    settings = replace(settings, server=replace(settings.server, api_key="hunter2"), engine=engine)
    shown = json.dumps(as_plain(settings))
    assert "hunter" not in shown
    assert json.loads(shown)["server"]["api_key"] == "***"
    assert json.loads(shown)["engine"]["vllm"] == {"hf_token": "***", "enforce_eager": True}
    assert json.loads(shown)["model"]["name"] == "llama_65b"
