"""What running streams feel of a long prompt: their gaps between tokens while it is read, against the quiet before.

usage: python -m bench.long_prompt [--streams 8] [--prompt-tokens 4096] [--rounds 5] [--step-stretch 2.25]

Each round starts the streams, lets them run in quiet, sends one long new prompt, and cuts the streams' arrivals at the
moments of its sending and of its first token. The ratio is p99 of the gaps meanwhile to the median gap of the quiet.
"""

import argparse
import asyncio
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.compare import MODEL
from bench.embedded import Result, ask, greedy, start
from bench.figures import percentile
from bench.prompts import Words
from bench.results import save, versions
from mindserve.engine.native.engine import NativeEngine

STREAM_PROMPT_TOKENS = 128
LIMIT = 3.0
"""What the ratio shall not exceed."""


async def one_round(engine: NativeEngine, words: Words, arguments: argparse.Namespace) -> dict[str, float]:
    """Quiet, then a long prompt."""
    sampling = greedy(arguments.stream_tokens)
    streams = [
        asyncio.create_task(ask(engine, words.token_ids(STREAM_PROMPT_TOKENS), sampling))
        for _ in range(arguments.streams)
    ]
    await asyncio.sleep(arguments.quiet_s)
    long = await ask(engine, words.token_ids(arguments.prompt_tokens), greedy(1))
    results = await asyncio.gather(*streams)
    quiet = [gap for result in results for gap in gaps(result, long.sent_s - arguments.quiet_s / 2, long.sent_s)]
    meanwhile = [gap for result in results for gap in gaps(result, long.sent_s, long.arrivals_s[0])]
    if min(result.arrivals_s[-1] for result in results) < long.arrivals_s[0]:
        raise SystemExit("the streams ended before the prompt was read: give them more --stream-tokens")
    return {
        "quiet_median_ms": round(1000 * statistics.median(quiet), 3),
        "quiet_p99_ms": round(1000 * percentile(quiet, 0.99), 3),
        "meanwhile_median_ms": round(1000 * statistics.median(meanwhile), 3),
        "meanwhile_p99_ms": round(1000 * percentile(meanwhile, 0.99), 3),
        "ratio": round(percentile(meanwhile, 0.99) / statistics.median(quiet), 3),
        "median_ratio": round(statistics.median(meanwhile) / statistics.median(quiet), 3),
        "ttft_s": round(long.first_s, 3),
        "gaps": len(meanwhile),
    }


def gaps(result: Result, begin_s: float, end_s: float) -> list[float]:
    """Gaps that end within a time."""
    arrivals = result.arrivals_s
    return [b - a for a, b in pairwise(arrivals) if begin_s < b <= end_s]


async def measure(words: Words, arguments: argparse.Namespace) -> list[dict[str, float]]:
    engine = await start(arguments.model, step_stretch=arguments.step_stretch)
    try:
        await ask(engine, words.token_ids(STREAM_PROMPT_TOKENS), greedy(4))  # the first request warms up
        rounds: list[dict[str, float]] = []
        for _ in range(arguments.rounds):
            rounds.append(await one_round(engine, words, arguments))
            print(rounds[-1])
        return rounds
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--stream-tokens", type=int, default=600)
    parser.add_argument("--quiet-s", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-stretch", type=float, default=2.25)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    rounds = asyncio.run(measure(Words(arguments.model, seed=arguments.seed), arguments))
    ratio = statistics.median(each["ratio"] for each in rounds)
    content: dict[str, Any] = {"versions": versions("mindserve", "openvino"), "limit": LIMIT, "ratio": ratio}
    print(f"p99 while a prompt of {arguments.prompt_tokens} is read / quiet median: {ratio} (limit {LIMIT})")
    print("written:", save("long_prompt", content | {"rounds": rounds}))


if __name__ == "__main__":
    main()
