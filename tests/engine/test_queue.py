"""The queue between an engine and a request's reader."""

import asyncio

import pytest

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.engine.queue import StepQueue

STEP = StepInfo(batch_size=1, queue_wait_us=0, time_s=1.0)


def _event(token_id: int, *, index: int = 0, ends: bool = False) -> TokenEvent:
    reason = FinishReason.STOP if ends else None
    return TokenEvent(index=index, token_ids=(token_id,), step=STEP, finish_reason=reason)


async def test_steps_come_in_order_and_one_by_one_until_every_sequence_has_ended() -> None:
    queue = StepQueue(2)
    queue.put([_event(1), _event(2, index=1, ends=True)])
    assert not queue.is_complete
    queue.put([_event(3, ends=True)])
    assert queue.is_complete
    steps = [step async for step in queue]
    assert [[event.token_ids for event in step] for step in steps] == [[(1,), (2,)], [(3,)]]


async def test_a_reader_waits_for_what_is_to_come() -> None:
    queue = StepQueue(1)
    reader = asyncio.create_task(queue.__anext__())
    await asyncio.sleep(0)
    assert not reader.done()
    queue.put([_event(1)])
    queue.put([_event(2, ends=True)])
    assert [event.token_ids for event in await reader] == [(1,)]
    assert [[event.token_ids for event in step] async for step in queue] == [[(2,)]]
    with pytest.raises(StopAsyncIteration):
        await anext(queue)


async def test_a_cancelled_reader_takes_nothing_with_it() -> None:
    queue = StepQueue(1)
    reader = asyncio.create_task(queue.__anext__())
    await asyncio.sleep(0)
    queue.put([_event(1)])
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    queue.put([_event(2, ends=True)])
    assert [[event.token_ids for event in step] async for step in queue] == [[(1,)], [(2,)]]
