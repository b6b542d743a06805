"""The few things that the routes do with ASGI directly: bodies in, bytes out, noticing that the client left."""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from mindserve.errors import PayloadTooLarge

Headers = Iterable[tuple[bytes, bytes]]
LARGE_BODY_BYTES = 64 * 1024
"""From here on parsing would hold up the event loop's streams."""
Parsed = TypeVar("Parsed")
JSON_TYPE = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The connection ended before the answer did."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A request header's value; `name` in lower case. The last one counts."""
    found = None
    for key, value in scope["headers"]:
        if key == name:
            found = value
    return found


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """The whole body. Raises PayloadTooLarge as soon as it is known to be too large, ClientGone."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def parsed(body: bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
    """What `parse` makes of a body: at once when it is small, else in a thread, for other requests' sake."""
    return parse(body) if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(parse, body)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    size_mb = max_bytes / (1024 * 1024)
    return PayloadTooLarge(f"Request body too large. Maximum allowed size is {size_mb:g}MB.")


async def send_whole(send: Send, *, status: int, headers: Headers, body: bytes) -> None:
    """A complete answer; the headers must carry the length."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, body: bytes, *, headers: Headers = ()) -> None:
    """A 200 with a JSON document."""
    length = (b"content-length", str(len(body)).encode())
    await send_whole(send, status=200, headers=[JSON_TYPE, length, *headers], body=body)


class ClientWatch:
    """Ends the block when the client's connection ends: what runs inside is cancelled, the block raises ClientGone.

    Enter it after the body was read, for it takes over `receive`.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False

    async def __aenter__(self) -> None:
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._cancellations = owner.cancelling()
        self._watcher = asyncio.create_task(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        was_mine = self._is_gone and self._owner.uncancel() <= self._cancellations
        if was_mine and isinstance(error, asyncio.CancelledError):
            raise ClientGone from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._owner.cancel()
