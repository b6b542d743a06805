"""What a replica has to say to one server."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator

from mindserve.engine.base import TokenEvent, TokenStream
from mindserve.engine.replicas.wire import Steps

HEARTBEAT_S = 0.5
"""Longest silence of a replica that lives."""

PARCEL_INTERVAL_S = 0.002
"""Shortest time between parcels: engine steps that are shorter share one."""


PARCEL_TOKENS = 4096
"""Tokens that fill a parcel. With 20 log-probabilities each they are 1.5 MB, and gRPC takes messages of 4 MB."""


class Outbox:
    """Collects the events of all requests of one server until they are taken."""

    def __init__(self) -> None:
        self._steps: Steps = []
        self._has_steps = asyncio.Event()
        self._has_steps.set()  # the first parcel, though empty, comes at once
        self._is_closed = False
        self.streams: dict[int, TokenStream] = {}
        """Of the requests that run, by number."""

    def put(self, number: int, events: list[TokenEvent]) -> None:
        """What a step brought for a request."""
        self._steps.append((number, events))
        self._has_steps.set()

    async def flow(self, pack: Callable[[Steps], bytes]) -> AsyncGenerator[bytes]:
        """Parcels, one per step or heartbeat, until the outbox is closed."""
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            heartbeat = loop.call_later(HEARTBEAT_S, self._has_steps.set)
            await self._has_steps.wait()
            heartbeat.cancel()
            await asyncio.sleep(0)  # the other requests of the same step are put in the same turn of the loop
            self._has_steps.clear()
            steps, self._steps = self._steps, []
            for portion in portions(steps):
                yield pack(portion)
            await asyncio.sleep(PARCEL_INTERVAL_S)

    def close(self) -> None:
        """End the flow and all requests: nobody listens any more."""
        self._is_closed = True
        self._has_steps.set()
        for stream in self.streams.values():
            stream.cancel()


def portions(steps: Steps) -> Iterator[Steps]:
    """The steps in portions for one parcel each; nearly always that is all of them. A long step may be divided."""
    portion: Steps = []
    tokens = 0
    for number, events in steps:
        for few in _divided(events):
            portion.append((number, few))
            tokens += _tokens(few)
            if tokens >= PARCEL_TOKENS:
                yield portion
                portion, tokens = [], 0
    if portion or not steps:
        yield portion


def _divided(events: list[TokenEvent]) -> list[list[TokenEvent]]:
    """Each event by itself where together they fill a parcel: the end of a beam search with many hypotheses."""
    return [[event] for event in events] if _tokens(events) >= PARCEL_TOKENS else [events]


def _tokens(events: list[TokenEvent]) -> int:
    return sum(len(event.token_ids) for event in events)
