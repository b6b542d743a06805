"""Adapters over HTTP with the embedded engine: listed, chosen by name, loaded and unloaded at run time."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindserve.settings.values import AdapterSettings, EngineSettings, Precision

from .bodies import Json
from .servers import MODEL, Server, eventually, running, settings

GOLDENS = Path(__file__).parents[1] / "data" / "goldens" / "llama"
ADAPTERS = ("lora-r4", "lora-r8")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Float32, with one adapter from the start and one that is loaded later."""
    prepared = tmp_path_factory.mktemp("prepared")
    engine = EngineSettings(precision=Precision.F32, cache_bytes=1 << 23, prepared_dir=prepared, threads=1)
    adapters = (AdapterSettings(name="lora-r4", path=GOLDENS / "lora-r4"),)
    with running(settings(engine, path=GOLDENS / "model", adapters=adapters, max_seq_len=512)) as up:
        assert up.client.post(LOAD, json=_loading("lora-r8")).status_code == 200
        yield up


def _loading(name: str, folder: Path | None = None) -> Json:
    return {"lora_name": name, "lora_path": str(folder or GOLDENS / name)}


def _ask(model: str, text: str = "Tell me a long story about it.", **fields: object) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 40, **fields}


def _text(answer: Json) -> str:
    return answer["choices"][0]["message"]["content"]


def test_adapters_are_listed_with_their_parent(server: Server) -> None:
    listed = server.client.get("/v1/models").json()["data"]
    assert [(entry["id"], entry["parent"]) for entry in listed] == [(MODEL, None)] + [(a, MODEL) for a in ADAPTERS]


def test_a_batch_of_base_and_adapters_answers_as_each_alone(server: Server) -> None:
    models = (MODEL, *ADAPTERS) * 3
    alone = {model: server.full(_ask(model)) for model in models}
    assert len({_text(answer) for answer in alone.values()}) == 3
    with ThreadPoolExecutor(len(models)) as threads:
        together = list(threads.map(lambda model: server.streamed(_ask(model)), models))
    for model, answer in zip(models, together, strict=True):
        assert answer["model"] == model
        assert _text(answer) == _text(alone[model])


def test_cached_prompts_are_kept_apart(server: Server) -> None:
    text = "A prompt that fills several blocks of the cache, so that another request may find it. " * 4
    for model in (MODEL, *ADAPTERS):
        first, second = (server.full(_ask(model, text, max_tokens=2)) for _ in range(2))
        details = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)]
        assert details[0] == 0
        assert details[1] > 0


def test_running_requests_outlive_their_adapter(server: Server) -> None:
    assert server.client.post(LOAD, json=_loading("gone", GOLDENS / "lora-r4")).status_code == 200
    expected = _text(server.full(_ask("lora-r4", max_tokens=300)))
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(server.full, _ask("gone", max_tokens=300)) for _ in range(3)]
        eventually(lambda: server.service.engine.stats().running == 3)
        assert server.client.post(UNLOAD, json={"lora_name": "gone"}).status_code == 200
        refused = server.post(_ask("gone"))
        assert [_text(one.result()) for one in running] == [expected] * 3
    assert refused.status_code == 422
    assert server.client.post(UNLOAD, json={"lora_name": "gone"}).status_code == 422


def test_another_adapter_under_the_same_name_finds_no_old_blocks(server: Server) -> None:
    for adapter in ADAPTERS:
        assert server.client.post(LOAD, json=_loading("again", GOLDENS / adapter)).status_code == 200
        answer = server.full(_ask("again", "What the cache holds belongs to one adapter. " * 6))
        assert _text(answer) == _text(server.full(_ask(adapter, "What the cache holds belongs to one adapter. " * 6)))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert server.client.post(UNLOAD, json={"lora_name": "again"}).status_code == 200


def test_what_is_no_adapter_is_refused_and_changes_nothing(server: Server, tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "lora-r4", tmp_path / "cut")
    weights = tmp_path / "cut" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for folder in (tmp_path, tmp_path / "cut"):
        response = server.client.post(LOAD, json=_loading("bad", folder))
        assert response.status_code == 422
        assert "adapter" in response.json()["error"]
    assert server.client.post(LOAD, json=_loading("lora-r4")).status_code == 422
    assert server.post(_ask("bad")).status_code == 422
    assert server.post(_ask("lora-r4", max_tokens=2)).status_code == 200
