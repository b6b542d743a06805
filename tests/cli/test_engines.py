"""Which engine stands behind which settings. Nothing is loaded before the start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindserve.cli.engines import build_engine, make_engine
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.replicas import ReplicaEngine
from mindserve.engine.scripted import ScriptedEngine
from mindserve.engine.supervised import SupervisedEngine
from mindserve.errors import ModelLoadError, NotReady
from mindserve.settings.overrides import for_model
from mindserve.settings.values import EngineKind, Settings


def settings(**engine: Any) -> Settings:
    base = for_model(Path("/nowhere"))
    return replace(base, engine=replace(base.engine, **engine))


def _silent(what: str, share: float) -> None:
    """Nobody watches."""


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, SupervisedEngine),
        ({"kind": EngineKind.VLLM}, SupervisedEngine),
        ({"kind": EngineKind.SCRIPTED}, ScriptedEngine),
        ({"instances": 2}, ReplicaEngine),
        ({"kind": EngineKind.VLLM, "instances": 2}, ReplicaEngine),
        ({"kind": EngineKind.SCRIPTED, "instances": 3}, ReplicaEngine),
    ],
)
def test_one_engine_is_supervised_and_several_are_replicas(engine: dict[str, Any], expected: type) -> None:
    assert type(build_engine(settings(**engine), _silent)) is expected


def test_a_replica_is_one_plain_engine() -> None:
    assert type(make_engine(settings(instances=2))) is NativeEngine


async def test_a_model_that_is_not_there_is_told_at_the_start() -> None:
    engine = build_engine(settings(), _silent)
    with pytest.raises(ModelLoadError, match="/nowhere"):
        await engine.start()
    with pytest.raises(NotReady):
        _ = engine.info
    await engine.close()
