"""`POST /v1/chat/completions`. A bare ASGI application: every layer here would be paid for on each token."""

import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from mindserve.contract.bodies import is_request_id
from mindserve.contract.request import ChatRequest
from mindserve.contract.validate import parse_request
from mindserve.errors import DuplicateRequest, NotReady
from mindserve.render import ChunkRenderer, Completion, Envelope, ranks_choices
from mindserve.server.asgi import ClientGone, ClientWatch, header, parsed, read_body, send_json, send_whole
from mindserve.server.errors import error_event, error_reply, note_unexpected, row_of
from mindserve.server.state import ServerState
from mindserve.service import ChatStream
from mindserve.settings.values import ApiMode

SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """The answering half of one HTTP request: knows what has been sent, so that a failure takes the right form."""

    send: Send
    mode: ApiMode
    created: int
    request_id: str = ""
    mark: tuple[bytes, bytes] = field(default_factory=lambda: (b"requestuuid", b"%032x" % random.getrandbits(128)))
    """A header of every answer (contract: headers); it also tells apart requests that chose the same `req-id`."""
    has_started: bool = False

    async def start_stream(self) -> None:
        """Status line and headers of a stream."""
        self.has_started = True
        await self.send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, self.mark]})

    def write(self, events: bytes) -> Awaitable[None]:
        """One step's events, as they are ready."""
        return self.send({"type": "http.response.body", "body": events, "more_body": True})

    def end_stream(self, events: bytes) -> Awaitable[None]:
        """The last events."""
        return self.send({"type": "http.response.body", "body": events})

    async def fail(self, error: Exception) -> None:
        """An error answer, or the error event of a stream that has begun."""
        note_unexpected(error, request_id=self.request_id)
        if self.has_started:
            await self.end_stream(error_event(error, self.mode))
            return
        reply = error_reply(error, self.mode)
        await send_whole(self.send, status=reply.status, headers=[*reply.headers, self.mark], body=reply.body)


class ChatEndpoint:
    """The route's ASGI application."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(send=send, mode=self._state.mode, created=int(time.time()))
        try:
            request = await self._read(scope, receive, exchange.mode)
            async with ClientWatch(receive):
                await self._answer(request, exchange, wanted_id=_wanted_id(scope))
        except ClientGone:
            return
        except Exception as error:
            self._state.metrics.count_error(row_of(error).status)
            await exchange.fail(error)

    async def _read(self, scope: Scope, receive: Receive, mode: ApiMode) -> ChatRequest:
        if self._state.is_stopping:
            raise NotReady("The service has been stopped")
        body = await read_body(scope, receive, max_bytes=self._state.settings.server.limits.max_body_bytes)
        context = self._state.contexts[mode]
        return await parsed(body, lambda body: parse_request(body, context))

    async def _answer(self, request: ChatRequest, exchange: Exchange, *, wanted_id: str | None) -> None:
        stream = await self._open(request, exchange, wanted_id=wanted_id)
        try:
            envelope = Envelope(
                request_id=exchange.request_id, created=exchange.created, model=request.model, mode=exchange.mode
            )
            if request.stream:
                await self._stream(stream, exchange, ChunkRenderer(envelope, include_usage=request.include_usage))
            else:
                await self._complete(stream, exchange, Completion(envelope, best_first=ranks_choices(request)))
        finally:
            stream.close()

    async def _open(self, request: ChatRequest, exchange: Exchange, *, wanted_id: str | None) -> ChatStream:
        if wanted_id is not None:
            exchange.request_id = wanted_id
            return await self._state.service.open(request, request_id=wanted_id)
        while True:
            exchange.request_id = self._state.request_ids.next(exchange.mode)
            try:
                return await self._state.service.open(request, request_id=exchange.request_id)
            except DuplicateRequest:
                continue  # a client chose an id of our own kind; ours must not fail for it

    async def _stream(self, stream: ChatStream, exchange: Exchange, renderer: ChunkRenderer) -> None:
        await exchange.start_stream()
        async for events in stream:
            if chunk := renderer.render(events):
                await exchange.write(chunk)
        await exchange.end_stream(renderer.end())

    async def _complete(self, stream: ChatStream, exchange: Exchange, completion: Completion) -> None:
        async for events in stream:
            completion.feed(events)
        body = completion.render()
        exchange.has_started = True
        await send_json(exchange.send, body, headers=[exchange.mark])


def _wanted_id(scope: Scope) -> str | None:
    """The `req-id` header, when it is fit to be an id; others are ignored."""
    value = (header(scope, b"req-id") or b"").decode("latin-1")
    return value if is_request_id(value) else None
