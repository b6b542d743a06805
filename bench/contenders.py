"""What compare.py measures, all with one face: a name, `run` for one measurement, `stop`."""

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.client import ChatClient, closed_loop
from bench.figures import Figures, load_figures
from bench.prompts import Message, Words
from bench.servers import RIVALS_PYTHON, STOP_TIMEOUT_S, Child, Server, python_module
from bench.worker_loop import LoadTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement: how many prompts of which length, and how many at a time."""

    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int


class Contender(Protocol):
    """A server or engine under load."""

    name: str
    child: Child

    def run(self, load: Load, words: Words) -> Figures:
        """Measure once, with prompts never used before."""
        ...

    def stop(self) -> None:
        """End its process."""
        ...


class HttpContender:
    """A server under streamed chat completions."""

    def __init__(self, name: str, server: Server, words: Words) -> None:
        self.name = name
        self.child: Child = server
        self._url = server.url
        self._model = server.model_name()
        self._template_tokens = self._measure_template(words)

    def _measure_template(self, words: Words) -> int:
        """Tokens that the chat template adds, as the server counts them."""
        count = 64
        answer = asyncio.run(self._client(1).ask(words.messages(count)))
        return answer.prompt_tokens - count

    def _client(self, max_tokens: int) -> ChatClient:
        return ChatClient(url=self._url, model=self._model, max_tokens=max_tokens)

    def run(self, load: Load, words: Words) -> Figures:
        """A closed loop of `load.concurrency` clients."""
        count = load.prompt_tokens - self._template_tokens
        prompts: list[list[Message]] = [words.messages(count) for _ in range(load.requests)]
        ask = self._client(load.output_tokens).ask
        answers, seconds = asyncio.run(closed_loop(ask, prompts, concurrency=load.concurrency))
        return load_figures(answers, seconds)

    def stop(self) -> None:
        """End the server."""
        self.child.stop()


class WorkerProcess(Child):
    """A process that speaks the protocol of worker_loop.py."""

    def __init__(self, command: Sequence[str], *, log: Path) -> None:
        self.command = list(command)
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0
            )
        self._next_line()

    def _next_line(self) -> bytes:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.command} ended:\n{self.log.read_text()[-2000:]}")
        return line

    def measure(self, task: LoadTask) -> Figures:
        """Hand over a task and wait for its figures."""
        assert self.process.stdin is not None
        self.process.stdin.write(task.to_line().encode() + b"\n")
        return json.loads(self._next_line())

    def stop(self) -> None:
        """The end of its tasks is the end of the worker: it closes what it has opened."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            super().stop()


class WorkerContender:
    """An engine without HTTP, in waves or in a closed loop."""

    def __init__(self, name: str, worker: WorkerProcess, *, in_waves: bool) -> None:
        self.name = name
        self.child: Child = worker
        self._worker = worker
        self._in_waves = in_waves

    def run(self, load: Load, words: Words) -> Figures:
        """The same prompts' lengths as over HTTP, as token ids."""
        prompts = [words.token_ids(load.prompt_tokens) for _ in range(load.requests)]
        return self._worker.measure(
            LoadTask(
                concurrency=load.concurrency,
                prompts=prompts,
                max_tokens=load.output_tokens,
                in_waves=self._in_waves,
            )
        )

    def stop(self) -> None:
        """End the worker."""
        self.child.stop()


def start_offline(model: Path, *, log: Path, is_replica: bool = False) -> WorkerProcess:
    """Our engine without HTTP, in its process or as a replica on a Ray cluster."""
    return WorkerProcess(python_module("bench.offline", str(model), *["--replica"] * is_replica), log=log)


def start_genai(model: Path, *, log: Path, precision: str | None = None) -> WorkerProcess:
    """OpenVINO GenAI's pipeline, in the rivals' environment; `precision`: what it computes in, if not the default."""
    arguments = [str(model)] if precision is None else [str(model), precision]
    return WorkerProcess([str(RIVALS_PYTHON), "-m", "bench.rivals.genai", *arguments], log=log)


def idle_load(child: Child, *, seconds: float = 1.0) -> float:
    """Cores that the child keeps busy while it has nothing to do."""
    before = child.cpu_s()
    time.sleep(seconds)
    return round((child.cpu_s() - before) / seconds, 3)
