"""What `open` refuses, in which order requests run, and how they are stopped."""

import asyncio
from pathlib import Path

import pytest

from mindserve.contract.request import MediaPart, Message, PartKind
from mindserve.engine.scripted import Answer
from mindserve.errors import (
    DuplicateRequest,
    GenerationTimeout,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Overloaded,
    PromptTooLong,
)
from mindserve.service import Outcome
from mindserve.settings.values import Limits

from .house import MAY_FETCH, House, ends, house, said


def _assert_nothing_left(at: House) -> None:
    assert (at.service.admission.running, at.service.admission.waiting) == (0, 0)
    assert len(at.records.arrived) == len(at.records.finished)
    assert at.engine.stats().running == 0


async def _settle() -> None:
    await asyncio.sleep(0.02)


async def test_the_request_reaches_the_engine() -> None:
    async with house(Answer(text="x")) as at:
        await at.events("hello", request_id="my-id", n=2, seed=7)
        (request,) = at.engine.requests
    assert (request.request_id, request.n, request.adapter, request.sampling.seed) == ("my-id", 2, None, 7)
    assert bytes(request.prompt_token_ids) == b"hello"


@pytest.mark.parametrize(
    ("text", "error"), [("refuse", InvalidRequest), ("x" * 2049, PromptTooLong), ("", InvalidRequest)]
)
async def test_what_the_prompt_makes_impossible_is_refused_before_the_engine(text: str, error: type[Exception]) -> None:
    async with house() as at:
        with pytest.raises(error):
            await at.open(text)
        assert not at.engine.requests
        assert [timeline.outcome for timeline in at.records.finished] == [Outcome.REFUSED]
        _assert_nothing_left(at)
        assert said(await at.events("after")) != ""


async def test_a_bug_before_the_engine_is_a_failure_and_leaves_nothing() -> None:
    async with house() as at:
        with pytest.raises(AssertionError):
            await at.open(messages=(Message(role="user", content=None),))
        assert [timeline.outcome for timeline in at.records.finished] == [Outcome.FAILED]
        _assert_nothing_left(at)


async def test_what_the_engine_refuses_is_refused_and_leaves_nothing() -> None:
    async with house(Answer(refuse="not now")) as at:
        with pytest.raises(NotReady, match="not now"):
            await at.open()
        _assert_nothing_left(at)


async def test_a_running_id_is_refused_and_free_again_afterwards() -> None:
    async with house(Answer(hang_after=0)) as at:
        stream = await at.open(request_id="same")
        with pytest.raises(DuplicateRequest) as error:
            await at.open(request_id="same")
        assert error.value.message == "Failed to enqueue inferRequest. Runtime request has been used before."
        stream.close()
        (await at.open(request_id="same")).close()
        _assert_nothing_left(at)


async def test_slow_downloads_hold_up_no_plain_prompt() -> None:
    picture = Message(role="user", content=(MediaPart(kind=PartKind.IMAGE_URL, source="slow"),))
    async with house(Answer(text="x")) as at:
        slow = [asyncio.create_task(at.open(request_id=str(i), messages=(picture,))) for i in range(8)]
        await _settle()
        plain = await at.open(request_id="plain")
        assert said([event async for step in plain for event in step]) == "x"
        assert not any(task.done() for task in slow)
        MAY_FETCH.set()
        for stream in await asyncio.gather(*slow):
            assert said([event async for step in stream for event in step]) == "x"
        MAY_FETCH.clear()


async def test_requests_beyond_the_limits_wait_in_order_or_are_turned_away() -> None:
    async with house(Answer(hang_after=0), limits=Limits(max_link_num=1)) as at:
        running = await at.open("0", request_id="0")
        waiting = [asyncio.create_task(at.open(str(i), request_id=str(i))) for i in (1, 2)]
        await _settle()
        with pytest.raises(Overloaded):
            await at.open(request_id="3")
        running.close()
        (await waiting[0]).close()
        (await waiting[1]).close()
        assert [request.request_id for request in at.engine.requests] == ["0", "1", "2"]
        _assert_nothing_left(at)


async def test_who_leaves_the_line_leaves_nothing() -> None:
    async with house(Answer(hang_after=0), limits=Limits(max_link_num=1)) as at:
        running = await at.open(request_id="0")
        waiting = asyncio.create_task(at.open(request_id="1"))
        await _settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert at.records.finished[0].outcome is Outcome.ABANDONED
        running.close()
        _assert_nothing_left(at)


