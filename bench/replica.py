"""What a replica costs: one engine on a Ray cluster of its own, beside the same engine in the client's process.

usage: python -m bench.replica [--concurrency 32] [--runs 5] ...        in an environment with mindserve[ray]

Only one of the two is there at a time, for Ray's own processes use some of the machine even when nothing runs, and that
is part of the cost. So each is started anew for every run, in turn, and warmed up before it is measured.

Ray listens on all interfaces. On a machine that others can reach run this in a network namespace:
`unshare --net sh -c 'ip link set lo up; exec python -m bench.replica'`.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench.contenders import Load, WorkerContender, start_offline
from bench.figures import Figures, medians
from bench.prompts import Words
from bench.results import save, versions
from bench.servers import Child

MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")
IN_PROCESS, REPLICA = "in process", "replica"


def main() -> None:
    arguments = parse_arguments()
    words = Words(arguments.model, seed=arguments.seed)
    logs = Path(tempfile.mkdtemp(prefix="mindserve-bench-"))
    print(f"logs: {logs}", flush=True)
    runs: dict[str, list[Figures]] = {IN_PROCESS: [], REPLICA: []}
    for number in range(arguments.runs):
        for name, of_name in runs.items():
            figures = measure(name, arguments, words, log=logs / f"{name}-{number}.log")
            of_name.append(figures)
            print(f"run {number + 1}, {name}: {json.dumps(figures)}", flush=True)
    report(runs, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests-per-stream", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=MODEL)
    return parser.parse_args()


def measure(name: str, arguments: argparse.Namespace, words: Words, *, log: Path) -> Figures:
    """One start, warm-up and run."""
    worker = start_offline(arguments.model, log=log, is_replica=name == REPLICA)
    contender = WorkerContender(name, worker, in_waves=False)
    try:
        contender.run(load_for(arguments, requests_per_stream=1), words)
        load, before_s = load_for(arguments, requests_per_stream=arguments.requests_per_stream), family_cpu_s(worker)
        figures = contender.run(load, words)
        busy_s = family_cpu_s(worker) - before_s
        return figures | {"cpu_ms_per_token": round(1000 * busy_s / figures["output_tokens"], 4)}
    finally:
        contender.stop()


def family_cpu_s(child: Child) -> float:
    """Processor time of a process and all its descendants: Ray's processes are that here."""
    parents: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {child.process.pid}
    while more := {pid for pid, (parent, _) in parents.items() if parent in family} - family:
        family |= more
    return sum(parents[pid][1] for pid in family) / os.sysconf("SC_CLK_TCK")


def load_for(arguments: argparse.Namespace, *, requests_per_stream: int) -> Load:
    return Load(
        concurrency=arguments.concurrency,
        requests=arguments.concurrency * requests_per_stream,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
    )


def report(runs: dict[str, list[Figures]], arguments: argparse.Namespace) -> None:
    """Print the ratio of throughputs, run by run, and write the file."""
    pairs = list(zip(runs[REPLICA], runs[IN_PROCESS], strict=True))
    ratios = [round(a["output_tokens_per_s"] / b["output_tokens_per_s"], 4) for a, b in pairs]
    costs = [round(a["cpu_ms_per_token"] / b["cpu_ms_per_token"], 4) for a, b in pairs]
    for name, figures in runs.items():
        print(f"{name:12}{json.dumps(medians(figures))}")
    print(f"throughput of a replica: {statistics.median(ratios):.3f} of the engine in process ({ratios})")
    print(f"processor time per token: {statistics.median(costs):.3f} times as much ({costs})")
    content = {
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "versions": versions("mindserve", "openvino", "numpy", "ray"),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ratios": costs,
        "medians": {name: medians(figures) for name, figures in runs.items()},
        "runs": runs,
    }
    print("written:", save("replica", content))


if __name__ == "__main__":
    main()
