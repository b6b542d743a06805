"""What the engine asks of the cluster that its replicas run on."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

from mindserve.engine.replicas.wire import Greeting, Route
from mindserve.errors import EngineFailure


def lost() -> EngineFailure:
    """What callers of a replica hear that is gone."""
    return EngineFailure("The replica that was answering has been lost. The request can be sent again.")


class Fleet(Protocol):
    """Replicas somewhere. Calls to a replica that is gone raise EngineFailure, within seconds."""

    async def start(self) -> None:
        """Have the replicas made; they load their models on. Raises ConfigError."""
        ...

    async def greet(self, server: str) -> list[Greeting]:
        """What all replicas that answer say; they learn that `server` lives. Raises ModelLoadError if none can be."""
        ...

    def events(self, replica: str, server: str) -> AsyncGenerator[bytes]:
        """One replica's parcels for `server`."""
        ...

    async def answer(self, route: Route, server: str, number: int, request: bytes) -> None:
        """Have a request answered; returns when its events are on their way. Cancelling it ends the request."""
        ...

    async def cancel(self, replica: str, server: str, number: int, index: int) -> None:
        """End one sequence of a request."""
        ...

    async def load_adapter(self, replica: str, name: str, path: Path) -> None:
        """Raises ModelLoadError or InvalidRequest."""
        ...

    async def unload_adapter(self, replica: str, name: str) -> None:
        """Raises InvalidRequest."""
        ...

    async def close(self) -> None:
        """End the replicas."""
        ...