async def test_waiting_counts_towards_the_e2e_timeout() -> None:
    async with house(Answer(hang_after=0), limits=Limits(max_link_num=1, e2e_timeout_s=0.05)) as at:
        running = await at.open(request_id="0")
        with pytest.raises(GenerationTimeout, match="server e2eTimeout"):
            await at.open(request_id="1")
        running.close()
        _assert_nothing_left(at)


async def test_stop_ends_a_running_request_with_what_it_has() -> None:
    async with house(Answer(text="abcd", hang_after=2)) as at:
        assert at.service.stop("nobody") is False
        stream = await at.open(request_id="r1", n=2)
        events = [*await anext(stream), *await anext(stream)]
        assert at.service.stop("r1") is True
        events += [event async for step in stream for event in step]
        assert ends(events) == [(0, "stop"), (1, "stop")]
        assert [said(events, index) for index in (0, 1)] == ["ab", "ab"]
        assert [event.usage.completion_tokens for event in events if event.usage] == [2, 2]
        assert at.records.finished[0].outcome is Outcome.STOPPED
        _assert_nothing_left(at)


async def test_stop_reaches_a_request_that_still_waits() -> None:
    async with house(Answer(hang_after=0), limits=Limits(max_link_num=1)) as at:
        running = await at.open(request_id="0")
        waiting = asyncio.create_task(at.open(request_id="1"))
        await _settle()
        assert at.service.stop("1") is True
        events = [event async for step in await waiting for event in step]
        assert (said(events), ends(events)) == ("", [(0, "stop")])
        assert at.service.admission.running == 1  # it did not have to wait for the other's end
        running.close()
        _assert_nothing_left(at)


async def test_adapters_are_models_of_their_own() -> None:
    async with house(Answer(text="x")) as at:
        await at.service.load_adapter("poet", Path("poet"))
        assert at.service.adapters == {"poet"}
        await at.events(model="poet")
        assert at.engine.requests[-1].adapter == "poet"
        with pytest.raises(InvalidRequest, match="in use"):
            await at.service.load_adapter("poet", Path("other"))
        with pytest.raises(InvalidRequest, match="in use"):
            await at.service.load_adapter("m", Path("other"))
        await at.service.unload_adapter("poet")
        assert at.service.adapters == frozenset()
        with pytest.raises(ModelNotFound):
            await at.service.unload_adapter("poet")
        with pytest.raises(InvalidRequest):
            await at.open(model="poet")


async def test_stop_admitting_lets_running_requests_finish() -> None:
    async with house(Answer(text="abc"), step_interval_s=0.005) as at:
        stream = await at.open()
        at.service.stop_admitting()
        with pytest.raises(NotReady, match="The service has been stopped"):
            await at.open(request_id="late")
        events = [event async for step in stream for event in step]
        assert (said(events), ends(events)) == ("abc", [(0, "stop")])


async def test_close_waits_for_running_requests() -> None:
    async with house(Answer(text="abc"), step_interval_s=0.005) as at:
        reader = asyncio.create_task(at.events())
        await _settle()
        await at.service.close(drain_timeout_s=5)
        assert said(await reader) == "abc"


async def test_close_ends_what_does_not_finish_in_time() -> None:
    async with house(Answer(text="abc", hang_after=1), limits=Limits(max_link_num=1)) as at:
        reader = asyncio.create_task(at.events(request_id="running"))
        waiting = asyncio.create_task(at.events(request_id="waiting"))
        await _settle()
        await at.service.close(drain_timeout_s=0.01)
        events = await reader
        assert (said(events), ends(events)) == ("a", [(0, "stop")])
        with pytest.raises(NotReady):
            await waiting
        _assert_nothing_left(at)


async def test_the_timeline_tells_the_whole_story() -> None:
    async with house(Answer(sequences=("ab", "c"), cached_tokens=2)) as at:
        await at.events("hello", n=2)
        (timeline,) = at.records.finished
    assert timeline.outcome is Outcome.FINISHED
    assert (timeline.prompt_tokens, timeline.cached_tokens, timeline.completion_tokens) == (5, 2, 5)
    assert len(timeline.decode_ms) == 2
    moments = [
        timeline.arrived_s,
        timeline.admitted_s,
        timeline.submitted_s,
        timeline.first_token_s,
        timeline.finished_s,
    ]
    known = [moment for moment in moments if moment is not None]
    assert len(known) == 5
    assert known == sorted(known)
