import asyncio

import pytest

from mindserve.errors import NotReady, Overloaded
from mindserve.service.admission import Admission


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _queue(admission: Admission, names: str, entered: list[str]) -> dict[str, asyncio.Task[None]]:
    async def enter(name: str) -> None:
        await admission.enter(name)
        entered.append(name)

    return {name: asyncio.create_task(enter(name)) for name in names}


async def test_requests_enter_in_the_order_they_came() -> None:
    admission, entered = Admission(1), list[str]()
    await admission.enter("1")
    _queue(admission, "ab", entered)
    await _settle()
    assert (entered, admission.running, admission.waiting) == ([], 1, 2)
    admission.leave()
    await _settle()
    assert (entered, admission.running, admission.waiting) == (["a"], 1, 1)
    admission.leave()
    await _settle()
    admission.leave()
    assert (entered, admission.running, admission.waiting) == (["a", "b"], 0, 0)


async def test_the_line_holds_twice_the_running_and_no_more() -> None:
    admission, entered = Admission(2), list[str]()
    await admission.enter("2")
    await admission.enter("3")
    tasks = _queue(admission, "abcd", entered)
    await _settle()
    with pytest.raises(Overloaded, match="Model is overloaded"):
        await admission.enter("4")
    for task in tasks.values():
        task.cancel()


async def test_a_newcomer_does_not_overtake_the_line() -> None:
    admission, entered = Admission(1), list[str]()
    await admission.enter("5")
    tasks = _queue(admission, "a", entered)
    await _settle()
    admission.leave()
    tasks |= _queue(admission, "b", entered)
    await _settle()
    assert entered == ["a"]
    admission.leave()
    await _settle()
    assert entered == ["a", "b"]


async def test_who_gives_up_waiting_leaves_no_gap() -> None:
    admission, entered = Admission(2), list[str]()
    await admission.enter("6")
    await admission.enter("7")
    tasks = _queue(admission, "abc", entered)
    await _settle()
    tasks["b"].cancel()
    await _settle()
    assert admission.waiting == 2
    admission.leave()
    admission.leave()
    await _settle()
    assert entered == ["a", "c"]
    assert (admission.running, admission.waiting) == (2, 0)


async def test_a_place_handed_to_a_cancelled_request_goes_on_to_the_next() -> None:
    admission, entered = Admission(1), list[str]()
    await admission.enter("8")
    tasks = _queue(admission, "ab", entered)
    await _settle()
    admission.leave()
    tasks["a"].cancel()
    await _settle()
    assert entered == ["b"]
    assert admission.running == 1
    admission.leave()
    assert admission.running == 0


async def test_close_turns_everyone_away() -> None:
    admission, entered = Admission(1), list[str]()
    await admission.enter("9")
    tasks = _queue(admission, "ab", entered)
    await _settle()
    admission.close()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert [type(result) for result in results] == [NotReady, NotReady]
    with pytest.raises(NotReady, match="The service has been stopped"):
        await admission.enter("10")
    admission.leave()
    assert (entered, admission.running) == ([], 0)


async def test_who_is_let_in_takes_a_place_beyond_the_limit_and_nobody_elses_turn() -> None:
    admission, entered = Admission(1), list[str]()
    await admission.enter("first")
    _queue(admission, "ab", entered)
    await _settle()
    admission.let_in("b")
    admission.let_in("nobody")
    await _settle()
    assert (entered, admission.running, admission.waiting) == (["b"], 2, 1)
    admission.leave()
    await _settle()
    assert (entered, admission.running, admission.waiting) == (["b"], 1, 1)
    admission.leave()
    await _settle()
    assert (entered, admission.running, admission.waiting) == (["b", "a"], 1, 0)
