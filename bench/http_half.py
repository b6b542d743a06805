"""What the HTTP half costs by itself: the server on a scripted engine, beside a bare app that sends the same bytes.

usage: python -m bench.http_half [--streams 64] [--output-tokens 128] [--runs 5]

Both are one process. Figures are tokens per second of processor time ("per core") and processor time per token of that
process, so the client's share of the machine does not count. The bare app does not parse, validate, tokenise or decode:
it is the limit of the framework, and the ratio says what share of that limit is left with all the work done.
"""

import argparse
import asyncio
import json
import tempfile
import urllib.request
from pathlib import Path

from bench.client import ChatClient, closed_loop
from bench.figures import Figures, medians
from bench.results import save, versions
from bench.servers import Server, free_port, python_module, start_mindserve

MODEL_NAME = "scripted"
ANSWER = "The quick brown fox jumps over the lazy dog. " * 50
MESSAGES = [{"role": "user", "content": "Tell me something about foxes and dogs, and take your time. " * 4}]


def start_scripted(folder: Path) -> Server:
    """Our server; its engine answers at once, one token per byte of ANSWER."""
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": [{"text": ANSWER}]}))
    options = ("--engine", "scripted", "--script", str(script), "--model-name", MODEL_NAME, "--log-level", "warning")
    return start_mindserve(Path("scripted"), log=folder / "mindserve.log", options=options)


def start_bare(folder: Path, events: bytes) -> Server:
    """The bare app with the events of one of our answers."""
    file, port = folder / "events", free_port()
    file.write_bytes(events)
    server = Server(python_module("bench.bare_app", str(file), str(port)), port=port, log=folder / "bare.log")
    server.wait_until_ready("/")
    return server


def one_answer(server: Server, max_tokens: int) -> bytes:
    """The body of one streamed answer."""
    fields = {"model": MODEL_NAME, "messages": MESSAGES, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def measure(server: Server, arguments: argparse.Namespace) -> Figures:
    """One run of load: tokens and the processor time that they took."""
    client = ChatClient(url=server.url, model=MODEL_NAME, max_tokens=arguments.output_tokens)
    prompts = [MESSAGES] * (arguments.streams * arguments.requests_per_stream)
    before = server.cpu_s()
    answers, seconds = asyncio.run(closed_loop(client.ask, prompts, concurrency=arguments.streams))
    cpu_s = server.cpu_s() - before
    tokens = sum(answer.output_tokens for answer in answers)
    if tokens != len(prompts) * arguments.output_tokens:
        raise ValueError(f"{tokens} tokens came, not {arguments.output_tokens} for each of {len(prompts)} requests")
    return {
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds),
        "tokens_per_core_s": round(tokens / cpu_s),
        "cpu_us_per_token": round(1e6 * cpu_s / tokens, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests-per-stream", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mindserve-bench-"))
    servers: dict[str, Server] = {}
    try:
        servers["mindserve"] = start_scripted(folder)
        servers["bare"] = start_bare(folder, one_answer(servers["mindserve"], arguments.output_tokens))
        runs: dict[str, list[Figures]] = {name: [] for name in servers}
        for _ in range(arguments.runs):
            for name, server in servers.items():
                runs[name].append(measure(server, arguments))
                print(f"{name:12}{json.dumps(runs[name][-1])}", flush=True)
    finally:
        for server in servers.values():
            server.stop()
    middle = {name: medians(figures) for name, figures in runs.items()}
    share = round(middle["mindserve"]["tokens_per_core_s"] / middle["bare"]["tokens_per_core_s"], 3)
    print(f"share of the bare app's tokens per core: {share}")
    content = {"versions": versions("mindserve", "starlette", "uvicorn"), "share_of_bare": share}
    print("written:", save("http-half", content | {"medians": middle, "runs": runs}))


if __name__ == "__main__":
    main()
