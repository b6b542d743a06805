"""HTTP/1.1 connections with bounds: on headers, on patience, on clients that do not read.

uvicorn's own protocol waits forever for a request's end and for a client that takes nothing, and it has no limit on
headers. Everything slow is ended here, by closing the connection, so that no route has to think of it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_PIPELINED = 16
"""Requests that wait behind a running one before the connection is no longer read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may cost."""

    max_connections: int = 4096
    """Of one socket; more are answered 503 and closed."""
    max_header_bytes: int = 64 * 1024
    """Request line and headers."""
    max_url_bytes: int = 8 * 1024
    header_timeout_s: float = 30
    """From a connection's or a request's first moment to the end of its headers."""
    body_timeout_s: float = 300
    """From there to the end of the body, refused ones included."""
    write_timeout_s: float = 60
    """How long a client may leave its receive window full."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, bounded."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._header_bytes: int | None = 0
        """Bytes since the request began; None while a body or an answer is under way."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A connection begins: its first request must come in time."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "Service Unavailable", "Too many connections.")
        else:
            self._expect_within(self._limits.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; header bytes are counted."""
        if self._header_bytes is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        # A finished header block resets the count, so what is left are headers without an end.
        if (self._header_bytes or 0) > self._limits.max_header_bytes:
            self._refuse(431, "Request Header Fields Too Large", "The request's headers are too large.")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._field_bytes = 0
        self._expect_within(self._limits.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            raise ValueError("The request line is too long.")  # the parser turns it into a 400

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > self._limits.max_header_bytes:
            raise ValueError("The headers are too large.")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._header_bytes = None
        self._expect_within(self._limits.body_timeout_s)
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            # Whoever reads on hears when the client leaves; uvicorn would pause here.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """The request is there; what comes next is another one."""
        self._header_bytes = 0
        self._forget_read_timer()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client takes nothing."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._forget_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end. A request that runs hears of it even when others were pipelined behind it."""
        self._forget_read_timer()
        self._forget_write_timer()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _expect_within(self, timeout_s: float) -> None:
        self._forget_read_timer()
        self._read_timer = self.loop.call_later(timeout_s, self._close)

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _forget_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _forget_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Not HTTP, or beyond the limits."""
        self._refuse(400, "Bad Request", msg)

    def _refuse(self, status: int, phrase: str, message: str) -> None:
        """A last answer outside any application, in the ordinary error shape."""
        if self.transport.is_closing():
            return
        body = b'{"error":"%s","error_type":"%s"}' % (message.encode(), phrase.encode())
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
