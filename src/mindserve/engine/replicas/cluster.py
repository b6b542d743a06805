# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
"""Ray: a cluster, ours or the operator's, and our deployment on it, called through Serve's handles."""

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig

from mindserve.engine.base import Engine
from mindserve.engine.replicas.fleet import lost
from mindserve.engine.replicas.replica import Replica
from mindserve.engine.replicas.sizing import Share, share, with_share
from mindserve.engine.replicas.wire import Greeting, Route
from mindserve.errors import ConfigError, MindserveError, ModelLoadError
from mindserve.settings.values import Settings

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0
"""For calls to one replica that are answered at once."""

HEALTH_CHECK_PERIOD_S = 2.0
HEALTH_CHECK_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 5.0

CONTROL_CALLS = 16
"""Calls that a replica takes beside the requests: streams of events, cancels, adapters."""

LARGEST_DIRECT_BYTES = 1 << 20
"""gRPC takes messages of 4 MB."""

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)


class ServedReplica(Replica):
    """What Serve makes on a node."""

    async def __init__(self, make: Callable[[Settings], Engine], settings: Settings) -> None:  # pyright: ignore
        context = ray.get_runtime_context()
        name = serve.get_replica_context().replica_id.unique_id
        super().__init__(make(settings), name=name, node=context.get_node_id())
        await self.start()

    async def answering(self, route: Route, server: str, number: int, request: bytes) -> AsyncGenerator[bool]:
        """`answer` as a stream, with one item at its end.

        A stream tells Serve at once that the replica has the call. Of a plain call over gRPC Serve learns that with the
        result only, and would have a request whose replica was lost answered by another one, behind our back.
        """
        await self.answer(route, server, number, request)
        yield True

    async def __del__(self) -> None:
        """Serve awaits it when it stops a replica."""
        await self.close()


