"""Ray nodes in network namespaces that exist already, and a mindserve server in the first of them."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

HEAD_ADDRESS = "10.77.0.1"
SECOND_ADDRESS = "10.77.0.2"
RAY_PORT = 6379
SERVER_PORT = 1025
START_TIMEOUT_S = 400.0

BIN = Path(sys.executable).parent


class Nodes:
    """A head node and a second one. Whoever made the namespaces ends what runs in them."""

    def __init__(self, head: str, second: str, *, work: Path, cpus: int) -> None:
        self._head = head
        self._second = second
        self._work = work
        self._cpus = cpus

    def start_head(self) -> None:
        """Ray's head node."""
        options = ["--head", f"--node-ip-address={HEAD_ADDRESS}", f"--port={RAY_PORT}", "--include-dashboard=false"]
        self._ray_start(self._head, [*options, f"--temp-dir={self._work / 'ray'}"])

    def start_second(self) -> None:
        """A node that joins."""
        self._ray_start(self._second, [f"--address={HEAD_ADDRESS}:{RAY_PORT}", f"--node-ip-address={SECOND_ADDRESS}"])

    def _ray_start(self, namespace: str, options: Sequence[str]) -> None:
        command = [str(BIN / "ray"), "start", *options, f"--num-cpus={self._cpus}", "--disable-usage-stats"]
        result = subprocess.run(
            ["ip", "netns", "exec", namespace, *command], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"ray start failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")

    def kill_second(self) -> None:
        """All its processes at once, without a word to anybody."""
        listed = subprocess.run(["ip", "netns", "pids", self._second], capture_output=True, text=True, check=True)
        for pid in listed.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


class Server:
    """`mindserve serve` on the head node, as a child of this process, which is there too."""

    def __init__(self, options: Sequence[str], *, log: Path) -> None:
        self.url = f"http://127.0.0.1:{SERVER_PORT}"
        self._log = log
        command = [str(BIN / "mindserve"), "serve", *options, "--port", str(SERVER_PORT)]
        environment = os.environ | {"RAY_ADDRESS": f"{HEAD_ADDRESS}:{RAY_PORT}"}
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def wait_until_ready(self) -> None:
        """Raises RuntimeError when the server ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.is_ready():
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server did not become ready:\n{self._log.read_text()[-4000:]}")

    def is_ready(self) -> bool:
        """What it says of itself."""
        try:
            with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=10) as response:
                return response.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self._process.terminate()
        return self._process.wait(60)
