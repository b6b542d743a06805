"""Reading bodies and noticing clients that leave, without a socket."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from mindserve.errors import PayloadTooLarge
from mindserve.server.asgi import ClientGone, ClientWatch, header, parsed, read_body


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


def body_of(*chunks: bytes, leaves: bool = False):
    """A `receive` that hands out these chunks."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if leaves:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False
    pending = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(pending)

    return receive


@pytest.mark.parametrize("chunks", [(b"abc",), (b"a", b"", b"bc"), (b"", b"abc")])
async def test_a_body_in_any_pieces(chunks: Iterable[bytes]) -> None:
    assert await read_body(scope(), body_of(*chunks), max_bytes=3) == b"abc"


async def test_a_body_is_refused_at_the_first_chunk_too_many() -> None:
    receive = body_of(b"ab", b"cd", b"ef")
    with pytest.raises(PayloadTooLarge):
        await read_body(scope(), receive, max_bytes=3)
    assert (await receive())["body"] == b"ef"


async def test_a_declared_length_is_refused_without_reading() -> None:
    receive = body_of(b"ab")
    with pytest.raises(PayloadTooLarge):
        await read_body(scope((b"content-length", b"4")), receive, max_bytes=3)
    assert (await receive())["body"] == b"ab"


async def test_a_client_that_leaves_while_sending() -> None:
    with pytest.raises(ClientGone):
        await read_body(scope(), body_of(b"a", leaves=True), max_bytes=3)


def test_the_last_header_counts() -> None:
    assert header(scope((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), b"a") == b"3"
    assert header(scope(), b"a") is None


@pytest.mark.parametrize("size", [10, 100_000])
async def test_parsing_gives_results_and_errors_at_any_size(size: int) -> None:
    def fail(body: bytes) -> int:
        raise ValueError("no")

    assert await parsed(b"x" * size, len) == size
    with pytest.raises(ValueError, match="no"):
        await parsed(b"x" * size, fail)


async def test_leaving_cancels_the_block_and_nothing_else() -> None:
    gone = asyncio.Event()
    was_cancelled = False

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    asyncio.get_running_loop().call_later(0.01, gone.set)
    with pytest.raises(ClientGone):
        async with ClientWatch(receive):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                was_cancelled = True
                raise
    assert was_cancelled
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def never() -> dict[str, Any]:
        return await asyncio.Future()

    async def watched() -> None:
        async with ClientWatch(never):
            await asyncio.sleep(60)

    task = asyncio.create_task(watched())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_and_results_pass_through() -> None:
    async def never() -> dict[str, Any]:
        return await asyncio.Future()

    with pytest.raises(KeyError):
        async with ClientWatch(never):
            raise KeyError
    async with ClientWatch(never):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 2
