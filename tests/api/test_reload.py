"""The mode follows the configuration file while the server runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindserve.server import reload
from mindserve.settings.mindie import load
from mindserve.settings.values import ApiMode, Plane
from tests.api.running import chat, eventually, on_planes, running


def write(file: Path, mode: str) -> None:
    model = {"modelName": "scripted", "modelWeightPath": "x", "modelInstanceType": "StandardMock"}
    raw: dict[str, Any] = {
        "ServerConfig": {"httpsEnabled": False, "port": 1025, "metricsPort": 1025, "openAiSupport": mode},
        "BackendConfig": {"ModelDeployConfig": {"ModelConfig": [model]}, "ScheduleConfig": {}},
    }
    file.write_text(json.dumps(raw))


def test_the_mode_changes_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "INTERVAL_S", 0.05)
    file = tmp_path / "config.json"
    write(file, "vllm")
    settings = load(file)
    plane = Plane(port=0)
    with running(on_planes(settings, plane, plane, plane)) as server:
        assert server.post(chat()).json()["id"].startswith("endpoint_common_")
        write(file, "openai")
        eventually(lambda: server.state.mode is ApiMode.NATIVE)
        assert server.post(chat()).json()["id"].startswith("chatcmpl-")
        assert "message" in server.post(chat(temperature=5)).json()["error"]
        assert server.get("/nowhere").json()["error"]["code"] == "not_found"
        file.write_text("{ broken")
        file.unlink()
        write(file, "vllm")
        eventually(lambda: server.state.mode is ApiMode.VLLM)
        assert server.post(chat(temperature=5)).status_code == 200


def test_a_stream_keeps_the_mode_it_began_in(tmp_path: Path) -> None:
    with running() as server, server.hanging(headers={"req-id": "keeps"}) as response:
        parts = response.iter_raw()
        first = next(parts)
        server.in_loop(lambda: setattr(server.state, "mode", ApiMode.NATIVE))
        server.send("/v2/models/scripted/stopInfer", {"id": "keeps"})
        body = first + b"".join(parts)
        assert b'"batch_size"' in body
