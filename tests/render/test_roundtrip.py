"""Streams and full answers say the same, whatever the events are and however they are grouped."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mindserve.output.events import ChoiceUsage, LogprobCandidate, LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.render import DONE, ChunkRenderer, Completion, Envelope

from ..e2e.fold import fold, parse_sse

ENVELOPE = Envelope(request_id="id-1", created=1, model="m")
TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
LOGPROB = st.floats(-9999, 0, allow_nan=False)
CANDIDATE = st.builds(
    lambda token, logprob: LogprobCandidate(token=token, logprob=logprob, bytes=tuple(token.encode())), TEXT, LOGPROB
)
ENTRY = st.builds(
    lambda token, logprob, top: LogprobEntry(token=token, logprob=logprob, bytes=tuple(token.encode()), top=tuple(top)),
    TEXT,
    LOGPROB,
    st.lists(CANDIDATE, max_size=2),
)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[ToolCallDelta, ...]]:
    """Deltas of up to two calls, in order, in pieces."""
    pieces: list[tuple[ToolCallDelta, ...]] = []
    for index in range(draw(st.integers(0, 2))):
        pieces.append((ToolCallDelta(index=index, id=f"call_{index}", name=draw(TEXT)),))
        pieces += [(ToolCallDelta(index=index, arguments=draw(TEXT)),) for _ in range(draw(st.integers(0, 2)))]
    return pieces


@st.composite
def choice_events(draw: st.DrawFn, index: int, has_logprobs: bool) -> list[OutputEvent]:
    """One choice from its first event to its end."""
    count = draw(st.integers(1, 4))
    pieces = draw(calls())
    events: list[OutputEvent] = []
    for position in range(count):
        is_last = position == count - 1
        here = pieces if is_last else [pieces.pop(0)] if pieces and draw(st.booleans()) else []
        events.append(
            OutputEvent(
                index=index,
                content=draw(TEXT),
                reasoning=draw(st.none() | TEXT),
                tool_calls=tuple(delta for piece in here for delta in piece),
                logprobs=(draw(ENTRY),) if has_logprobs else None,
                finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])) if is_last else None,
                usage=usage(count) if is_last else None,
            )
        )
    return events


def usage(tokens: int) -> ChoiceUsage:
    """Figures for so many tokens; sequences of one request share them."""
    return ChoiceUsage(
        prompt_tokens=11,
        cached_tokens=4,
        completion_tokens=tokens,
        reasoning_tokens=3,
        batch_sizes=tuple(range(tokens)),
        queue_waits_us=tuple(range(100, 100 + tokens)),
        prefill_ms=5,
        decode_ms=tuple(range(tokens - 1)),
    )


@st.composite
def answers(draw: st.DrawFn) -> list[list[OutputEvent]]:
    """Steps of an answer with one to three choices."""
    has_logprobs = draw(st.booleans())
    queues = [draw(choice_events(index, has_logprobs)) for index in range(draw(st.integers(1, 3)))]
    steps: list[list[OutputEvent]] = []
    while any(queues):
        steps.append([queue.pop(0) for queue in queues for _ in range(min(len(queue), draw(st.integers(1, 2))))])
    return steps


def _streamed(steps: list[list[OutputEvent]]) -> bytes:
    renderer = ChunkRenderer(ENVELOPE)
    return b"".join(renderer.render(step) for step in steps) + renderer.end()


def _full(steps: list[list[OutputEvent]]) -> dict[str, Any]:
    completion = Completion(ENVELOPE)
    for step in steps:
        completion.feed(step)
    return json.loads(completion.render())


@settings(max_examples=60)
@given(answers())
def test_the_stream_adds_up_to_the_full_answer(steps: list[list[OutputEvent]]) -> None:
    full = _full(steps)
    assert isinstance(full.pop("prefill_time"), int)
    assert len(full.pop("decode_time_arr")) == len(full["usage"]["batch_size"]) - 1
    folded = fold(parse_sse(_streamed(steps)))
    assert json.dumps(folded) == json.dumps(full)


@settings(max_examples=60)
@given(answers())
def test_grouping_into_steps_changes_no_byte(steps: list[list[OutputEvent]]) -> None:
    one_by_one = [[event] for step in steps for event in step]
    assert _streamed(one_by_one) == _streamed(steps)
    assert _full(one_by_one) == _full(steps)
    assert _streamed(steps).count(DONE) == 1
