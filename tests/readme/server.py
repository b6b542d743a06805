"""A server in a process of its own, started from a config.json on free ports."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.readme.blocks import ROOT

PREPARED = ROOT / ".models" / "prepared"
"""Prepared models are kept from run to run, beside the model itself."""
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 60


class Ports:
    """Free ports in place of those that the examples name: 1025, 1026 and 1027."""

    def __init__(self) -> None:
        sockets = [socket.socket() for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        self._by_written = {str(1025 + i): str(each.getsockname()[1]) for i, each in enumerate(sockets)}
        for each in sockets:
            each.close()

    def put_into(self, text: str) -> str:
        """`text` with the free ports."""
        return re.sub(r"\b102[567]\b", lambda match: self._by_written[match[0]], text)


@contextmanager
def running_server(home: Path, config: str, ports: Ports) -> Generator[None]:
    """`mindserve serve --config-file config.json` in `home`, ready within the block."""
    (home / "config.json").write_text(ports.put_into(config))
    mindserve = Path(sys.executable).parent / "mindserve"
    with (home / "server.log").open("wb") as log:
        command = [mindserve, "serve", "--config-file", "config.json"]
        environment = os.environ | {"XDG_CACHE_HOME": str(PREPARED)}
        server = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(server, ports.put_into("http://127.0.0.1:1026/v2/health/ready"), home / "server.log")
        yield
    finally:
        server.terminate()
        server.wait(STOP_TIMEOUT_S)


def _wait_until_ready(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(f"the server did not become ready:\n{log.read_text()[-3000:]}")
