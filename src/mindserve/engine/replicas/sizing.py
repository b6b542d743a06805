"""What a replica takes of its node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mindserve.settings.values import EngineKind, Settings

DEVICES = ("GPU", "NPU")
"""Ray's names of accelerators that vLLM runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What Ray reserves for one replica."""

    cpus: int
    devices: Mapping[str, int]
    """By Ray's name of the resource."""


def share(settings: Settings, nodes: Sequence[Mapping[str, float]]) -> Share:
    """One replica's share of a cluster whose nodes have these resources."""
    cpus = settings.engine.threads or cpus_per_replica(
        [int(node.get("CPU", 0)) for node in nodes], settings.engine.instances
    )
    return Share(cpus=cpus, devices=_devices(settings, nodes))


def cpus_per_replica(node_cpus: Sequence[int], instances: int) -> int:
    """The most cores that every one of `instances` replicas can have, each on one node; 0 where there are too few."""
    for cpus in range(max(node_cpus, default=0), 0, -1):
        if sum(node // cpus for node in node_cpus) >= instances:
            return cpus
    return 0


def _devices(settings: Settings, nodes: Sequence[Mapping[str, float]]) -> dict[str, int]:
    parallel = settings.engine.parallel
    # An engine that spans nodes reserves its devices itself.
    if settings.engine.kind is not EngineKind.VLLM or parallel.spans_nodes:
        return {}
    for name in DEVICES:
        if any(node.get(name, 0) for node in nodes):
            return {name: parallel.tensor * parallel.pipeline * parallel.data}
    return {}


def with_share(settings: Settings, share: Share) -> Settings:
    """Settings of one replica: it is one engine, and uses no more cores than it has."""
    threads = settings.engine.threads or max(1, share.cpus)
    return replace(settings, engine=replace(settings.engine, instances=1, threads=threads))
