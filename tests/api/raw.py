"""HTTP by hand: bytes on a socket, and answers read with a real parser."""

import http.client
import io
import socket
from typing import cast

from tests.api.running import PATH


class _Recorded:
    """What http.client needs of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *args: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def received(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    data = bytearray()
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionError:
            return bytes(data)
        if not part:
            return bytes(data)
        data += part


def answer(data: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer in `data`."""
    response = http.client.HTTPResponse(cast(socket.socket, _Recorded(data)))
    response.begin()
    return response.status, response.read()


def next_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer on an open connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def head(length: int | None, *, headers: str = "", path: str = PATH, method: str = "POST") -> bytes:
    """A request's head."""
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: test\r\n{size}{headers}\r\n".encode()


def posted(body: bytes, *, headers: str = "", path: str = PATH) -> bytes:
    """A whole request."""
    return head(len(body), headers=headers, path=path) + body


def chunked(body: bytes, size: int) -> bytes:
    """`body` in chunked transfer encoding."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
