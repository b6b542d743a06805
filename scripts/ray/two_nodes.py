"""A replica on each of two Ray nodes: both answer; one is lost and comes back.

Run by scripts/test-ray in the namespace of the head node. Raises AssertionError at the first thing that does not hold.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

import ray
from ray import serve
from scripts.ray.nodes import HEAD_ADDRESS, RAY_PORT, Nodes, Server
from scripts.ray.streams import Client, Stream

from mindserve.engine.replicas.wire import Greeting

MODEL = "model"
TOGETHER = 64
LOSS_S = 15.0
"""How soon all callers of a lost replica must know."""
RETURN_S = 400.0


class Replicas:
    """What the replicas say of themselves."""

    def __init__(self) -> None:
        ray.init(address=f"{HEAD_ADDRESS}:{RAY_PORT}", log_to_driver=False, logging_level="ERROR")
        (name,) = serve.status().applications
        self._handle = serve.get_app_handle(name)

    async def greet(self) -> list[Greeting]:
        """All that answer."""
        greetings = self._handle.options(_by_reference=False).broadcast("hello", "test")
        found = await greetings.results_async(timeout_s=10, return_exceptions=True)
        return [greeting for greeting in found if isinstance(greeting, Greeting)]

    async def answered(self) -> dict[str, int]:
        """Requests that each has had."""
        return {greeting.replica: greeting.answered for greeting in await self.greet()}


def _say(what: str) -> None:
    print(f"-- {what}", flush=True)


def _check_complete(streams: list[Stream]) -> None:
    for stream in streams:
        assert stream.error is None, stream.error
        assert stream.is_complete
        assert stream.finish_reason == "length"
        assert stream.tokens > 0


async def both_answer(client: Client, replicas: Replicas) -> None:
    """64 streams at once, from both replicas."""
    before = await replicas.answered()
    assert len(before) == 2, before
    assert len({greeting.node for greeting in await replicas.greet()}) == 2, "both on one node"
    started_s = time.monotonic()
    _check_complete(await client.ask_many(TOGETHER, max_tokens=32))
    seconds = time.monotonic() - started_s
    shares = {name: count - before[name] for name, count in (await replicas.answered()).items()}
    assert sum(shares.values()) == TOGETHER, shares
    assert min(shares.values()) >= TOGETHER // 4, shares
    _say(f"{TOGETHER} streams in {seconds:.1f} s, {' and '.join(map(str, shares.values()))} from the two replicas")


async def one_is_lost(client: Client, replicas: Replicas, nodes: Nodes, server: Server) -> None:
    """Its callers are told, the others' streams complete, new requests go on."""
    before, where = await replicas.answered(), {greeting.replica: greeting.node for greeting in await replicas.greet()}
    streams = [Stream() for _ in range(TOGETHER)]
    asking = [asyncio.create_task(client.ask(stream, max_tokens=160)) for stream in streams]
    while not all(stream.tokens >= 3 for stream in streams):  # noqa: ASYNC110 - streams tell nobody
        await asyncio.sleep(0.05)
    shares = {name: count - before[name] for name, count in (await replicas.answered()).items()}
    lost = next(name for name in shares if where[name] != ray.get_runtime_context().get_node_id())
    nodes.kill_second()
    killed_s = time.monotonic()
    _check_complete(await client.ask_many(8, max_tokens=8))
    _say(f"8 requests answered within {time.monotonic() - killed_s:.1f} s after the loss")
    await asyncio.gather(*asking)
    failed = [stream for stream in streams if stream.error]
    assert len(failed) == shares[lost] > 0, f"{len(failed)} failed, the lost replica had {shares[lost]}"
    for stream in failed:
        assert stream.error is not None and "replica" in stream.error, stream.error
        assert not stream.is_complete
    slowest_s = max(stream.ended_s or 0.0 for stream in failed) - killed_s
    assert slowest_s < LOSS_S, slowest_s
    _check_complete([stream for stream in streams if not stream.error])
    assert server.is_ready()
    _say(f"{len(failed)} callers told within {slowest_s:.1f} s: {failed[0].error}")
    _say(f"the other {TOGETHER - len(failed)} streams complete")


async def it_comes_back(client: Client, replicas: Replicas, nodes: Nodes) -> None:
    """With its node, and takes part."""
    _check_complete(await client.ask_many(8, max_tokens=8))
    old = set(await replicas.answered())
    assert len(old) == 1, old
    started_s = time.monotonic()
    nodes.start_second()
    while len(answered := await replicas.answered()) < 2 or not all(answered.values()):
        assert time.monotonic() - started_s < RETURN_S
        _check_complete(await client.ask_many(4, max_tokens=2))
        await asyncio.sleep(0.5)
    _say(f"the replica is back and answers after {time.monotonic() - started_s:.1f} s")
    await both_answer(client, replicas)
    assert old < set(await replicas.answered())


async def check(nodes: Nodes, server: Server) -> None:
    """All of it."""
    server.wait_until_ready()
    client, replicas = Client(server.url, MODEL), Replicas()
    try:
        await both_answer(client, replicas)
        await one_is_lost(client, replicas, nodes, server)
        await it_comes_back(client, replicas, nodes)
    finally:
        await client.close()


def server_options(options: argparse.Namespace) -> list[str]:
    """For the engine that was asked for."""
    script: list[str] = []
    if options.engine == "scripted":
        file = options.work / "script.json"
        file.write_text(json.dumps({"answers": [{}], "step_interval_s": 0.05}))
        script = ["--script", str(file)]
    replicas = ["--engine", options.engine, "--instances", "2", "--cache-gb", "0.5"]
    return [options.model, "--model-name", MODEL, "--max-seq-len", "1024", *replicas, *script]


def main() -> None:
    """Start everything, check, stop the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespaces", nargs=2, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    nodes = Nodes(*options.namespaces, work=options.work, cpus=1)
    nodes.start_head()
    nodes.start_second()
    _say("two Ray nodes")
    server = Server(server_options(options), log=options.work / "server.log")
    try:
        asyncio.run(check(nodes, server))
        assert server.stop() == 0
        _say("the server stopped, and its replicas with it")
        assert not serve.status().applications, serve.status()
    except BaseException:
        print((options.work / "server.log").read_text()[-6000:], flush=True)
        raise


if __name__ == "__main__":
    main()
