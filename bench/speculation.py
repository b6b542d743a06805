"""Prompt-lookup speculation: the same answers, and how much sooner.

usage: python -m bench.speculation [--draft 8] [--parts speed,exact] [--exact-prompts 200] [--rounds 3]

`speed`: one stream at a time, an engine with drafts and one without in turn, in one process, on prompts whose answers
copy (editing, quoting) and on prose. `exact`: greedy answers with drafts against those without, in f32 and in the
default precision; where they differ, how far the two best tokens were apart there.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.compare import MODEL
from bench.embedded import Result, ask, greedy, start
from bench.perplexity import TEXT
from bench.results import save, versions
from mindserve.engine.native.engine import NativeEngine
from mindserve.settings.values import Precision
from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
EDITS = (
    ("Repeat the following text exactly, but write SHE wherever it says she:\n\n{}", "Here is the text:\n\n{}"),
    ("Correct the mistakes in this text and give it back as a whole:\n\n{}", "Here is the corrected text:\n\n{}"),
    ("Quote the most important sentences of this text, word by word:\n\n{}", 'The text says, word by word:\n\n"{}'),
)
"""Questions, and how their answers begin: a small model left alone talks about the text instead of copying it."""
BEGUN_CHARACTERS = 50
"""What the answer's beginning already has of the text."""
SUBJECTS = ("a lighthouse", "winter bread", "two brothers", "a lost map", "the first train", "bees", "a long journey")
PROSE = ("Write a short story about {}.", "Explain to a child what is special about {}.", "Describe {} in detail.")
LEAST_TOKENS = 16
"""Shorter answers say nothing about speed."""
COPY_LIMIT, PROSE_LIMIT = 1.6, 0.97
CONCURRENCY = 3
"""Answers at once where only their tokens count; few, so that drafts find room."""


def paragraphs(characters: int) -> list[str]:
    """Of data/text.txt, joined to pieces of about a length."""
    pieces = [""]
    for paragraph in TEXT.read_text().split("\n\n"):
        if len(pieces[-1]) > characters:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]}\n\n{paragraph}".strip()
    return pieces


def copying(characters: int = 500) -> list[str]:
    """Prompts whose answers repeat much of their text."""
    return [
        CHAT.format(question.format(text)) + answer.format(text[:BEGUN_CHARACTERS].rpartition(" ")[0])
        for text, (question, answer) in product(paragraphs(characters), EDITS)
    ]


def prose() -> list[str]:
    """Prompts whose answers are new."""
    return [CHAT.format(form.format(subject)) for subject, form in product(SUBJECTS, PROSE)]


async def seconds_per_token(engine: NativeEngine, prompt: list[int], max_tokens: int) -> float | None:
    """Of the answer after its first token; None where it is short."""
    result = await ask(engine, prompt, greedy(max_tokens, ignore_eos=False))
    count = len(result.token_ids) - 1
    return result.rest_s / count if count >= LEAST_TOKENS else None


async def speed(engines: Sequence[NativeEngine], asked: list[list[int]], arguments: argparse.Namespace) -> list[float]:
    """Time per token without drafts / with them, prompt by prompt; of each the best of several rounds."""
    ratios: list[float] = []
    for prompt in asked:
        times: list[list[float]] = [[], []]
        for i in range(2 * arguments.rounds):
            which = (i + i // 2) % 2  # off on on off off on ...
            time = await seconds_per_token(engines[which], prompt, arguments.max_tokens)
            times[which] += [] if time is None else [time]
        if all(times):
            ratios.append(min(times[0]) / min(times[1]))
    return ratios


async def answers(engine: NativeEngine, asked: list[list[int]], max_tokens: int) -> list[Result]:
    """All answers, a few at once."""
    places = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: list[int]) -> Result:
        async with places:
            return await ask(engine, prompt, greedy(max_tokens))

    return await asyncio.gather(*[one(prompt) for prompt in asked])


async def compare(engines: Sequence[NativeEngine], asked: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """How many answers differ, where for the first time, and by how little the best token won there."""
    plain, drafted = [await answers(engine, asked, max_tokens) for engine in engines]
    differences: list[dict[str, float]] = []
    for prompt, one, other in zip(asked, plain, drafted, strict=True):
        if one.token_ids != other.token_ids:
            place = next(i for i, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=True)) if a != b)
            known = await ask(engines[0], prompt + one.token_ids[:place], greedy(1, logprobs=2))
            (_, best), (_, second) = known.logprobs[0].top
            differences.append({"token": place, "margin": round(best - second, 4)})
    stats = engines[1].stats()
    return {
        "prompts": len(asked),
        "tokens": sum(len(one.token_ids) for one in plain),
        "drafted": stats.draft_tokens,
        "accepted": stats.accepted_tokens,
        "differences": differences,
    }


async def both(arguments: argparse.Namespace, precision: Precision) -> list[NativeEngine]:
    """An engine without drafts and one with them."""
    return [await start(arguments.model, precision=precision, max_ngram_draft=n) for n in (0, arguments.draft)]


async def measure_speed(tokenizer: Tokenizer, arguments: argparse.Namespace) -> dict[str, Any]:
    engines = await both(arguments, Precision.AUTO)
    found: dict[str, Any] = {}
    for name, texts in (("copying", copying()), ("prose", prose())):
        asked = [tokenizer.encode(text) for text in texts[: arguments.speed_prompts]]
        before = engines[1].stats()
        ratios = await speed(engines, asked, arguments)
        after = engines[1].stats()
        found[name] = {
            "speedup": statistics.median(ratios),
            "mean_speedup": statistics.fmean(ratios),
            "drafted": after.draft_tokens - before.draft_tokens,
            "accepted": after.accepted_tokens - before.accepted_tokens,
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        print(name, found[name])
    for engine in engines:
        await engine.close()
    return found


async def measure_exactness(tokenizer: Tokenizer, arguments: argparse.Namespace) -> dict[str, Any]:
    texts = [*copying(150), *prose(), *copying(300), *copying(700)]
    asked = [tokenizer.encode(text) for text in texts[: arguments.exact_prompts]]
    found: dict[str, Any] = {}
    for precision in (Precision.F32, Precision.AUTO):
        engines = await both(arguments, precision)
        found[precision.value] = await compare(engines, asked, arguments.exact_tokens)
        print(precision.value, found[precision.value])
        for engine in engines:
            await engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="speed,exact")
    parser.add_argument("--draft", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--speed-prompts", type=int, default=12)
    parser.add_argument("--exact-prompts", type=int, default=200)
    parser.add_argument("--exact-tokens", type=int, default=32)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    content: dict[str, Any] = {"versions": versions("mindserve", "openvino")}
    parts = arguments.parts.split(",")
    if "speed" in parts:
        content["speed"] = asyncio.run(measure_speed(tokenizer, arguments))
    if "exact" in parts:
        content["exact"] = asyncio.run(measure_exactness(tokenizer, arguments))
    print("written:", save("speculation", content))


if __name__ == "__main__":
    main()
