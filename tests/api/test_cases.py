"""Every conformance case of the request contract over HTTP, in both ways of `stream`.

Those that need a model which takes media are in `test_media_cases`.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from mindserve.engine.scripted import Answer
from mindserve.settings.mindie import from_json
from mindserve.settings.values import ApiMode, Plane, Settings
from tests.api.running import Running, events, on_planes, running
from tests.contract.cases import Case, Way, load_cases

MODEL, LORA = "some-model", "some-adapter"
MEDIA = frozenset({"vision", "video", "audio", "media-server"})
NO_TOOLS_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SLOW = "slow engine: > 1 s in total, < tokenTimeout per token"
PLACEHOLDERS = {
    "MODEL": MODEL,
    "MODEL_UPPER": MODEL.upper(),
    "LORA": LORA,
    "JPG_B64": "aGVsbG8=",  # a text-only model refuses it unseen
}
CASES = [case for case in load_cases(PLACEHOLDERS) if case.needs.isdisjoint(MEDIA)]


def settings_for(case: Case, folder: Path) -> Settings:
    """The case's configuration on a scripted model."""
    entry: dict[str, Any] = {}
    if "template-without-tools" in case.needs:
        (folder / "template.jinja").write_text(NO_TOOLS_TEMPLATE)
        entry = {"scripted": {"chat_template": "template.jinja"}}
    model = {
        "modelName": MODEL,
        "modelWeightPath": "weights",
        "modelInstanceType": "StandardMock",
        "models": entry,
    }
    base = {
        "ServerConfig": {"httpsEnabled": False},
        "BackendConfig": {
            "ModelDeployConfig": {"ModelConfig": [model], "LoraModules": [{"name": LORA, "path": "adapter"}]},
            "ScheduleConfig": {},
        },
    }
    plane = Plane(port=0)
    return on_planes(from_json(merged(base, case.config), home=folder), plane, plane, plane)


def merged(base: Any, over: Any) -> Any:
    """Objects key by key, lists of objects index by index."""
    if isinstance(base, dict) and isinstance(over, Mapping):
        return base | {key: merged(base.get(key), value) for key, value in over.items()}
    if isinstance(base, list) and isinstance(over, list):
        return [merged(mine, theirs) for mine, theirs in zip(base, over, strict=True)]
    return over


class Servers:
    """One server for each configuration, started when the first case asks for it."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._servers: dict[str, Running] = {}

    def server_for(self, case: Case) -> Running:
        special = sorted(case.needs & {"template-without-tools", SLOW})
        key = json.dumps([case.config, special], sort_keys=True)
        if key not in self._servers:
            answer = Answer(first_delay_s=3.0) if special == [SLOW] else Answer()
            folder = self._folder / str(len(self._servers))
            folder.mkdir(exist_ok=True)
            started = running(settings_for(case, folder), answers=(answer,))
            self._servers[key] = self._stack.enter_context(started)
        return self._servers[key]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack, tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_case(servers: Servers, case: Case) -> None:
    server = servers.server_for(case)
    url = server.url + case.path
    check_answer(case, server.browser.request(case.method, url, content=case.body, headers=case.headers))


def check_answer(case: Case, response: httpx.Response) -> None:
    """Status, error, and the right kind of answer."""
    assert response.status_code == case.status, response.text[:300]
    if case.status != 200:
        check_refusal(case, response.json())
    elif response.headers["content-type"].startswith("text/event-stream"):
        chunks = events(response.content)
        assert chunks[-1] == "[DONE]"
        assert all("error" not in chunk for chunk in chunks)
    else:
        assert case.way is not Way.STREAM
        assert response.json()["object"] == "chat.completion"


def check_refusal(case: Case, body: dict[str, Any]) -> None:
    """The error body in the mode's shape, with the expected words."""
    if case.mode is ApiMode.NATIVE:
        message = body["error"]["message"]
    else:
        assert set(body) == {"error", "error_type"}
        message = body["error"]
        assert case.error_type in (None, body["error_type"])
    assert (case.error_contains or "") in message
    assert len(message) < 1000


def test_no_case_is_lost() -> None:
    names = {case.name for case in load_cases(PLACEHOLDERS)}
    media = names - {case.name for case in CASES}
    assert len(names) > 400
    assert all(name.startswith("mm-") for name in media)
