"""The embedded engine dies under a running server, and lives again."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.native import load
from mindserve.engine.native.runner import NativeRunner
from mindserve.engine.native.scheduler import Scheduler
from mindserve.errors import EngineFailure, ModelLoadError

from .conftest import native
from .fold import Json
from .servers import MODEL, Server, eventually


class Fate:
    """Breaks what it is given while it is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._is_set = threading.Event()
        self.hits = 0

    def strike(self) -> None:
        self._is_set.set()

    def relent(self) -> None:
        self._is_set.clear()

    def breaks(self, owner: Any, name: str, failure: Exception) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def broken(*args: Any, **options: Any) -> Any:
            if self._is_set.is_set():
                self.hits += 1
                raise failure
            return whole(*args, **options)

        self._patch.setattr(owner, name, broken)


def _said(text: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **fields}


def _status(up: Server, path: str) -> int:
    return up.client.get(path).status_code


@pytest.mark.parametrize(
    ("owner", "name", "failure", "requests"),
    [
        pytest.param(Scheduler, "schedule", ZeroDivisionError("the thread dies"), 1, id="dead-thread"),
        pytest.param(NativeRunner, "step", EngineFailure("the step fails"), 3, id="failed-steps"),
    ],
)
def test_a_dead_engine_is_replaced(
    owner: type, name: str, failure: Exception, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death, famine = Fate(monkeypatch), Fate(monkeypatch)
    death.breaks(owner, name, failure)
    famine.breaks(load, "load_runner", ModelLoadError("no memory"))
    with native(tmp_path) as up:
        before = up.full(_said("Hello"))
        assert _status(up, "/v2/health/ready") == 200
        counted = up.metric("prompt_tokens_total")

        famine.strike()
        death.strike()
        for _ in range(requests):
            response = up.post(_said("Hello"))
            assert response.status_code == 500
            assert response.json()["error_type"] == "Incomplete Generation"
        eventually(lambda: _status(up, "/v2/health/ready") == 500)
        assert _status(up, "/health") == 500
        response = up.post(_said("Hello"))
        assert response.status_code == 503
        assert response.json() == {
            "error": "The engine has failed and is being started again.",
            "error_type": "Service Unavailable",
        }
        eventually(lambda: famine.hits > 0)
        assert _status(up, "/v2/health/ready") == 500
        assert up.metric("engine_restarts_total") == 0

        death.relent()
        famine.relent()
        eventually(lambda: _status(up, "/v2/health/ready") == 200)
        after = up.full(_said("Hello"))
        assert after["choices"] == before["choices"]
        assert up.metric("engine_restarts_total") == 1
        assert up.metric("prompt_tokens_total") > counted


def test_running_streams_hear_of_the_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    death = Fate(monkeypatch)
    death.breaks(Scheduler, "schedule", ZeroDivisionError("the thread dies"))
    body = {"model": MODEL, **_said("Hello", stream=True, ignore_eos=True, max_tokens=400)}
    with native(tmp_path) as up:
        with up.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            assert '"delta"' in next(lines)
            death.strike()
            events = [line.removeprefix("data: ") for line in lines if line]
        assert json.loads(events[-1]) == {
            "error": "The engine stopped working.",
            "error_type": "Incomplete Generation",
        }
        assert all("error" not in json.loads(event) for event in events[:-1])
        death.relent()
        eventually(lambda: up.post(_said("Hello")).status_code == 200)
        assert up.metric("engine_restarts_total") == 1