class RayFleet:
    """The deployment of one server, named after it: a server that comes back replaces what it left behind."""

    def __init__(self, settings: Settings, make: Callable[[Settings], Engine]) -> None:
        self._settings = settings
        self._make = make
        self._name = _application_name(settings)
        self._owns_cluster = False
        self._explained = ""
        """What was said last."""
        self._handle: Any = None

    async def start(self) -> None:
        """Connect to the cluster, or start one on this machine, and deploy."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._owns_cluster = _connect()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        each = share(self._settings, nodes)
        serve.start(proxy_location="Disabled", logging_config=LOGGING)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.delete(self._name)
        application = self._deployment(each).bind(self._make, with_share(self._settings, each))
        target = serve.RunTarget(application, name=self._name, route_prefix=None)
        (self._handle,) = serve.run_many([target], wait_for_applications_running=False)

    def _deployment(self, each: Share) -> Any:
        return serve.deployment(
            ServedReplica,
            name="Replica",
            num_replicas=self._settings.engine.instances,
            max_ongoing_requests=self._settings.server.limits.max_link_num + CONTROL_CALLS,
            ray_actor_options=_actor_options(each),
            health_check_period_s=HEALTH_CHECK_PERIOD_S,
            health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
            graceful_shutdown_timeout_s=DRAIN_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.1,
            logging_config=LOGGING,
            request_router_config=RequestRouterConfig(
                request_router_class="mindserve.engine.replicas.router.AffinityRouter"
            ),
        )

    async def greet(self, server: str) -> list[Greeting]:
        """What all replicas that answer in time say. Raises ModelLoadError where Serve has given up making any."""
        try:
            greetings = self._method("hello").broadcast("hello", server)
            found = await greetings.results_async(timeout_s=GREETING_TIMEOUT_S, return_exceptions=True)
        except TimeoutError:
            return []
        except DeploymentUnavailableError:
            await asyncio.to_thread(self._explain)
            return []
        return [greeting for greeting in found if isinstance(greeting, Greeting)]

    def _explain(self) -> None:
        """Why there is no replica, as far as Serve knows: it waits for resources, or has given up."""
        application = serve.status().applications.get(self._name)
        if application is None:
            return
        reason = " ".join(deployment.message for deployment in application.deployments.values())
        if application.status == ApplicationStatus.DEPLOY_FAILED:
            raise ModelLoadError(f"Ray could not start the replicas: {reason}")
        if reason and reason != self._explained:
            log.warning("no replica is ready: %s", reason)
        self._explained = reason

    async def events(self, replica: str, server: str) -> AsyncGenerator[bytes]:
        """One replica's parcels."""
        response = self._method("events", is_stream=True).remote(Route(to=replica), server)
        try:
            async for parcel in response:
                yield parcel
        finally:
            response.cancel()

    async def answer(self, route: Route, server: str, number: int, request: bytes) -> None:
        """Lasts as long as the request."""
        method = self._method("answering", is_stream=True, is_large=len(request) > LARGEST_DIRECT_BYTES)
        response = method.remote(route, server, number, request)
        with _errors_of(response):
            async for _ in response:
                pass

    async def cancel(self, replica: str, server: str, number: int, index: int) -> None:
        """End one sequence."""
        await self._control("cancel", replica, server, number, index)

    async def load_adapter(self, replica: str, name: str, path: Path) -> None:
        """Raises what the replica's engine raises."""
        _raise(await self._call(self._method("load_adapter"), Route(to=replica), name, path))

    async def unload_adapter(self, replica: str, name: str) -> None:
        """Raises what the replica's engine raises."""
        _raise(await self._control("unload_adapter", replica, name))

    async def close(self) -> None:
        """Take the deployment away, and the cluster if we started it."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(RayError, RayServeException):
                serve.delete(self._name)
            self._handle = None
        if self._owns_cluster:
            ray.shutdown()
            self._owns_cluster = False

    def _method(self, name: str, *, is_stream: bool = False, is_large: bool = False) -> Any:
        """A method of the replicas. Calls go over gRPC, at half of the cost of Ray's own way, unless they are large."""
        return self._handle.options(
            method_name=name,
            stream=is_stream,
            _by_reference=is_large,
            request_serialization="pickle",
            response_serialization="pickle",
        )

    async def _control(self, method: str, replica: str, *arguments: object) -> Any:
        try:
            call = self._call(self._method(method), Route(to=replica), *arguments)
            return await asyncio.wait_for(call, CALL_TIMEOUT_S)
        except TimeoutError as error:
            raise lost() from error

    async def _call(self, method: Any, *arguments: object) -> Any:
        response = method.remote(*arguments)
        with _errors_of(response):
            return await response


@contextlib.contextmanager
def _errors_of(response: Any) -> Generator[None]:
    """Around the wait for a response. Raises EngineFailure for all the ways in which a replica can be lost."""
    try:
        yield
    except asyncio.CancelledError:
        response.cancel()
        raise
    except Exception as error:
        log.info("a call to a replica failed: %s", type(error).__name__)
        raise lost() from error


def _connect() -> bool:
    """To the cluster of RAY_ADDRESS, else to one that runs on this machine, else to a new one; True: it is ours."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address="auto", **options)
    except ConnectionError as error:
        if os.environ.get("RAY_ADDRESS"):
            raise ConfigError(f"No Ray cluster answers at {os.environ['RAY_ADDRESS']}", param="RAY_ADDRESS") from error
        _start_local(options)
        return True
    return False


def _start_local(options: dict[str, Any]) -> None:
    try:
        ray.init(address="local", include_dashboard=False, **options)
    except Exception as error:  # Ray raises no class of its own here
        raise ModelLoadError(f"Ray could not be started on this machine: {error}") from error


def _application_name(settings: Settings) -> str:
    plane = settings.server.service
    name = f"mindserve-{settings.model.name}-{socket.gethostname()}-{plane.port or os.getpid()}"
    return re.sub(r"[^\w.-]", "_", name)


def _actor_options(each: Share) -> dict[str, Any]:
    others = {name: count for name, count in each.devices.items() if name != "GPU"}
    return {"num_cpus": each.cpus, "num_gpus": each.devices.get("GPU", 0), "resources": others}


def _raise(failure: MindserveError | None) -> None:
    if failure is not None:
        raise failure
