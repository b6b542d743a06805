"""The open stream of one replica's events."""

import time
from collections.abc import AsyncGenerator

from mindserve.engine.base import EngineStats
from mindserve.engine.replicas.clock import Clock
from mindserve.engine.replicas.requests import Requests
from mindserve.engine.replicas.wire import ParcelCodec

SILENCE_S = 15.0
"""A replica that has not sent even a heartbeat for so long is given up, whatever Ray knows of it."""


class Link:
    """Takes parcels from one replica as long as it lives."""

    def __init__(self, replica: str, requests: Requests) -> None:
        self.replica = replica
        self._requests = requests
        self._codec = ParcelCodec()
        self._clock = Clock()
        self._heard_s = time.perf_counter()
        self.stats = EngineStats()
        """As of the last parcel."""
        self.is_healthy = False
        """Whether the replica says that it can answer; not before its first parcel."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been heard for too long."""
        return time.perf_counter() - self._heard_s > SILENCE_S

    async def run(self, parcels: AsyncGenerator[bytes]) -> None:
        """Returns or raises when the replica is gone."""
        try:
            async for data in parcels:
                self._receive(data)
        finally:
            await parcels.aclose()

    def _receive(self, data: bytes) -> None:
        parcel = self._codec.decode(data)
        self._heard_s = time.perf_counter()
        self._clock.observe(sent_s=parcel.sent_s, received_s=self._heard_s)
        self.stats, self.is_healthy = parcel.stats, parcel.is_healthy
        self._requests.receive(self.replica, parcel.steps, offset_s=self._clock.offset_s)
