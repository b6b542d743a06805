"""Starts `mindserve serve` with the arguments given and prints a line to try as soon as the server is ready.

usage: serve_and_greet.py MODEL [--port PORT] [OPTION ...]
"""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

DEFAULT_PORT = 1025
MODEL_NAME = "smollm2"
POLL_INTERVAL_S = 0.2

GREETING = """
mindserve is ready. Try it from another terminal:

  curl -s http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

Ctrl-C stops the server.
"""


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    known, others = parser.parse_known_args()
    mindserve = Path(sys.executable).parent / "mindserve"
    options = ["--port", str(known.port), "--model-name", MODEL_NAME, *others]
    server = subprocess.Popen([mindserve, "serve", known.model, *options])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.send_signal(number))
    name = served_model(server, known.port)
    if name:
        print(greeting(name, known.port), flush=True)
    return server.wait()


def served_model(server: "subprocess.Popen[bytes]", port: int) -> str | None:
    """The name of the model once it can answer; None when the server ended instead."""
    while server.poll() is None:
        try:
            get(f"http://127.0.0.1:{port}/v2/health/ready")
            return json.loads(get(f"http://127.0.0.1:{port}/v1/models"))["data"][0]["id"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(POLL_INTERVAL_S)
    return None


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read()


def greeting(model: str, port: int) -> str:
    messages = [{"role": "user", "content": "Which city is the capital of France?"}]
    body = json.dumps({"model": model, "messages": messages, "temperature": 0, "max_tokens": 64})
    return GREETING.format(port=port, body=body)


if __name__ == "__main__":
    sys.exit(main())
