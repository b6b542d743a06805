"""The least that a streaming server can do: a Starlette app that sends prepared events, one by one.

usage: python -m bench.bare_app EVENTS_FILE PORT
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


def bare_app(events: list[bytes]) -> Starlette:
    """Answers every chat completion with `events`, after reading the request's body."""

    async def stream() -> AsyncIterator[bytes]:
        for event in events:
            yield event
            # Tokens come one at a time: without this the loop would send a whole answer in one write.
            await asyncio.sleep(0)

    async def complete(request: Request) -> Response:
        await request.body()
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/", ready)])


def main() -> None:
    parts = Path(sys.argv[1]).read_bytes().split(b"\n\n")
    app = bare_app([part + b"\n\n" for part in parts if part])
    uvicorn.run(app, port=int(sys.argv[2]), loop="uvloop", http="httptools", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
