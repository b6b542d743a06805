"""A real server in this process: its own thread and event loop, real sockets, the scripted engine."""

import asyncio
import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
import uvloop

from mindserve.cli.compose import compose
from mindserve.engine.scripted import Answer, Script, ScriptedEngine
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import Lifecycle, bind
from mindserve.server.protocol import ConnectionLimits
from mindserve.server.state import ServerState
from mindserve.settings.overrides import Overrides, apply, for_model
from mindserve.settings.values import EngineKind, Limits, Plane, Settings

T = TypeVar("T")
MODEL = "scripted"
PLAIN: dict[str, Any] = {
    "timeout": 30,
    "trust_env": False,
    "verify": False,
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
}
"""Reading the system's certificates takes longer than a request."""
PATH = "/v1/chat/completions"
HANG = Answer(match="hang", hang_after=2)
"""An answer that stops after two tokens until its request is cancelled."""
SLOW = Answer(match="slow", text="slow", first_delay_s=0.4)
FAIL = Answer(match="fail", fail_after=2)
ANSWERS = (HANG, SLOW, FAIL, Answer(match="long", text="word " * 400), Answer())


def settings_for(**limits: Any) -> Settings:
    """A scripted server on a free port; `limits` are fields of Limits."""
    settings = apply(for_model(Path(MODEL)), Overrides(port=0, engine=EngineKind.SCRIPTED))
    return replace(settings, server=replace(settings.server, limits=replace(Limits(), **limits)))


def with_server(settings: Settings, **fields: Any) -> Settings:
    """`settings` with fields of ServerSettings replaced."""
    return replace(settings, server=replace(settings.server, **fields))


def on_planes(settings: Settings, service: Plane, management: Plane, metrics: Plane) -> Settings:
    return with_server(settings, service=service, management=management, metrics=metrics)


def chat(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    """A request body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def events(body: str | bytes) -> list[Any]:
    """The JSON values of an SSE body, `[DONE]` as a string."""
    text = body.decode() if isinstance(body, bytes) else body
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def content(events: list[Any]) -> str:
    """What the chunks of a stream say together."""
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events if event != "[DONE]")


@dataclass(slots=True, kw_only=True)
class Running:
    """A server under test."""

    urls: Mapping[PlaneKind, str]
    state: ServerState
    engine: ScriptedEngine
    lifecycle: Lifecycle
    loop: asyncio.AbstractEventLoop
    browser: httpx.Client = field(default_factory=lambda: httpx.Client(**PLAIN))
    """Shared by simple requests, also from several threads."""
    stopped: Future[None] = field(default_factory=Future[None])

    @property
    def url(self) -> str:
        return self.urls[PlaneKind.SERVICE]

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **PLAIN, **options)

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """One chat request; `body` is JSON data or bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.browser.post(self.url + PATH, content=raw, **options)

    def get(self, path: str, plane: PlaneKind = PlaneKind.SERVICE) -> httpx.Response:
        return self.browser.get(self.urls[plane] + path)

    def send(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.browser.post(self.url + path, json=body, **options)

    @contextlib.contextmanager
    def hanging(self, **options: Any) -> Iterator[httpx.Response]:
        """A stream that has begun and goes on until the block ends."""
        with (
            self.client() as client,
            client.stream("POST", PATH, json=chat("hang", stream=True), **options) as response,
        ):
            assert response.status_code == 200
            yield response

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def in_loop(self, work: Callable[[], T]) -> T:
        """The result of `work`, done on the server's event loop."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def is_idle(self) -> bool:
        """No request is known to the service and no sequence to the engine."""
        admission = self.state.service.admission
        return self.in_loop(lambda: admission.running + admission.waiting + self.engine.stats().running) == 0

    def metric(self, name: str, **labels: str) -> float:
        """Current value of a metric."""
        value = self.state.metrics.registry.get_sample_value(name, {"model_name": MODEL, **labels})
        assert value is not None, name
        return value


def eventually(is_true: Callable[[], bool], *, within_s: float = 10) -> None:
    """Wait for something that another thread will bring about."""
    end_s = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.01)


@contextlib.contextmanager
def running(
    settings: Settings | None = None,
    *,
    answers: tuple[Answer, ...] = ANSWERS,
    step_interval_s: float = 0.0,
    connection_limits: ConnectionLimits | None = None,
) -> Iterator[Running]:
    """Start a server, hand it out, stop it and see that it stopped."""
    script = Script(answers=answers, step_interval_s=step_interval_s)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        settings = apply(settings or settings_for(), Overrides(script=file, engine=EngineKind.SCRIPTED))
        started: Future[Running] = Future()
        thread = threading.Thread(target=lambda: uvloop.run(_serve(settings, connection_limits, started)))
        thread.start()
        server = started.result(20)
        try:
            yield server
        finally:
            server.browser.close()
            with contextlib.suppress(RuntimeError):  # a test may have stopped it already
                server.loop.call_soon_threadsafe(server.lifecycle.request_stop, 0.0)
            thread.join(20)
            assert not thread.is_alive(), "the server did not stop"
            server.stopped.result(0)


async def _serve(settings: Settings, limits: ConnectionLimits | None, started: Future[Running]) -> None:
    stopped: Future[None] = Future()
    try:
        listeners = bind(settings.server)
        composition = await compose(settings, report=lambda what, share: None)
        assert isinstance(composition.engine, ScriptedEngine)
        lifecycle = Lifecycle(composition.state, listeners, connection_limits=limits)
        await lifecycle.start()
    except BaseException as error:
        started.set_exception(error)
        raise
    started.set_result(
        Running(
            urls=lifecycle.urls,
            state=composition.state,
            engine=composition.engine,
            lifecycle=lifecycle,
            loop=asyncio.get_running_loop(),
            stopped=stopped,
        )
    )
    try:
        await lifecycle.run()
        await composition.engine.close()
        stopped.set_result(None)
    except BaseException as error:
        stopped.set_exception(error)
        raise


def gather(count: int, work: Callable[[int], T]) -> list[T]:
    """Results of `count` calls at the same time, each on a thread of its own."""
    results: list[Future[T]] = [Future() for _ in range(count)]

    def run(index: int) -> None:
        try:
            results[index].set_result(work(index))
        except BaseException as error:
            results[index].set_exception(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [result.result(0) for result in results]
