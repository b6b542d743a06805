"""What runs, with a fleet whose calls do what the test says."""

import asyncio
from typing import Any

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams, StepInfo, TokenEvent
from mindserve.engine.replicas.requests import Requests
from mindserve.engine.replicas.wire import Route
from mindserve.errors import EngineFailure

STEP = StepInfo(batch_size=1, queue_wait_us=0, time_s=1.0)


class _Fleet:
    """Answers last until `finish` is set."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.ended: list[str] = []
        self.cancelled: list[tuple[str, int, int]] = []

    async def answer(self, route: Route, server: str, number: int, request: bytes) -> None:
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("finished")

    async def cancel(self, replica: str, server: str, number: int, index: int) -> None:
        self.cancelled.append((replica, number, index))


def _start(n: int = 1, mask: Any = None) -> tuple[_Fleet, Requests, Any]:
    fleet = _Fleet()
    requests = Requests(fleet, "server")  # type: ignore[arg-type]
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(), n=n, mask=mask)
    return fleet, requests, requests.start(request, Route(among=("a", "b")))


def _event(index: int = 0, *, reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(index=index, token_ids=(5,), step=STEP, finish_reason=reason)


async def _ends(stream: Any) -> list[tuple[FinishReason | None, type | None]]:
    events = [event async for events in stream for event in events]
    return [(event.finish_reason, type(event.error) if event.error else None) for event in events]


async def test_the_call_of_a_lost_replica_is_given_up() -> None:
    fleet, requests, stream = _start()
    requests.receive("a", [(0, []), (0, [_event()])], offset_s=0.0)
    await asyncio.sleep(0.01)
    requests.lose("b")
    requests.lose("a")
    assert await _ends(stream) == [(None, None), (FinishReason.ERROR, EngineFailure)]
    await asyncio.sleep(0.01)
    assert fleet.ended == ["cancelled"], "nobody may answer it elsewhere"
    requests.receive("a", [(0, [_event(reason=FinishReason.STOP)])], offset_s=0.0)


async def test_a_request_that_a_second_replica_takes_over_fails() -> None:
    fleet, requests, stream = _start()
    await asyncio.sleep(0.01)
    requests.receive("a", [(0, [])], offset_s=0.0)
    requests.receive("b", [(0, []), (0, [_event(reason=FinishReason.STOP)])], offset_s=0.0)
    assert await _ends(stream) == [(FinishReason.ERROR, EngineFailure)]
    await asyncio.sleep(0.01)
    assert fleet.ended == ["cancelled"]


async def test_one_sequence_is_cancelled_where_the_request_is() -> None:
    fleet, requests, stream = _start(n=3)
    stream.cancel(2)
    await asyncio.sleep(0.01)
    assert fleet.cancelled == []
    requests.receive("b", [(0, [])], offset_s=0.0)
    stream.cancel(1)
    await asyncio.sleep(0.01)
    assert sorted(fleet.cancelled) == [("b", 0, 1), ("b", 0, 2)]
    assert fleet.ended == []
    stream.cancel(0)
    await asyncio.sleep(0.01)
    assert fleet.ended == ["cancelled"]
    assert await _ends(stream) == [(FinishReason.CANCELLED, None)] * 3


async def test_what_cannot_be_sent_fails() -> None:
    _, _, stream = _start(mask=lambda: None)
    assert await _ends(stream) == [(FinishReason.ERROR, EngineFailure)]


async def test_close_ends_everything() -> None:
    fleet, requests, stream = _start(n=2)
    await asyncio.sleep(0.01)
    await requests.close()
    assert fleet.ended == ["cancelled"]
    assert await _ends(stream) == [(FinishReason.CANCELLED, None)] * 2
