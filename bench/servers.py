"""Servers and workers as child processes: started, awaited, watched and stopped."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

RIVALS_PYTHON = Path(".venv-rivals/bin/python")
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
POLL_INTERVAL_S = 0.2


class Child:
    """A process of ours, with its output in a log file."""

    def __init__(self, command: Sequence[str], *, log: Path) -> None:
        self.command = list(command)
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=subprocess.STDOUT)

    def cpu_s(self) -> float:
        """Processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """Ask it to end, and wait."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Server(Child):
    """A child that answers HTTP on a port of its own."""

    def __init__(self, command: Sequence[str], *, port: int, log: Path) -> None:
        super().__init__(command, log=log)
        self.url = f"http://127.0.0.1:{port}"

    def wait_until_ready(self, path: str) -> None:
        """Return when a GET of `path` succeeds. Raises RuntimeError when the server ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answers(path):
                return
            time.sleep(POLL_INTERVAL_S)
        self.stop()
        raise RuntimeError(f"{self.command} did not become ready:\n{self.log.read_text()[-2000:]}")

    def _answers(self, path: str) -> bool:
        try:
            self.get(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def get(self, path: str) -> str:
        """The body of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return response.read().decode()

    def model_name(self) -> str:
        """The model that it serves."""
        return json.loads(self.get("/v1/models"))["data"][0]["id"]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in this environment."""
    return [sys.executable, "-m", module, *arguments]


def start_mindserve(model: Path, *, log: Path, options: Sequence[str] = ()) -> Server:
    """`mindserve serve` on a free port, ready."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "mindserve"), "serve", str(model), "--port", str(port), *options]
    server = Server(command, port=port, log=log)
    server.wait_until_ready("/v2/health/ready")
    return server


def start_llama_cpp(model: Path, *, log: Path, slots: int, context_per_slot: int) -> Server:
    """llama.cpp's server on a free port, ready. One slot for every stream that will ever run at once."""
    port, cores = free_port(), len(os.sched_getaffinity(0))
    numbers = [str(number) for number in (port, cores, slots, context_per_slot)]
    server = Server([str(RIVALS_PYTHON), "-m", "bench.rivals.llama_server", str(model), *numbers], port=port, log=log)
    server.wait_until_ready("/health")
    return server
