"""What the prefix cache is worth: time to the first token with a prompt's beginning seen before, and without.

usage: python -m bench.prefix [--prefix-tokens 1000] [--trials 9] [--turns 6]

Part one sends a long new prefix with a short question, then the same prefix with another question. Part two plays
conversations whose every turn repeats all turns before it.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.client import Answer, ChatClient
from bench.compare import MODEL
from bench.figures import ttft_s
from bench.prompts import Message, Words
from bench.results import save, versions
from bench.servers import start_mindserve

QUESTION_WORDS = 20
OUTPUT_TOKENS = 16


async def shared_prefix(client: ChatClient, words: Words, prefix_tokens: int) -> dict[str, float]:
    """One prefix, two questions."""
    prefix = words.text(prefix_tokens)

    def question() -> list[Message]:
        return [
            {"role": "system", "content": prefix},
            {"role": "user", "content": words.text(QUESTION_WORDS)},
        ]

    first, second = await client.ask(question()), await client.ask(question())
    return {
        "prompt_tokens": first.prompt_tokens,
        "cached_tokens": second.cached_tokens,
        "first_ttft_ms": round(1000 * ttft_s(first), 2),
        "second_ttft_ms": round(1000 * ttft_s(second), 2),
        "speedup": round(ttft_s(first) / ttft_s(second), 2),
    }


async def conversation(client: ChatClient, words: Words, turns: int) -> list[dict[str, float]]:
    """One conversation, turn after turn."""
    answers: list[Answer] = []
    for messages in words.multi_turn(turns=turns, words_per_turn=100):
        answers.append(await client.ask(messages))
    return [
        {
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
            "ttft_ms": round(1000 * ttft_s(answer), 2),
        }
        for answer in answers
    ]


async def measure(client: ChatClient, words: Words, arguments: argparse.Namespace) -> dict[str, Any]:
    await client.ask(words.messages(arguments.prefix_tokens))  # the first request of a process warms it up
    shared = [await shared_prefix(client, words, arguments.prefix_tokens) for _ in range(arguments.trials)]
    conversations = [await conversation(client, words, arguments.turns) for _ in range(3)]
    return {
        "median_speedup": statistics.median(trial["speedup"] for trial in shared),
        "shared_prefix": shared,
        "conversations": conversations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    words = Words(arguments.model, seed=arguments.seed)
    server = start_mindserve(arguments.model, log=Path(tempfile.mkdtemp(prefix="mindserve-bench-")) / "server.log")
    try:
        client = ChatClient(url=server.url, model=server.model_name(), max_tokens=OUTPUT_TOKENS)
        measured = asyncio.run(measure(client, words, arguments))
    finally:
        server.stop()
    print(f"time to first token, first / second time: {measured['median_speedup']} (median of {arguments.trials})")
    print("written:", save("prefix", {"versions": versions("mindserve", "openvino")} | measured))


if __name__ == "__main__":
    main()
