"""mindserve beside its rivals on this machine: all of them in one go, in turn, several times.

usage: python -m bench.compare [--contenders mindserve,llama.cpp,offline,offline-waves,genai] [--runs 5] ...

All contenders are loaded at the beginning and take turns (A B C A B C ...), so that a change in the machine's speed
meets all of them; the idle ones are checked not to use the processor. Prompts are new in every run.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.contenders import Contender, HttpContender, Load, WorkerContender, idle_load, start_genai, start_offline
from bench.figures import Figures, medians
from bench.prompts import Words
from bench.quiet import others_busy
from bench.results import rival_versions, save, versions
from bench.servers import start_llama_cpp, start_mindserve

MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")
LLAMA_CPP_MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_0.gguf")
CONTENDERS = ("mindserve", "llama.cpp", "offline", "offline-waves", "genai")
RATIOS = (("mindserve", "llama.cpp"), ("mindserve", "offline"), ("offline-waves", "genai"))
IDLE_LIMIT = 0.1
"""Cores that all idle contenders together may keep busy before the comparison is refused."""

Runs = dict[str, dict[int, list[Figures]]]
"""Name -> concurrency -> the figures of every run."""


def main() -> None:
    arguments = parse_arguments()
    words = Words(arguments.model, seed=arguments.seed)
    contenders: list[Contender] = []
    try:
        start_all(contenders, arguments, words)
        idle = {contender.name: idle_load(contender.child) for contender in contenders}
        if sum(idle.values()) > IDLE_LIMIT:
            raise SystemExit(f"a contender is busy while it should be idle (cores): {idle}")
        runs = take_turns(contenders, arguments, words)
        report(runs, idle, arguments)
    finally:
        for contender in contenders:
            contender.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=list(CONTENDERS))
    parser.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--requests-per-stream", type=int, default=3, help="at concurrency 1: four times as many")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--llama-cpp-model", type=Path, default=LLAMA_CPP_MODEL)
    parser.add_argument("--genai-precision", help="f32: as mindserve computes; default: the runtime's choice")
    parser.add_argument("--options", type=str.split, default=[], help="further options of `mindserve serve`")
    arguments = parser.parse_args()
    if unknown := set(arguments.contenders) - set(CONTENDERS):
        parser.error(f"unknown contenders {sorted(unknown)}; there are {', '.join(CONTENDERS)}")
    return arguments


def start_all(contenders: list[Contender], arguments: argparse.Namespace, words: Words) -> None:
    """Appends each contender as it starts, so that the caller can stop those that did when a later one fails."""
    logs = Path(tempfile.mkdtemp(prefix="mindserve-bench-"))
    print(f"logs: {logs}", flush=True)
    wanted: list[str] = arguments.contenders
    if "mindserve" in wanted:
        server = start_mindserve(arguments.model, log=logs / "mindserve.log", options=arguments.options)
        contenders.append(HttpContender("mindserve", server, words))
    if "llama.cpp" in wanted:
        room = arguments.prompt_tokens + arguments.output_tokens + 64
        slots = max(arguments.concurrency)
        server = start_llama_cpp(arguments.llama_cpp_model, log=logs / "llama.log", slots=slots, context_per_slot=room)
        contenders.append(HttpContender("llama.cpp", server, words))
    if {"offline", "offline-waves"} & set(wanted):
        worker = start_offline(arguments.model, log=logs / "offline.log")
        for name in ("offline", "offline-waves"):
            if name in wanted:
                contenders.append(WorkerContender(name, worker, in_waves=name == "offline-waves"))
    if "genai" in wanted:
        worker = start_genai(arguments.model, log=logs / "genai.log", precision=arguments.genai_precision)
        contenders.append(WorkerContender("genai", worker, in_waves=True))


def take_turns(contenders: Sequence[Contender], arguments: argparse.Namespace, words: Words) -> Runs:
    runs: Runs = {contender.name: {} for contender in contenders}
    for concurrency in arguments.concurrency:
        load = load_for(concurrency, arguments)
        for contender in contenders:
            contender.run(load_for(concurrency, arguments, warm_up=True), words)
        for number in range(arguments.runs):
            for contender in contenders:
                with others_busy(contender.child) as busy:
                    figures = contender.run(load, words)
                figures["others_cores"] = busy.cores
                runs[contender.name].setdefault(concurrency, []).append(figures)
                print(f"run {number + 1}, {concurrency} at once, {contender.name}: {json.dumps(figures)}", flush=True)
    return runs


def load_for(concurrency: int, arguments: argparse.Namespace, *, warm_up: bool = False) -> Load:
    per_stream = 1 if warm_up else arguments.requests_per_stream * (4 if concurrency == 1 else 1)
    return Load(
        concurrency=concurrency,
        requests=concurrency * per_stream,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
    )


def report(runs: Runs, idle: dict[str, float], arguments: argparse.Namespace) -> None:
    """Print the table, write the file."""
    middle = {name: {str(c): medians(figures) for c, figures in by.items()} for name, by in runs.items()}
    ratios = [
        {"of": ours, "to": theirs, "concurrency": concurrency, **ratio(runs[ours][concurrency], figures)}
        for ours, theirs in RATIOS
        if ours in runs and theirs in runs
        for concurrency, figures in runs[theirs].items()
    ]
    for line in table(middle, ratios):
        print(line)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    content = {
        "settings": settings,
        "versions": versions("mindserve", "openvino", "numpy") | rival_versions(),
        "idle_cores": idle,
    }
    print("written:", save("compare", content | {"medians": middle, "ratios": ratios, "runs": runs}))


def ratio(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Figures:
    """Medians of the ratios run by run: the two of a pair ran one right after the other."""
    pairs = list(zip(ours, theirs, strict=True))
    found = {"throughput": statistics.median(a["output_tokens_per_s"] / b["output_tokens_per_s"] for a, b in pairs)}
    if all("ttft_ms_median" in a and "ttft_ms_median" in b for a, b in pairs):
        found["ttft"] = statistics.median(a["ttft_ms_median"] / b["ttft_ms_median"] for a, b in pairs)
    return {name: round(value, 3) for name, value in found.items()}


def table(middle: dict[str, dict[str, Figures]], ratios: Iterable[Mapping[str, object]]) -> Iterable[str]:
    yield f"{'':16}{'at once':>8}{'tok/s':>10}{'TTFT ms':>10}{'p90':>10}{'ITL ms':>10}{'others':>10}"
    columns = ("output_tokens_per_s", "ttft_ms_median", "ttft_ms_p90", "itl_ms_median", "others_cores")
    for name, by in middle.items():
        for concurrency, figures in by.items():
            cells = "".join(f"{figures[column]:10.1f}" if column in figures else f"{'-':>10}" for column in columns)
            yield f"{name:16}{concurrency:>8}{cells}"
    for entry in ratios:
        yield "ratio " + json.dumps(entry)


if __name__ == "__main__":
    main()
