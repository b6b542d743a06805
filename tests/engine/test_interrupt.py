"""A wait that others can end, beside all other ways in which a wait ends."""

import asyncio

import pytest

from mindserve.engine.supervised.interrupt import Interrupt


async def waiting(interrupt: Interrupt, event: asyncio.Event) -> str:
    with interrupt:
        await event.wait()
        return "came"
    return "was ended"


async def begin(interrupt: Interrupt) -> tuple[asyncio.Task[str], asyncio.Event]:
    event = asyncio.Event()
    task = asyncio.create_task(waiting(interrupt, event))
    await asyncio.sleep(0)
    return task, event


async def test_a_wait_ends_and_the_task_goes_on() -> None:
    interrupt = Interrupt()
    task, _ = await begin(interrupt)
    interrupt.use()
    interrupt.use()
    assert await task == "was ended"
    assert task.cancelling() == 0


async def test_nobody_waits() -> None:
    interrupt = Interrupt()
    interrupt.use()
    task, event = await begin(interrupt)
    event.set()
    assert await task == "came"
    interrupt.use()
    assert await waiting(interrupt, event) == "came"


async def test_what_the_wait_was_for_came_at_the_same_time() -> None:
    interrupt = Interrupt()
    task, event = await begin(interrupt)
    event.set()
    interrupt.use()
    assert await task == "was ended"
    assert task.cancelling() == 0


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_cancellation_wins(is_first: bool) -> None:
    interrupt = Interrupt()
    task, _ = await begin(interrupt)
    for end in (task.cancel, interrupt.use) if is_first else (interrupt.use, task.cancel):
        end()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_timeout_around_it_wins() -> None:
    interrupt = Interrupt()

    async def limited() -> str:
        async with asyncio.timeout(None) as limit:
            limit.reschedule(0)
            asyncio.get_running_loop().call_soon(interrupt.use)
            return await waiting(interrupt, asyncio.Event())

    with pytest.raises(TimeoutError):
        await limited()


async def test_an_error_in_the_block_stays() -> None:
    interrupt = Interrupt()

    async def failing() -> None:
        with interrupt:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("odd") from None

    task = asyncio.create_task(failing())
    await asyncio.sleep(0)
    interrupt.use()
    with pytest.raises(ValueError, match="odd"):
        await task
    assert task.cancelling() == 0
