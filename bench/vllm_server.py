"""vLLM under this server's HTTP and output path beside vLLM under its own: the same engine, the same arguments.

usage: python -m bench.vllm_server [--model DIRECTORY] [--concurrency 32] [--runs 5] ...

The model and the environment in which both servers run are those that `scripts/test-vllm` makes. Both are loaded at the
beginning and take turns.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from bench.compare import MODEL as WORDS
from bench.compare import ratio, table
from bench.contenders import HttpContender, Load
from bench.figures import Figures, medians
from bench.prompts import Words
from bench.results import save, versions
from bench.servers import Server, free_port

PYTHON = Path(".venv-vllm/bin/python")
MODEL = Path(".models/SmolLM2-135M-Instruct")
Runs = dict[str, list[Figures]]
OURS, THEIRS = "mindserve", "vllm"
ENVIRONMENT = {
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
}
"""For both: all cores, and the model runner that takes logits processors."""


def main() -> None:
    arguments = parse_arguments()
    os.environ.update(ENVIRONMENT, VLLM_CPU_KVCACHE_SPACE=str(arguments.cache_gb))
    words = Words(WORDS, seed=arguments.seed)
    logs = Path(tempfile.mkdtemp(prefix="mindserve-bench-"))
    print(f"logs: {logs}", flush=True)
    contenders: list[HttpContender] = []
    try:
        for name, start in ((OURS, start_ours), (THEIRS, start_theirs)):
            contenders.append(HttpContender(name, start(arguments, logs / f"{name}.log"), words))
        report(take_turns(contenders, arguments, words), arguments)
    finally:
        for contender in contenders:
            contender.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests-per-stream", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--cache-gb", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def start_ours(arguments: argparse.Namespace, log: Path) -> Server:
    """`mindserve serve --engine vllm`, ready."""
    port = free_port()
    options = ("--engine", "vllm", "--max-seq-len", str(arguments.context), "--port", str(port))
    command = [str(PYTHON.parent / "mindserve"), "serve", str(arguments.model), *options]
    return started(Server(command, port=port, log=log), "/v2/health/ready")


def start_theirs(arguments: argparse.Namespace, log: Path) -> Server:
    """vLLM's own server, ready, with the arguments that ours gives to the engine."""
    port = free_port()
    limits = ("--max-model-len", str(arguments.context), "--max-num-seqs", "200", "--no-enable-chunked-prefill")
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(arguments.model), *limits]
    return started(Server([*command, "--port", str(port)], port=port, log=log), "/health")


def started(server: Server, path: str) -> Server:
    """The server as soon as it is ready."""
    server.wait_until_ready(path)
    return server


def take_turns(
    contenders: list[HttpContender], arguments: argparse.Namespace, words: Words
) -> dict[str, list[Figures]]:
    """Theirs and ours, run by run, after one of each that does not count."""
    load = Load(
        concurrency=arguments.concurrency,
        requests=arguments.concurrency * arguments.requests_per_stream,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
    )
    runs: Runs = {contender.name: [] for contender in contenders}
    for number in range(-1, arguments.runs):
        for contender in contenders:
            figures = contender.run(load, words)
            if number >= 0:
                runs[contender.name].append(figures)
                print(f"run {number + 1}, {contender.name}: {json.dumps(figures)}", flush=True)
    return runs


def report(runs: Runs, arguments: argparse.Namespace) -> None:
    """Print the table, write the file."""
    middle = {name: {str(arguments.concurrency): medians(figures)} for name, figures in runs.items()}
    found = {"of": OURS, "to": THEIRS, "concurrency": arguments.concurrency, **ratio(runs[OURS], runs[THEIRS])}
    for line in table(middle, [found]):
        print(line)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    content = {"settings": settings, "environment": ENVIRONMENT, "versions": versions("mindserve")}
    print("written:", save("vllm-server", content | {"medians": middle, "ratio": found, "runs": runs}))


if __name__ == "__main__":
    main()
