"""Streamed chat completions, many at once, read to their end or error."""

import asyncio
import json
import time
from dataclasses import dataclass
from itertools import count

import httpx

TIMEOUT_S = 300.0
numbers = count()


@dataclass(slots=True, kw_only=True)
class Stream:
    """One answer as it comes."""

    tokens: int = 0
    """Pieces of text so far."""
    finish_reason: str | None = None
    error: str | None = None
    ended_s: float | None = None
    is_complete: bool = False
    """`[DONE]` has come."""

    def take(self, data: str) -> None:
        """One event's data."""
        if data == "[DONE]":
            self.is_complete = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = str(event["error"])
        for choice in event.get("choices", []):
            self.tokens += bool(choice["delta"].get("content"))
            self.finish_reason = choice["finish_reason"] or self.finish_reason


class Client:
    """Asks one server."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)

    async def ask(self, stream: Stream, *, max_tokens: int) -> None:
        """Read an answer of `max_tokens` tokens into `stream`. Raises HTTPStatusError where it is refused."""
        number = next(numbers)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"{number}: tell me a long story about the number {number}."}],
            "stream": True,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        async with self._client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    stream.take(line.removeprefix("data: "))
        stream.ended_s = time.monotonic()

    async def ask_many(self, number: int, *, max_tokens: int) -> list[Stream]:
        """All at once, to their ends."""
        streams = [Stream() for _ in range(number)]
        await asyncio.gather(*[self.ask(stream, max_tokens=max_tokens) for stream in streams])
        return streams

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
