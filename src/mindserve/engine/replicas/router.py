# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
"""Our policy as a router of Ray Serve; Serve makes it in the server's process, and asks for every call."""

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from mindserve.engine.replicas.affinity import Affinity
from mindserve.engine.replicas.wire import Route


class AffinityRouter(RequestRouter):
    """Sends a call where its `Route`, the first argument, says."""

    def initialize_state(self, **kwargs: object) -> None:
        """Serve's second constructor."""
        self._affinity = Affinity()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replicas have come or gone."""
        super().update_replicas(replicas)
        self._affinity.keep([replica.replica_id.unique_id for replica in replicas])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas in the order in which Serve should try them; those that are full are passed over."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        route: Route = pending_request.args[0]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if route.to is not None:
            return [[by_name[route.to]]] if route.to in by_name else []
        loads = {name: self._load(by_name[name], known) for name, known in route.loads.items() if name in by_name}
        return [[by_name[name]] for name in self._affinity.rank(route.keys, loads)] or [candidate_replicas]

    def _load(self, replica: RunningReplica, known: int) -> int:
        """Calls on a replica. Serve counts every one at once, but forgets its count after some seconds without any."""
        counted = self.replica_queue_len_cache.get(replica.replica_id)
        return known if counted is None else counted

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """The replica has the call."""
        self._affinity.record(pending_request.args[0].keys, replica_id.unique_id)
