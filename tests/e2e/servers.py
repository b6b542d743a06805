"""A whole server on a free port, in a thread of its own, over any engine."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from mindserve.chat.prompt import PromptBuilder
from mindserve.contract import ValidationContext
from mindserve.engine.base import Engine
from mindserve.engine.scripted import Answer, Script, ScriptedEngine
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import Lifecycle, bind
from mindserve.server.observing import RequestObserver
from mindserve.server.state import ServerState
from mindserve.service import ChatService
from mindserve.settings.values import ApiMode, Limits, ModelSettings, Plane, ServerSettings, Settings
from mindserve.telemetry import Metrics
from mindserve.text.base import Tokenizer
from mindserve.text.bytes_tokenizer import ByteTokenizer

from .fold import Json, fold, parse_sse

MODEL = "tiny"


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


def settings(
    path: Path = Path("none"), *, limits: Limits | None = None, has_full_text: bool = False, **model: Any
) -> Settings:
    """For a server on a free port of this machine."""
    plane = Plane(port=0)
    server = ServerSettings(
        service=plane,
        management=plane,
        metrics=plane,
        limits=limits or Limits(),
        full_text=has_full_text,
        tokenizer_threads=2,
    )
    return Settings(model=ModelSettings(**{"name": MODEL, "path": path} | model), server=server)


@contextmanager
def scripted(*answers: Answer, step_interval_s: float = 0.0, **values: Any) -> Iterator[Server]:
    """A server that plays a script."""
    tokenizer = ByteTokenizer(markers=("<think>", "</think>"))
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    script = Script(answers=answers or (Answer(),), step_interval_s=step_interval_s)
    with running(
        settings(**values), tokenizer, lambda: ScriptedEngine(script, codec=tokenizer, eos_token_id=end)
    ) as it:
        yield it


@contextmanager
def running(config: Settings, tokenizer: Tokenizer, make_engine: Callable[[], Engine]) -> Iterator[Server]:
    """A server over the engine that `make_engine` makes on the server's event loop."""
    ready = threading.Event()
    house = _House(config, tokenizer, make_engine, ready=ready)
    thread = threading.Thread(target=lambda: asyncio.run(house.live()))
    thread.start()
    try:
        assert ready.wait(120)
        if house.failure is not None:
            raise house.failure
        with httpx.Client(base_url=house.url, timeout=60, trust_env=False) as client:
            yield Server(client=client, service=house.service, has_full_text=config.server.full_text)
    finally:
        house.stop()
        thread.join(60)


class _House:
    """Owns the server's event loop."""

    service: ChatService
    url: str

    def __init__(
        self, config: Settings, tokenizer: Tokenizer, make_engine: Callable[[], Engine], *, ready: threading.Event
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._make_engine = make_engine
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lifecycle: Lifecycle | None = None
        self.failure: BaseException | None = None

    async def live(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            engine = self._make_engine()
            await engine.start()
            await self._open(engine)
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._ready.set()
        assert self._lifecycle is not None
        await self._lifecycle.run()
        await engine.close()

    async def _open(self, engine: Engine) -> None:
        config, metrics = self._config, Metrics(model_name=MODEL)
        self.service = ChatService(
            config,
            engine=engine,
            tokenizer=self._tokenizer,
            prompts=PromptBuilder(
                self._tokenizer, config.model, engine.info, reports_full_text=config.server.full_text
            ),
            observer=RequestObserver(metrics),
        )
        context = ValidationContext(models={MODEL: None}, model_type=engine.info.model_type)
        listeners = bind(config.server)
        state = ServerState(
            settings=config,
            service=self.service,
            tokenizer=self._tokenizer,
            contexts={mode: replace(context, mode=mode) for mode in ApiMode},
            registry=metrics.registry,
            mode=ApiMode.VLLM,
        )
        self._lifecycle = Lifecycle(state, listeners)
        await self._lifecycle.start()
        self.url = self._lifecycle.urls[PlaneKind.SERVICE]

    def stop(self) -> None:
        if self._loop is not None and self._lifecycle is not None:
            self._loop.call_soon_threadsafe(self._lifecycle.request_stop, 0.0)
