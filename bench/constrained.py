"""What a JSON schema costs: decode throughput with and without it, batch by batch in turn, in one process.

usage: python -m bench.constrained [--batch 8] [--tokens 64] [--rounds 16] [--temperature 1.0]

All sequences of a batch start together and end at the same length: unconstrained ones pass over their end tokens,
constrained ones write a list that is longer than that. The clock runs from the step in which the last sequence had its
first token to the last token. Besides the median of the rounds, the fastest rounds of each kind are compared: on a
machine that does other things too they tell more.
"""

import argparse
import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.compare import MODEL
from bench.prompts import Words
from bench.results import save, versions
from mindserve.engine.base import GenerateRequest, SamplingParams, TokenMask
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.output.grammar import GrammarCompiler
from mindserve.settings.values import EngineSettings, ModelSettings, Settings
from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer

PROMPT_WORDS = 30
DEFAULT_TOP_K = 1000
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "mood": {"enum": ["happy", "sad", "calm"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
            "note": {"type": "string"},
        },
        "required": ["name", "mood", "age", "tags", "note"],
        "additionalProperties": False,
    },
}


@asynccontextmanager
async def running(model: Path) -> AsyncIterator[NativeEngine]:
    """The engine in its fast mode."""
    settings = Settings(model=ModelSettings(name="model", path=model), engine=EngineSettings())
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class Load:
    """Batches of requests whose sequences all decode together."""

    def __init__(self, engine: NativeEngine, tokenizer: Tokenizer, words: Words, arguments: argparse.Namespace) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._words = words
        self._arguments = arguments
        self._number = 0

    async def tokens_per_s(self, mask: TokenMask | None) -> float:
        """Of one batch, after the step that began its last sequence."""
        times = await asyncio.gather(*(self._times(mask) for _ in range(self._arguments.batch)))
        begin = max(of_one[0] for of_one in times)
        later = [time for of_one in times for time in of_one if time > begin]
        return len(later) / (max(later) - begin)

    async def _times(self, mask: TokenMask | None) -> list[float]:
        """When the tokens of one request came."""
        self._number += 1
        text = f"<|im_start|>user\n{self._words.text(PROMPT_WORDS)}<|im_end|>\n<|im_start|>assistant\n"
        sampling = SamplingParams(
            temperature=self._arguments.temperature,
            top_k=DEFAULT_TOP_K,
            seed=self._number,
            max_tokens=self._arguments.tokens,
            ignore_eos=mask is None,
        )
        request = GenerateRequest(
            request_id=str(self._number),
            prompt_token_ids=self._tokenizer.encode(text),
            sampling=sampling,
            mask=mask,
        )
        events = [event async for events in self._engine.submit(request) for event in events]
        times = [event.step.time_s for event in events for _ in event.token_ids]
        if len(times) != self._arguments.tokens:
            raise RuntimeError(f"a sequence ended after {len(times)} tokens: {events[-1]}")
        return times


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Throughputs in turn, unconstrained and constrained, the order changing from round to round."""
    tokenizer = load_tokenizer(arguments.model)
    words = Words(arguments.model, seed=arguments.seed)
    async with running(arguments.model) as engine:
        info = engine.info
        compiler = GrammarCompiler(tokenizer, eos_token_ids=info.eos_token_ids, vocab_size=info.vocab_size)
        begin = perf_counter()
        mask = compiler.json_mask(SCHEMA)
        compile_s = perf_counter() - begin
        load = Load(engine, tokenizer, words, arguments)
        rounds = [await _round(load, mask, is_constrained_first=bool(i % 2)) for i in range(1 + arguments.rounds)][1:]
    costs = [1 - one["constrained"] / one["unconstrained"] for one in rounds]
    fastest = {name: max(one[name] for one in rounds) for name in rounds[0]}
    return {
        "compile_s": round(compile_s, 3),
        "median_cost": round(statistics.median(costs), 4),
        "fastest_cost": round(1 - fastest["constrained"] / fastest["unconstrained"], 4),
        "costs": [round(cost, 4) for cost in costs],
        "tokens_per_s": rounds,
    }


async def _round(load: Load, mask: TokenMask, *, is_constrained_first: bool) -> dict[str, float]:
    masks = {"unconstrained": None, "constrained": mask}
    names = sorted(masks) if is_constrained_first else sorted(masks, reverse=True)
    return {name: round(await load.tokens_per_s(masks[name]), 1) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    measured = asyncio.run(measure(arguments))
    facts = {"model": arguments.model.name, "batch": arguments.batch, "tokens": arguments.tokens, "schema": SCHEMA}
    print(
        f"decode throughput lost to a JSON schema: {measured['median_cost']:.1%} (median of {arguments.rounds} rounds)"
    )
    print(f"fastest rounds compared: {measured['fastest_cost']:.1%}")
    print(
        "written:",
        save("constrained", {"versions": versions("mindserve", "openvino", "llguidance")} | facts | measured),
    )


if __name__ == "__main__":
    main()
