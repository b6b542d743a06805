# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
"""Our policy as a router of Ray Serve; Serve makes it in the server's process, and asks it about every call."""

import asyncio
from collections import Counter
from functools import partial

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from mindserve.engine.replicas.affinity import Affinity
from mindserve.engine.replicas.wire import Route


class AffinityRouter(RequestRouter):
    """Sends a call where its `Route`, the first argument, says.

    It counts the requests of every replica itself, from its choice on: Serve's count lags behind a burst.
    """

    def initialize_state(self, **kwargs: object) -> None:
        """Serve's second constructor."""
        self._affinity = Affinity()
        self._chosen: dict[str, str] = {}
        """Request and replica."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replicas have come or gone."""
        super().update_replicas(replicas)
        self._affinity.keep([replica.replica_id.unique_id for replica in replicas])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas in the order in which Serve should try them; it passes over those that do not answer."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        route: Route = pending_request.args[0]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if route.to is not None:
            return [[by_name[route.to]]] if route.to in by_name else []
        taking_part = [name for name in route.among if name in by_name] or list(by_name)
        return [[by_name[name]] for name in self._ranked(taking_part, pending_request)]

    def _ranked(self, replicas: list[str], request: PendingRequest) -> list[str]:
        number = request.metadata.internal_request_id
        self._chosen.pop(number, None)  # it is there when Serve has to try again
        loads = Counter(self._chosen.values())
        ranked = self._affinity.rank(request.args[0].keys, {name: loads[name] for name in replicas})
        if ranked:
            self._chosen[number] = ranked[0]
            request.future.add_done_callback(partial(self._forget_cancelled, number))
        return ranked

    def _forget_cancelled(self, number: str, assignment: asyncio.Future[RunningReplica]) -> None:
        """Such a request has not been sent, so Serve will not tell of its end."""
        if assignment.cancelled():
            self._chosen.pop(number, None)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """The replica has the call."""
        route: Route = pending_request.args[0]
        if route.to is None:
            self._affinity.record(route.keys, replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The call is over, or the replica did not take it."""
        if self._chosen.get(internal_request_id) == replica_id.unique_id:
            del self._chosen[internal_request_id]
