"""What several answers to one prompt cost: n=8 against n=1 until the first tokens, beams against one greedy answer.

usage: python -m bench.siblings [--n 8] [--beams 4] [--rounds 9]

All ways take turns in one process. Prompts are new, so nothing comes from the prefix cache. A beam search says nothing
before its end, so its decode time is its whole time without that of the same prompt's first greedy token.
"""

import argparse
import asyncio
import statistics
from pathlib import Path

from bench.compare import MODEL
from bench.embedded import ask, greedy, start
from bench.prompts import Words
from bench.results import save, versions
from mindserve.engine.base import SamplingParams
from mindserve.engine.native.engine import NativeEngine

PREFILL_LIMIT, BEAM_LIMIT = 1.3, 4.5


async def one_round(engine: NativeEngine, words: Words, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of every way."""
    prompt, tokens = arguments.prompt_tokens, arguments.output_tokens
    drawn = SamplingParams(temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
    one = await ask(engine, words.token_ids(prompt), drawn)
    several = await ask(engine, words.token_ids(prompt), drawn, n=arguments.n)
    single = await ask(engine, words.token_ids(prompt), greedy(tokens))
    search = await ask(engine, words.token_ids(prompt), greedy(tokens), n=arguments.beams, use_beam_search=True)
    return {
        "prefill_1_s": one.first_s,
        "prefill_n_s": several.first_s,
        "greedy_token_s": single.rest_s / (tokens - 1),
        "beam_token_s": (search.arrivals_s[-1] - search.sent_s - single.first_s) / (tokens - 1),
    }


async def measure(words: Words, arguments: argparse.Namespace) -> list[dict[str, float]]:
    engine = await start(arguments.model)
    try:
        await one_round(engine, words, arguments)  # warms up
        return [await one_round(engine, words, arguments) for _ in range(arguments.rounds)]
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    rounds = asyncio.run(measure(Words(arguments.model, seed=arguments.seed), arguments))
    prefill = statistics.median(each["prefill_n_s"] / each["prefill_1_s"] for each in rounds)
    beam = statistics.median(each["beam_token_s"] / each["greedy_token_s"] for each in rounds)
    print(f"prefill with n={arguments.n} / n=1: {prefill:.2f} (limit {PREFILL_LIMIT})")
    print(f"{arguments.beams} beams / greedy, per token: {beam:.2f} (limit {BEAM_LIMIT})")
    content = {"versions": versions("mindserve", "openvino"), "prefill_ratio": prefill, "beam_ratio": beam}
    print("written:", save("siblings", content | {"rounds": rounds}))


if __name__ == "__main__":
    main()
