import time

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.engine.replicas.stream import ReplicaStream
from mindserve.errors import EngineFailure


def _event(index: int = 0, *, time_s: float = 1.0, reason: FinishReason | None = None, **fields: object) -> TokenEvent:
    step = StepInfo(batch_size=3, queue_wait_us=9, time_s=time_s)
    return TokenEvent(index=index, token_ids=(7,), step=step, finish_reason=reason, **fields)  # type: ignore[arg-type]


class _Told:
    def __init__(self, count: int) -> None:
        self.indices: list[int] = []
        self.stream = ReplicaStream(count, self.indices.append)

    async def events(self) -> list[TokenEvent]:
        return [event async for events in self.stream for event in events]


async def test_times_are_translated_and_intervals_stay() -> None:
    told = _Told(1)
    told.stream.deliver([_event(time_s=10.0)], offset_s=500.0)
    told.stream.deliver([_event(time_s=10.25, reason=FinishReason.STOP)], offset_s=499.9)
    events = await told.events()
    assert [event.step.time_s for event in events] == [510.0, 510.25]
    assert {(event.step.batch_size, event.step.queue_wait_us) for event in events} == {(3, 9)}


async def test_events_of_one_step_share_it_again() -> None:
    told = _Told(2)
    late = [_event(index, time_s=2.0, reason=FinishReason.STOP) for index in range(2)]
    told.stream.deliver([_event(0), _event(1), *late], offset_s=0.0)
    events = await told.events()
    assert events[0].step is events[1].step
    assert events[2].step is events[3].step
    assert events[0].step != events[2].step


async def test_a_cancelled_sequence_ends_at_once_and_only_once() -> None:
    told = _Told(2)
    told.stream.deliver([_event(0, cached_tokens=32, cumulative_logprob=-1.5), _event(1)], offset_s=0.0)
    told.stream.cancel(0)
    told.stream.cancel(0)
    told.stream.deliver([_event(0), _event(1)], offset_s=0.0)
    told.stream.deliver([_event(0, reason=FinishReason.CANCELLED)], offset_s=0.0)
    told.stream.cancel()
    events = await told.events()
    assert told.indices == [0, 1]
    assert [(event.index, event.finish_reason) for event in events[2:]] == [
        (0, FinishReason.CANCELLED),
        (1, None),
        (1, FinishReason.CANCELLED),
    ]
    end = events[2]
    assert (end.token_ids, end.cached_tokens, end.cumulative_logprob) == ((), 32, -1.5)


async def test_a_lost_replica_fails_what_has_not_ended() -> None:
    told = _Told(2)
    told.stream.deliver([_event(0, reason=FinishReason.STOP)], offset_s=0.0)
    told.stream.fail(EngineFailure("lost"))
    told.stream.fail(EngineFailure("lost again"))
    events = await told.events()
    assert [(event.index, event.finish_reason) for event in events] == [
        (0, FinishReason.STOP),
        (1, FinishReason.ERROR),
    ]
    assert isinstance(events[1].error, EngineFailure)
    assert events[1].error.message == "lost"
    assert told.indices == []


async def test_time_does_not_go_backwards_at_an_end_made_here() -> None:
    told = _Told(1)
    ahead_s = time.perf_counter() + 100
    told.stream.deliver([_event(time_s=ahead_s)], offset_s=0.0)
    told.stream.cancel()
    assert [event.step.time_s for event in await told.events()] == [ahead_s, ahead_s]
