"""Every conformance case of the request contract over HTTP, in both ways of `stream`."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.scripted import Answer
from mindserve.settings.mindie import from_json
from mindserve.settings.values import ApiMode, Plane, Settings
from tests.api.running import Running, events, on_planes, running
from tests.contract.cases import Case, Way, load_cases

MODEL, LORA = "some-model", "some-adapter"
PLACEHOLDERS = {
    "MODEL": MODEL,
    "MODEL_UPPER": MODEL.upper(),
    "LORA": LORA,
    "LOCAL_PNG": "/media/dot.png",
    "LOCAL_PNG_BASENAME": "dot.png",
    "LOCAL_SYMLINK_PNG": "/media/out.png",
    "LOCAL_INNER_SYMLINK_PNG": "/media/in.png",
    "LOCAL_PNG_41MB": "/media/large.png",
    "MEDIA_PORT": "8001",
    "MEDIA_DIR": "/media",
    **dict.fromkeys(("JPG_B64", "PNG_B64", "WAV_B64", "MP3_B64", "FLAC_B64"), "aGVsbG8="),
}
MEDIA = frozenset({"vision", "video", "audio", "media-server"})
WAITING = "waits for a server in this process whose model takes media"
NO_TOOLS_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SLOW = "slow engine: > 1 s in total, < tokenTimeout per token"
CASES = load_cases(PLACEHOLDERS)
"""The scripted model has one token per byte, so long prompts need more room than the assumed configuration has."""


def waits(case: Case) -> bool:
    """Whether the case needs a model that takes media."""
    return not case.needs.isdisjoint(MEDIA)


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


def parameters() -> Iterator[Any]:
    for case in CASES:
        marks = (pytest.mark.xfail(reason=WAITING, strict=False),) if waits(case) else ()
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", list(parameters()))
def test_case(servers: Servers, case: Case) -> None:
    server = servers.server_for(case)
    response = server.browser.request(case.method, server.url + case.path, content=case.body, headers=case.headers)
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


def test_only_media_cases_wait() -> None:
    waiting = {case.name for case in CASES if waits(case)}
    assert len(waiting) == 40
    assert all(name.startswith("mm-") for name in waiting)
