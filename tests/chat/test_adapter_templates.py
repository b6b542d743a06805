"""Chat templates that adapters bring."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindserve.contract.request import ChatRequest
from mindserve.errors import InvalidRequest, ModelLoadError
from mindserve.settings.values import AdapterSettings

from .requests import builder, request


def named(model: str) -> ChatRequest:
    return replace(request("Hi"), model=model)


def test_an_adapter_with_a_template_has_its_requests_rendered_by_it(tmp_path: Path) -> None:
    for name, content in (("poet", {"chat_template.jinja": "poet"}), ("plain", {})):
        (tmp_path / name).mkdir()
        for file, text in content.items():
            (tmp_path / name / file).write_text(text)
    at_start = builder("model", adapters=(AdapterSettings(name="poet", path=tmp_path / "poet"),))
    later = builder("model")
    later.add_adapter("poet", tmp_path / "poet")
    later.add_adapter("plain", tmp_path / "plain")
    for prompts in (at_start, later):
        assert prompts.build(named("poet")).text == "poet"
        assert prompts.build(named("plain")).text == "model"
        assert prompts.build(request("Hi")).text == "model"
    later.remove_adapter("poet")
    assert later.build(named("poet")).text == "model"


def test_an_adapters_broken_template_fails_its_requests_only(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{% if"}')
    prompts = builder("model")
    prompts.add_adapter("broken", tmp_path)
    with pytest.raises(InvalidRequest):
        prompts.build(named("broken"))
    assert prompts.build(request("Hi")).text == "model"


def test_an_adapters_unreadable_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match="chat template"):
        builder("model").add_adapter("broken", tmp_path)
