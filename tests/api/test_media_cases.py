"""The conformance cases that need a model which takes media, on small models that really do."""

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mindserve.settings.values import CachePrecision, EngineSettings, Precision
from tests.api.examples import EXAMPLES, asked, newest_answer, shape
from tests.api.test_cases import MEDIA, MODEL, check_answer
from tests.contract.cases import Case, load_cases
from tests.e2e.servers import Server, running, settings
from tests.media.placeholders import media_placeholders
from tests.media.samples import image_bytes, picture

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
NAMES = sorted({case.name for case in load_cases({}) if not case.needs.isdisjoint(MEDIA)})


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def media_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers look for local files."""
    folder = tmp_path_factory.mktemp("media")
    directory = folder / "multimodal_inputs"
    directory.mkdir()
    for place in (folder / "outside.png", directory / "demo.png", directory / "large.png"):
        place.write_bytes(image_bytes(picture()))
    (directory / "out.png").symlink_to(folder / "outside.png")
    (directory / "in.png").symlink_to("demo.png")
    with (directory / "large.png").open("r+b") as file:
        file.truncate(41 * 1024 * 1024)
    return directory


@pytest.fixture(scope="module")
def media_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a web server with one picture."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "x.png").write_bytes(image_bytes(picture()))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def placeholders(media_dir: Path, media_port: int) -> dict[str, str]:
    return {
        "MODEL": MODEL,
        **media_placeholders(media_dir, port=media_port),
    }


class Servers:
    """One server for each golden model, started when the first case asks for it."""

    def __init__(self, stack: contextlib.ExitStack, *, media_dir: Path, prepared_dir: Path) -> None:
        self._stack = stack
        self._media_dir = media_dir
        self._engine = EngineSettings(
            precision=Precision.F32,
            cache_precision=CachePrecision.F32,
            prepared_dir=prepared_dir,
            cache_bytes=64 * 1024 * 1024,
        )
        self._servers: dict[str, Server] = {}

    def server_for(self, case: Case) -> Server:
        return self.server_of("qwen2-audio" if "audio" in case.needs else "qwen2-vl")

    def server_of(self, model: str) -> Server:
        if model not in self._servers:
            path = GOLDENS / model / "model"
            config = settings(self._engine, path=path, name=MODEL, media_dir=self._media_dir)
            self._servers[model] = self._stack.enter_context(running(config))
        return self._servers[model]


@pytest.fixture(scope="module")
def servers(media_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack, media_dir=media_dir, prepared_dir=tmp_path_factory.mktemp("prepared"))


@pytest.mark.parametrize("name", NAMES)
def test_case(servers: Servers, placeholders: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in load_cases(placeholders) if case.name == name]
    assert cases
    for case in cases:
        monkeypatch.setenv("ALLOWED_MEDIA_DOMAINS_ENV", case.env.get("ALLOWED_MEDIA_DOMAINS_ENV", ""))
        client = servers.server_for(case).client
        check_answer(case, client.request(case.method, case.path, content=case.body, headers=case.headers))


@pytest.mark.parametrize(
    "name", ["image path", "image path in an object", "image file address", "image data address", "input audio"]
)
def test_a_media_example_of_the_contract_is_answered(servers: Servers, placeholders: dict[str, str], name: str) -> None:
    body = json.dumps(asked(name, model=MODEL))
    for written, given in (("{image_base64}", "JPG_B64"), ("{audio_base64_data}", "WAV_B64")):
        body = body.replace(written, placeholders[given])
    server = servers.server_of("qwen2-audio" if "audio" in name else "qwen2-vl")
    response = server.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 200, response.text
    answer, example = response.json(), newest_answer(EXAMPLES["answers"]["second turn"])
    assert answer["usage"]["prompt_tokens"] > 0
    assert [key for key, _ in shape(answer)] == [key for key, _ in shape(example)]
    assert shape(answer["choices"]) == shape(example["choices"])


def test_there_are_cases() -> None:
    assert len(NAMES) == 40
