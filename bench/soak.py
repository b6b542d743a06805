"""Hundreds of mixed requests, many of them abandoned midway: does the server keep anything that it should not?

usage: python -m bench.soak [--requests 500] [--concurrency 16] [--abandon 0.3]

Prints the server's memory after a fifth of the requests and after all of them, and what it says of itself when the
last one is gone: nothing may run or wait, and every KV block must be free or cached. Ends with status 1 otherwise, or
when the memory has grown by more than 5 %.
"""

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.client import http_post
from bench.compare import MODEL
from bench.prompts import Words
from bench.results import save, versions
from bench.servers import Server, start_mindserve

QUIET_TIMEOUT_S = 30
LONGEST_PATIENCE_S = 2.0
MAX_GROWTH = 0.05
CACHE_GB = 0.25
"""Small, so that sequences compete for blocks and a leak elsewhere shows beside it."""
AT_REST = (
    "num_requests_running",
    "num_requests_waiting",
    "num_sequences_running",
    "num_sequences_waiting",
    "npu_cache_usage_perc",
)
"""What /metrics must show as 0 when nobody asks for anything."""
VARIANTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0, "stop": ["e "]},
    {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
)


class Visitors:
    """Clients that differ in what they ask and in how long they stay."""

    def __init__(self, server: Server, words: Words, arguments: argparse.Namespace) -> None:
        self._address = urlsplit(server.url)
        self._model = server.model_name()
        self._words = words
        self._random = random.Random(arguments.seed)
        self._abandon_share: float = arguments.abandon
        self._shared = words.text(200)
        self.outcomes: Counter[str] = Counter()

    async def visit(self) -> None:
        """One request, read to the end or left midway."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        writer.write(http_post(self._address.netloc, self._fields()))
        patience_s = None
        if self._random.random() < self._abandon_share:
            patience_s = self._random.uniform(0, LONGEST_PATIENCE_S)
        try:
            answer = await asyncio.wait_for(reader.read(-1), patience_s)
            self.outcomes[answer[9:12].decode()] += 1
        except TimeoutError:
            self.outcomes["abandoned"] += 1
        finally:
            writer.transport.abort()

    def _fields(self) -> dict[str, Any]:
        beginning = self._shared if self._random.random() < 0.3 else ""
        content = beginning + self._words.text(self._random.choice((5, 40, 150, 400)))
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "stream": self._random.random() < 0.7,
            "max_tokens": self._random.choice((1, 8, 32, 96)),
            **self._random.choice(VARIANTS),
        }


async def soak(server: Server, visitors: Visitors, arguments: argparse.Namespace) -> dict[str, Any]:
    """All visits; memory after a fifth of them and after the last."""
    remaining = iter(range(arguments.requests))
    finished, memory = 0, dict[str, float]()

    async def stream() -> None:
        nonlocal finished
        for _ in remaining:
            await visitors.visit()
            finished += 1
            if finished in (arguments.requests // 5, arguments.requests):
                memory[f"mib_after_{finished}"] = round(server.memory_bytes() / 2**20, 1)

    async with asyncio.TaskGroup() as group:
        for _ in range(arguments.concurrency):
            group.create_task(stream())
    early, late = memory.values()
    return {"memory": memory, "memory_growth": round(late / early - 1, 4), "outcomes": dict(visitors.outcomes)}


def wait_until_quiet(server: Server) -> dict[str, float]:
    """The figures of AT_REST as soon as all of them are 0, or what they are when the time is over."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while True:
        figures = gauges(server.get("/metrics"))
        if not any(figures.values()) or time.monotonic() > deadline:
            return figures
        time.sleep(0.2)


def gauges(metrics: str) -> dict[str, float]:
    """The families of AT_REST. Raises KeyError when one is missing."""
    found = dict(re.findall(r"^(\w+)(?:\{[^}]*\})? (\S+)$", metrics, re.MULTILINE))
    return {name: float(found[name]) for name in AT_REST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--abandon", type=float, default=0.3, help="share of the clients that leave early")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    words = Words(arguments.model, seed=arguments.seed)
    log = Path(tempfile.mkdtemp(prefix="mindserve-bench-")) / "server.log"
    server = start_mindserve(arguments.model, log=log, options=("--cache-gb", str(CACHE_GB)))
    try:
        visitors = Visitors(server, words, arguments)
        measured = asyncio.run(soak(server, visitors, arguments))
        at_rest = wait_until_quiet(server)
    finally:
        server.stop()
    measured["at_rest"] = at_rest
    print(measured)
    print("written:", save("soak", {"versions": versions("mindserve", "openvino")} | measured))
    if any(at_rest.values()) or measured["memory_growth"] > MAX_GROWTH:
        raise SystemExit("the server keeps what it should not")


if __name__ == "__main__":
    main()
