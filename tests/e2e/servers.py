"""A whole server on a free port, in a thread of its own, composed as the command line composes it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
import uvloop

from mindserve.cli.compose import Composition, compose
from mindserve.engine.scripted import Answer, Script
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import Lifecycle, bind
from mindserve.service import ChatService
from mindserve.settings.values import (
    ApiMode,
    EngineKind,
    EngineSettings,
    Limits,
    ModelSettings,
    Plane,
    SchedulerSettings,
    ServerSettings,
    Settings,
)

from .fold import Json, fold, parse_sse

MODEL = "tiny"
START_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server as its client sees it, and its insides for tests that look."""

    client: httpx.Client
    service: ChatService
    has_full_text: bool = False

    def post(self, body: Json, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/chat/completions", json={"model": MODEL, **body}, headers=named)

    def full(self, body: Json) -> Json:
        """The answer to a request that does not stream."""
        response = self.post({**body, "stream": False})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()

    def streamed(self, body: Json) -> Json:
        """What the same request's stream adds up to."""
        return fold(self.chunks(body), has_full_text=self.has_full_text)

    def chunks(self, body: Json) -> list[Json]:
        response = self.post({**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_sse(response.content)

    def metric(self, name: str) -> float:
        """A metric of the model, by its name on the metrics page."""
        lines = self.client.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name + "{")).split()[-1])


def settings(
    engine: EngineSettings,
    *,
    path: Path = Path("none"),
    limits: Limits | None = None,
    has_full_text: bool = False,
    api_mode: ApiMode = ApiMode.VLLM,
    scheduler: SchedulerSettings | None = None,
    **model: Any,
) -> Settings:
    """For a server on a free port of this machine; `model` are fields of ModelSettings."""
    plane = Plane(port=0)
    server = ServerSettings(
        service=plane,
        management=plane,
        metrics=plane,
        limits=limits or Limits(),
        full_text=has_full_text,
        api_mode=api_mode,
        tokenizer_threads=2,
    )
    return Settings(
        model=ModelSettings(**{"name": MODEL, "path": path} | model),
        server=server,
        scheduler=scheduler or SchedulerSettings(),
        engine=engine,
    )


@contextmanager
def scripted(*answers: Answer, step_interval_s: float = 0.0, **values: Any) -> Iterator[Server]:
    """A server that plays a script."""
    script = Script(answers=answers or (Answer(),), step_interval_s=step_interval_s)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        with running(settings(EngineSettings(kind=EngineKind.SCRIPTED, script=file), **values)) as up:
            yield up


@contextmanager
def running(config: Settings) -> Iterator[Server]:
    """A server with this configuration, stopped at the end."""
    house = _House(config)
    thread = threading.Thread(target=lambda: uvloop.run(house.live()))
    thread.start()
    try:
        assert house.is_up.wait(START_TIMEOUT_S)
        if house.failure is not None:
            raise house.failure
        with httpx.Client(base_url=house.url, timeout=60, trust_env=False) as client:
            yield Server(client=client, service=house.service, has_full_text=config.server.full_text)
    finally:
        house.stop()
        thread.join(START_TIMEOUT_S)


class _House:
    """Owns the server's event loop; `is_up` is set when the server listens or could not start."""

    service: ChatService
    url: str

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lifecycle: Lifecycle | None = None
        self.is_up = threading.Event()
        self.failure: BaseException | None = None

    async def live(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            composition = await compose(self._config, report=lambda what, share: None)
            self._lifecycle = await self._opened(composition)
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self.is_up.set()
        try:
            await self._lifecycle.run()
        finally:
            await composition.close()

    async def _opened(self, composition: Composition) -> Lifecycle:
        lifecycle = Lifecycle(composition.state, bind(self._config.server))
        await lifecycle.start()
        self.service = composition.state.service
        self.url = lifecycle.urls[PlaneKind.SERVICE]
        return lifecycle

    def stop(self) -> None:
        if self._loop is not None and self._lifecycle is not None:
            self._loop.call_soon_threadsafe(self._lifecycle.request_stop, 0.0)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds, as long as a busy machine may need."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)
