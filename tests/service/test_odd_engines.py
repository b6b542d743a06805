"""What the stream makes of events that a well-behaved engine may send, and of those that none should."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.errors import EngineFailure
from mindserve.output.assembler import ChoiceAssembler
from mindserve.output.plan import OutputPlan
from mindserve.service.observer import Outcome, RequestTimeline
from mindserve.service.stream import ChatStream, Choice, Generation
from mindserve.service.watchdog import Watchdog

from .house import TOKENIZER, ends, said


class Played:
    """A token stream whose steps are given."""

    def __init__(self, steps: list[list[TokenEvent]]) -> None:
        self._steps = steps
        self.cancelled: list[int | None] = []

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        for step in self._steps:
            yield step

    def cancel(self, index: int | None = None) -> None:
        self.cancelled.append(index)


def _event(
    index: int, text: str, reason: FinishReason | None = None, *, batch_size: int = 1, wait_us: int = 5
) -> TokenEvent:
    step = StepInfo(batch_size=batch_size, queue_wait_us=wait_us, time_s=1.0)
    return TokenEvent(index=index, token_ids=tuple(text.encode()), step=step, finish_reason=reason)


def _stream(*steps: list[TokenEvent], choices: int = 1, stop: tuple[str, ...] = ()) -> tuple[ChatStream, Played]:
    played = Played(list(steps))
    plan = OutputPlan(stop=stop)
    generation = Generation(
        tokens=played,
        choices=tuple(
            Choice(assembler=ChoiceAssembler(plan, tokenizer=TOKENIZER, index=index)) for index in range(choices)
        ),
        watchdog=Watchdog(token_timeout_s=10, e2e_deadline=asyncio.get_running_loop().time() + 10),
        timeline=RequestTimeline(request_id="r", submitted_s=0.5, prompt_tokens=3),
    )
    return ChatStream(generation, on_close=lambda stream: None), played


async def test_indices_ascend_whatever_order_the_engine_has() -> None:
    stream, _ = _stream(
        [_event(2, "c"), _event(0, "a"), _event(1, "b")],
        [
            _event(1, "", FinishReason.CANCELLED),
            _event(0, "d", FinishReason.LENGTH),
            _event(2, "e", FinishReason.LENGTH),
        ],
        choices=3,
    )
    steps = [step async for step in stream]
    assert [[event.index for event in step] for step in steps] == [[0, 1, 2], [0, 1, 2]]
    assert [said([event for step in steps for event in step], index) for index in range(3)] == ["ad", "b", "ce"]


async def test_figures_come_from_tokens_not_from_cancellations() -> None:
    cancelled = _event(0, "", FinishReason.CANCELLED, batch_size=0, wait_us=0)
    stream, played = _stream(
        [_event(0, "#", batch_size=4), _event(1, "b", batch_size=4)],
        [cancelled, _event(1, "c", FinishReason.LENGTH, batch_size=3)],
        choices=2,
        stop=("#",),
    )
    events = [event async for step in stream for event in step]
    assert played.cancelled == [0]
    assert ends(events) == [(0, "stop"), (1, "length")]
    usage = events[-1].usage
    assert usage is not None
    assert (usage.batch_sizes, usage.queue_waits_us) == ((4, 3), (5, 5))


async def test_steps_that_concern_nobody_any_more_are_passed_over() -> None:
    stream, _ = _stream(
        [_event(0, "#")],
        [_event(0, "x")],
        [],
        [_event(0, "", FinishReason.CANCELLED)],
        [_event(1, "b", FinishReason.LENGTH)],
        choices=2,
        stop=("#",),
    )
    steps = [step async for step in stream]
    assert [[event.index for event in step] for step in steps] == [[0], [1]]


async def test_an_engine_that_stops_talking_has_failed() -> None:
    stream, played = _stream([_event(0, "a")])
    await anext(stream)
    with pytest.raises(EngineFailure, match=r"Failed to get engine response\."):
        await anext(stream)
    assert played.cancelled == [None]
    assert stream.timeline.outcome is Outcome.FAILED


async def test_an_error_without_a_reason_is_still_an_error() -> None:
    stream, _ = _stream([_event(0, "", FinishReason.ERROR)])
    with pytest.raises(EngineFailure, match=r"Failed to get engine response\."):
        await anext(stream)
