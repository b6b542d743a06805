"""A small HTTP server that serves, redirects, stalls and lies as a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class MediaServer:
    """What is served, by path, and what was asked for."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    hosts: list[str] = field(default_factory=list[str])
    """Host header of every request."""
    paths: list[str] = field(default_factory=list[str])
    connections: int = 0
    _open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no connection is open."""

    def file(self, path: str, content: bytes, *, status: str = "200 OK", headers: str = "") -> None:
        """Serve `content`; `headers`: further ones, each with its line end."""
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode()
        self.raw(path, head + content)

    def redirect(self, path: str, location: str, *, status: str = "302 Found") -> None:
        self.file(path, b"", status=status, headers=f"Location: {location}\r\n")

    def raw(self, path: str, answer: bytes) -> None:
        async def send(writer: asyncio.StreamWriter) -> None:
            writer.write(answer)

        self.answers[path] = send

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.idle.clear()
        self._open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            self.paths.append(path)
            self.hosts += [line.split(": ", 1)[1] for line in head if line.lower().startswith("host: ")]
            if path in self.answers:
                await self.answers[path](writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._open -= 1
            if not self._open:
                self.idle.set()


@asynccontextmanager
async def running_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[MediaServer]:
    """Listens on a free port of 127.0.0.1."""
    media = MediaServer()
    server = await asyncio.start_server(media.handle, "127.0.0.1", 0, ssl=tls)
    media.port = server.sockets[0].getsockname()[1]
    try:
        yield media
    finally:
        server.close()
