"""Cancelling, readers that leave or are slow, many requests at once."""

import asyncio

from tests.engine.contract.harness import Check, Running, Traits
from tests.engine.contract.reading import Reading, read

from mindserve.engine.base import FinishReason


async def one_sequence_can_be_cancelled(its: Running) -> None:
    request = its.request(n=2, temperature=1.0, max_tokens=its.traits.long_answer)
    stream = its.engine.submit(request)
    steps = aiter(stream)
    seen = await anext(steps)
    stream.cancel(1)
    stream.cancel(1)
    rest = [event async for events in steps for event in events]
    reading = Reading(events=seen + rest)
    assert reading.reason(0) is FinishReason.LENGTH
    assert len(reading.tokens(0)) == its.traits.long_answer
    assert reading.reason(1) is FinishReason.CANCELLED
    assert len(reading.tokens(1)) < its.traits.long_answer
    assert [event.index for event in reading.events if event.finish_reason] in ([0, 1], [1, 0])
    stream.cancel(0)


async def all_sequences_can_be_cancelled(its: Running) -> None:
    for is_read in (True, False):
        request = its.request(n=3, temperature=1.0, max_tokens=its.traits.long_answer)
        stream = its.engine.submit(request)
        seen = await anext(aiter(stream)) if is_read else []
        for _ in range(3):
            stream.cancel()
        reading = Reading(events=seen + [event async for events in stream for event in events])
        for index in range(3):
            assert reading.reason(index) is FinishReason.CANCELLED
        assert len([event for event in reading.events if event.finish_reason]) == 3
        stream.cancel()
        await its.rests()


async def a_reader_may_leave(its: Running) -> None:
    """What it has cancelled and never reads hinders nobody."""
    for _ in range(3):
        stream = its.engine.submit(its.request(max_tokens=its.traits.long_answer))
        await anext(aiter(stream))
        stream.cancel()
        its.engine.submit(its.request(max_tokens=its.traits.long_answer)).cancel()
    assert len((await its.answer()).tokens()) == 8
    await its.rests()


async def a_reader_may_be_slow(its: Running) -> None:
    request = its.request(salt=10, max_tokens=20)
    expected = (await its.answer(salt=10, max_tokens=20)).tokens()
    stream = its.engine.submit(request)
    await its.answer(salt=11, max_tokens=20)
    assert (await read(stream, request, its.engine.info)).tokens() == expected


async def many_requests_run_together(its: Running) -> None:
    options = [{"salt": i, "length": 3 + i, "n": 1 + i % 3, "max_tokens": 4 + i} for i in range(24)]
    readings = await asyncio.gather(*[its.answer(temperature=1.0, **one) for one in options])
    for reading, one in zip(readings, options, strict=True):
        for index in range(one["n"]):
            assert len(reading.tokens(index)) == one["max_tokens"]
    assert max(event.step.batch_size for reading in readings for event in reading.events) > 1
    assert max(event.step.batch_size for reading in readings for event in reading.events) <= len(options)


def checks(traits: Traits) -> list[Check]:
    """What every engine is put through."""
    return [
        one_sequence_can_be_cancelled,
        all_sequences_can_be_cancelled,
        a_reader_may_leave,
        a_reader_may_be_slow,
        many_requests_run_together,
    ]
