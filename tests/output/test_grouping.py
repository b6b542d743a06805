"""The answer is a function of the text: how it is cut into tokens changes nothing, whatever nonsense it is."""

import json
import random
from dataclasses import replace

import pytest

from mindserve.engine.base import FinishReason
from mindserve.output.formats.base import CallStart, Literal, Many, Maybe, Space
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import TOOL_FORMATS
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart, ToolPlan
from tests.output.cases import load_cases
from tests.output.play import fold, play
from tests.output.vocabulary import PieceTokenizer

FORMATS = sorted({format_.name for format_ in TOOL_FORMATS.values()})
GENERAL = [
    "f",
    " ",
    "\n",
    "天",
    "{}",
    '{"name": "f", "arguments": {}}',
    '{"name": "f", "parameters": {}}',
    '{"x": 1}',
    '"',
    "<",
]


def fragments(format_) -> list[str]:
    """The format's own texts, halves of them, and whole calls of the contract's cases."""

    def literals(parts):
        for part in parts:
            if isinstance(part, Literal):
                yield part.text
            elif isinstance(part, Maybe | Many):
                yield from literals(part.parts)
            elif isinstance(part, Space):
                yield part.written

    starts: tuple[CallStart, ...] = format_.starts
    own = [text for start in starts for text in (start.marker, *literals(start.parts)) if text]
    calls = [case.text for case in load_cases() if case.plan.tools and case.plan.tools.format is format_]
    return [*own, *(text[: len(text) // 2] for text in own), *random.Random(1).sample(calls, min(len(calls), 6))]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_pieces_do_not_matter(name, finish):
    format_, rng = TOOL_FORMATS[name], random.Random(name)
    vocabulary = [*GENERAL, *fragments(format_), "<think>", "</think>", "stop"]
    for _ in range(150):
        text = "".join(rng.choices(vocabulary, k=rng.randint(1, 12)))
        plan = random_plan(rng, format_)
        if finish is FinishReason.LENGTH:  # wins over a stop string on the same token, so the cut would matter
            plan = replace(plan, stop=())
        whole = answer(plan, [text], finish)
        for _ in range(3):
            places = range(1, len(text))
            cuts = sorted(rng.sample(places, min(len(places), rng.choice((1, 3, 10, 1000)))))
            pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert answer(plan, pieces, finish) == whole, (pieces, plan)
        for _, arguments in whole.calls:
            json.loads(arguments)


def random_plan(rng: random.Random, format_) -> OutputPlan:
    start = rng.choice([None, ThoughtStart.ASSUMED, ThoughtStart.IF_OPENED])
    return OutputPlan(
        stop=rng.choice([(), ("stop",), ("stop", "\n\n", "st"), ("}\n", "<think>")]),
        include_stop=rng.random() < 0.3,
        thought=ThoughtPlan(format=THINK_TAGS, start=start, is_split=rng.random() < 0.8) if start else None,
        tools=ToolPlan(format=format_) if rng.random() < 0.8 else None,
    )


def answer(plan: OutputPlan, pieces: list[str], finish: FinishReason):
    tokenizer = PieceTokenizer(pieces, special=["<|end|>"])
    tokens = [tokenizer.token_id(piece) for piece in pieces]
    end = tokenizer.token_id("<|end|>") if finish is FinishReason.STOP else None
    return fold(play(plan, tokenizer, tokens, finish=finish, end_token=end)[0])
