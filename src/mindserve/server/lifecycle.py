"""From bound sockets to a drained stop: the planes' servers, their signals' meaning, the watch on the mode."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import uvicorn

from mindserve.errors import ConfigError
from mindserve.server.app import PlaneKind, build_app
from mindserve.server.protocol import BoundedProtocol, ConnectionLimits
from mindserve.server.reload import watch_mode
from mindserve.server.state import ServerState
from mindserve.server.tls import server_context
from mindserve.settings.values import Plane, ServerSettings

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 180
"""Idle time between two requests of a connection (contract: overload)."""
CLOSE_TIMEOUT_S = 5
"""For answers that are written when everything else has ended."""
BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One bound socket and the planes behind it."""

    plane: Plane
    kinds: tuple[PlaneKind, ...]
    socket: socket.socket
    tls: ssl.SSLContext | None

    @property
    def address(self) -> tuple[str, int]:
        """Where it really listens, port 0 resolved."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    @property
    def url(self) -> str:
        """Its base address."""
        host, port = self.address
        scheme = "http" if self.plane.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def bind(settings: ServerSettings) -> list[Listener]:
    """Take the addresses and read the TLS files before anything slow happens. Raises ConfigError."""
    groups: dict[tuple[str, int], list[PlaneKind]] = {}
    planes: dict[tuple[str, int], Plane] = {}
    for kind, plane in (
        (PlaneKind.SERVICE, settings.service),
        (PlaneKind.MANAGEMENT, settings.management),
        (PlaneKind.METRICS, settings.metrics),
    ):
        groups.setdefault((plane.host, plane.port), []).append(kind)
        planes.setdefault((plane.host, plane.port), plane)
    return [_listener(planes[address], tuple(kinds)) for address, kinds in groups.items()]


def _listener(plane: Plane, kinds: tuple[PlaneKind, ...]) -> Listener:
    tls = server_context(plane.tls) if plane.tls is not None else None
    return Listener(plane=plane, kinds=kinds, socket=_bound(plane), tls=tls)


def _bound(plane: Plane) -> socket.socket:
    family = socket.AF_INET6 if ":" in plane.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name the protocol.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((plane.host, plane.port))
    except OSError as e:
        bound.close()
        raise ConfigError(f"Cannot listen on {plane.host} port {plane.port}: {e.strerror}.") from e
    bound.setblocking(False)
    return bound


class PlaneServer(uvicorn.Server):
    """uvicorn's server without its own signal handlers: one place decides when all planes stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals alone."""
        yield


class Lifecycle:
    """Runs a server's planes until it is told to stop, then drains and closes."""

    def __init__(
        self, state: ServerState, listeners: list[Listener], *, connection_limits: ConnectionLimits | None = None
    ) -> None:
        self._state = state
        self._listeners = listeners
        self._limits = connection_limits or ConnectionLimits()
        self._servers: list[PlaneServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stop: asyncio.Future[float] | None = None
        state.request_stop = self.request_stop

    @property
    def urls(self) -> Mapping[PlaneKind, str]:
        """Base address of every plane."""
        return {kind: listener.url for listener in self._listeners for kind in listener.kinds}

    async def start(self) -> None:
        """Accept connections."""
        self._stop = asyncio.get_running_loop().create_future()
        self._servers = [self._server(listener) for listener in self._listeners]
        for server, listener in zip(self._servers, self._listeners, strict=True):
            self._tasks.append(asyncio.create_task(server.serve(sockets=[listener.socket])))
        for server in self._servers:
            await server.is_listening.wait()
        self._tasks.append(asyncio.create_task(watch_mode(self._state)))

    def request_stop(self, drain_timeout_s: float) -> None:
        """Refuse new requests from now on; a later call may shorten the time that running ones have."""
        self._state.is_stopping = True
        self._state.service.stop_admitting()
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(drain_timeout_s)

    async def run(self) -> None:
        """Until `request_stop`; then drain and close. The engine is the caller's."""
        assert self._stop is not None, "start comes first"
        drain_timeout_s = await self._stop
        log.info("stopping drain_timeout_s=%g running=%d", drain_timeout_s, self._state.service.admission.running)
        await self._state.service.close(drain_timeout_s=drain_timeout_s)
        self._state.drained.set()
        for server in self._servers:
            server.should_exit = True
        self._tasks.pop().cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _server(self, listener: Listener) -> PlaneServer:
        config = uvicorn.Config(
            build_app(self._state, listener.kinds),
            http=functools.partial(BoundedProtocol, limits=self._limits),  # pyright: ignore[reportArgumentType]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = listener.tls
        return PlaneServer(config)
