"""A load client for any OpenAI-compatible server. It reads raw bytes and looks at little more than where an event
begins, so that on a small machine it takes next to nothing from the server that it measures.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

EVENT_START = b"\ndata: "
"""JSON escapes line ends: within a stream this can only be the beginning of an event."""
FIRST_TEXT = re.compile(rb'"(?:content|reasoning_content)": ?"[^"]')
PROMPT_TOKENS = re.compile(rb'"prompt_tokens": ?(\d+)')
CACHED_TOKENS = re.compile(rb'"cached_tokens": ?(\d+)')
COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


class RequestFailed(Exception):
    """The server answered with something else than a complete stream."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one request brought; times by `time.perf_counter()`."""

    sent_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    arrivals_s: list[float] = field(default_factory=list[float])
    """When each piece of output came, the first text first."""


Ask = Callable[[Any], Awaitable[Answer]]


class StreamReader(asyncio.Protocol):
    """Sends one request and takes the time of every event until the server closes the connection."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self.answer = Answer(sent_s=time.perf_counter())
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.answer.sent_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        known = max(0, len(self._received) - len(EVENT_START) + 1)
        self._received += data
        if self.answer.arrivals_s:
            self.answer.arrivals_s += [now] * self._received.count(EVENT_START, known)
        elif FIRST_TEXT.search(self._received):
            self.answer.arrivals_s.append(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._finish(exc)

    def _finish(self, exc: Exception | None) -> None:
        received = bytes(self._received)
        if exc is not None or b" 200 " not in received[:16] or b"data: [DONE]" not in received:
            self.done.set_exception(RequestFailed(received[-400:].decode(errors="replace") or repr(exc)))
            return
        self.answer.prompt_tokens = _last_number(PROMPT_TOKENS, received)
        self.answer.cached_tokens = _last_number(CACHED_TOKENS, received)
        self.answer.output_tokens = _last_number(COMPLETION_TOKENS, received)
        self.done.set_result(None)


def _last_number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.findall(text)
    return int(found[-1]) if found else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatClient:
    """Streamed chat completions of a fixed length from one server."""

    url: str
    model: str
    max_tokens: int = 64
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields added to every request, instead of the defaults where they say otherwise."""

    async def ask(self, messages: Sequence[dict[str, Any]]) -> Answer:
        """Send the conversation, wait for the whole answer. Raises RequestFailed."""
        address = urlsplit(self.url)
        assert address.hostname is not None and address.port is not None
        request = self._request(messages, address.netloc)
        _, reader = await asyncio.get_running_loop().create_connection(
            lambda: StreamReader(request), address.hostname, address.port
        )
        await reader.done
        return reader.answer

    def _request(self, messages: Sequence[dict[str, Any]], host: str) -> bytes:
        fields = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return http_post(host, fields | self.extra)


def http_post(host: str, fields: dict[str, Any]) -> bytes:
    """One chat completion request on a connection of its own, as bytes."""
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def closed_loop(ask: Ask, prompts: Sequence[Any], *, concurrency: int) -> tuple[list[Answer], float]:
    """Ask all prompts, `concurrency` at a time, the next as soon as one is answered. Returns answers and seconds."""
    waiting = iter(prompts)
    answers: list[Answer] = []

    async def stream() -> None:
        for prompt in waiting:
            answers.append(await ask(prompt))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(stream())
    return answers, time.perf_counter() - started
