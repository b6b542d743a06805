from pathlib import Path

import pytest

from mindserve.engine.replicas.sizing import Share, cpus_per_replica, share, with_share
from mindserve.settings.values import EngineKind, EngineSettings, ModelSettings, ParallelSettings, Settings


def _settings(**engine: object) -> Settings:
    return Settings(
        model=ModelSettings(name="m", path=Path("m")),
        engine=EngineSettings(**engine),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("nodes", "instances", "cpus"),
    [
        ([2, 2], 2, 2),
        ([2], 2, 1),
        ([4, 12], 2, 6),
        ([4, 12], 4, 4),
        ([16, 16, 16], 2, 16),
        ([8], 3, 2),
        ([1], 2, 0),
        ([], 1, 0),
    ],
)
def test_every_replica_gets_as_many_cores_as_all_can_have(nodes: list[int], instances: int, cpus: int) -> None:
    assert cpus_per_replica(nodes, instances) == cpus


def test_threads_that_are_set_count() -> None:
    settings = _settings(instances=2, threads=3)
    mine = share(settings, [{"CPU": 16.0}])
    assert mine == Share(cpus=3, devices={})
    assert with_share(settings, mine).engine.threads == 3


def test_a_replica_is_one_engine_on_its_own_cores() -> None:
    settings = _settings(instances=2)
    engine = with_share(settings, share(settings, [{"CPU": 8.0}])).engine
    assert (engine.instances, engine.threads) == (1, 4)
    assert with_share(settings, share(settings, [{"CPU": 1.0}])).engine.threads == 1


@pytest.mark.parametrize("device", ["GPU", "NPU"])
def test_vllm_takes_devices_where_there_are_some(device: str) -> None:
    parallel = ParallelSettings(tensor=2, pipeline=2)
    settings = _settings(kind=EngineKind.VLLM, instances=2, parallel=parallel)
    assert share(settings, [{"CPU": 64.0, device: 8.0}]).devices == {device: 4}
    assert share(settings, [{"CPU": 64.0}]).devices == {}


def test_an_engine_that_spans_nodes_reserves_its_devices_itself() -> None:
    parallel = ParallelSettings(tensor=8, pipeline=2, spans_nodes=True)
    settings = _settings(kind=EngineKind.VLLM, instances=2, parallel=parallel)
    assert share(settings, [{"CPU": 64.0, "GPU": 8.0}] * 4).devices == {}
