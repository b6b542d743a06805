"""Streamed or not, token by token or several at once: the same answer, thoughts, calls and stop strings included."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mindserve.engine.scripted import Answer
from mindserve.output.events import OutputEvent
from mindserve.output.formats.base import ReasoningFormat
from mindserve.output.formats.hermes import HERMES
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart, ToolPlan
from mindserve.render import ChunkRenderer, Completion, Envelope

from ..e2e.fold import fold, parse_sse
from .house import ends, house

FRAGMENTS = [
    "<think>",
    "</think>",
    "hm ",
    "\n",
    "\u00e9\U0001f600",
    "<tool_call>\n",
    '{"name": "f", "arguments": {"x": 1}}',
    '<tool_call>\n{"name": "f", "arguments": {"x": "\u00e9"}}\n</tool_call>',
    "\n</tool_call>",
    "<tool",
    "STOP",
    " text ",
    "}",
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("".join)
THOUGHT = ThoughtPlan(format=ReasoningFormat(name="think"), start=ThoughtStart.IF_OPENED)
PLANS = st.builds(
    OutputPlan,
    stop=st.sampled_from([(), ("STOP",), ("hm \n", "xt")]),
    include_stop=st.booleans(),
    thought=st.sampled_from([None, THOUGHT]),
    tools=st.sampled_from([None, ToolPlan(format=HERMES)]),
)
ENVELOPE = Envelope(request_id="r", created=1, model="m")


async def _steps(
    texts: list[str], plan: OutputPlan, *, tokens_per_step: int, max_tokens: int
) -> list[list[OutputEvent]]:
    answer = Answer(sequences=tuple(texts), tokens_per_step=tokens_per_step, batch_size=1, queue_wait_us=0)
    async with house(answer, plan=plan) as at:
        return await at.steps(n=len(texts), max_tokens=max_tokens, logprobs=1)


def _full(steps: list[list[OutputEvent]]) -> dict[str, Any]:
    completion = Completion(ENVELOPE)
    for step in steps:
        completion.feed(step)
    answer: dict[str, Any] = json.loads(completion.render())
    del answer["prefill_time"], answer["decode_time_arr"]
    return _without_call_ids(answer)


def _streamed(steps: list[list[OutputEvent]]) -> dict[str, Any]:
    renderer = ChunkRenderer(ENVELOPE)
    stream = b"".join(renderer.render(step) for step in steps) + renderer.end()
    return _without_call_ids(fold(parse_sse(stream)))


def _without_call_ids(answer: dict[str, Any]) -> dict[str, Any]:
    for choice in answer["choices"]:
        for call in choice["message"]["tool_calls"]:
            assert call.pop("id").startswith("call_")
    return answer


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=2),
    plan=PLANS,
    tokens_per_step=st.integers(2, 7),
    max_tokens=st.sampled_from([3, 20, 200]),
)
def test_any_grouping_any_way_is_the_same_answer(
    texts: list[str], plan: OutputPlan, tokens_per_step: int, max_tokens: int
) -> None:
    async def run() -> None:
        single = await _steps(texts, plan, tokens_per_step=1, max_tokens=max_tokens)
        grouped = await _steps(texts, plan, tokens_per_step=tokens_per_step, max_tokens=max_tokens)
        expected = _full(single)
        assert json.dumps(_streamed(single)) == json.dumps(_full(single))
        assert json.dumps(_streamed(grouped)) == json.dumps(_full(grouped))
        assert _full(grouped) == expected
        for steps in (single, grouped):
            events = [event for step in steps for event in step]
            assert sorted(index for index, _ in ends(events)) == list(range(len(texts)))

    asyncio.run(run())
