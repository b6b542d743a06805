"""Which engine a file asks for, and over which devices vLLM is spread."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindserve.errors import ConfigError
from mindserve.settings.location import load_configuration
from mindserve.settings.mindie import from_json
from mindserve.settings.values import EngineKind, ParallelSettings, Settings

FILE = Path(__file__).parent / "data" / "config.json"
MODEL = "BackendConfig.ModelDeployConfig.ModelConfig[0]"
SIZES = ("worldSize", "tp", "pp", "dp")


def read(*, name: str = "vllm", nodes: bool = False, own: dict[str, Any] | None = None, **sizes: Any) -> Settings:
    """MindIE's file with these sizes alone, and an engine."""
    raw = json.loads(FILE.read_text())
    backend = raw["BackendConfig"]
    backend["backendName"] = name
    backend["multiNodesInferEnabled"] = nodes
    model = backend["ModelDeployConfig"]["ModelConfig"][0]
    for key in SIZES:
        model.pop(key, None)
    model.update(sizes)
    raw["MindserveConfig"] = own or {}
    return from_json(raw, home=Path("/home"))


SPREAD: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({}, (1, 1, 1)),
    ({"worldSize": 4}, (4, 1, 1)),
    ({"worldSize": 8, "pp": 2}, (4, 2, 1)),
    ({"worldSize": 8, "pp": 2, "dp": 2}, (2, 2, 2)),
    ({"worldSize": 8, "tp": -1, "dp": 2, "pp": -1}, (4, 1, 2)),
    ({"worldSize": 8, "tp": 4, "dp": 2}, (4, 1, 2)),
    ({"tp": 2, "pp": 3}, (2, 3, 1)),
    ({"dp": 2}, (1, 1, 2)),
]


@pytest.mark.parametrize(("sizes", "expected"), SPREAD, ids=str)
def test_sizes_become_parallelism(sizes: dict[str, Any], expected: tuple[int, int, int]) -> None:
    tensor, pipeline, data = expected
    assert read(**sizes).engine.parallel == ParallelSettings(tensor=tensor, pipeline=pipeline, data=data)


def test_several_nodes_are_spanned_when_the_file_says_so() -> None:
    assert read(worldSize=2, nodes=True).engine.parallel == ParallelSettings(tensor=2, spans_nodes=True)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"worldSize": 4, "tp": 8}, "worldSize"),
    ({"worldSize": 4, "tp": 2}, "worldSize"),
    ({"worldSize": 4, "pp": 3}, "worldSize"),
    ({"worldSize": 4, "dp": 8}, "worldSize"),
    ({"tp": 0}, "tp"),
    ({"tp": "2"}, "tp"),
    ({"pp": True}, "pp"),
    ({"dp": 1.0}, "dp"),
    ({"dp": -2}, "dp"),
]


@pytest.mark.parametrize(("sizes", "key"), REFUSED, ids=str)
def test_sizes_that_do_not_fit_are_refused_by_their_path(sizes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**sizes)
    assert caught.value.param == f"{MODEL}.{key}"
    assert f"{MODEL}.{key}" in caught.value.message


@pytest.mark.parametrize(("sizes", "key"), REFUSED, ids=str)
def test_the_native_engine_does_not_care(sizes: dict[str, Any], key: str) -> None:
    settings = read(name="mindieservice_llm_engine", **sizes)
    assert settings.engine.kind is EngineKind.NATIVE
    assert settings.engine.parallel == ParallelSettings()
    assert f"{MODEL}.{key}" in settings.warnings[0]


def test_the_warning_names_what_the_chosen_engine_ignores() -> None:
    sizes, own = {"worldSize": 2, "tp": 2, "pp": 1, "dp": 1}, {"vllm": {"max_num_seqs": 8}, "stepTokenBudget": 64}
    (native,), (vllm,) = read(name="mindserve_native", own=own, **sizes).warnings, read(own=own, **sizes).warnings
    for name in (*(f"{MODEL}.{size}" for size in sizes), "multiNodesInferEnabled", "MindserveConfig.vllm"):
        assert name in native
        assert name not in vllm
    for name in ("MindserveConfig.stepTokenBudget", "ScheduleConfig.maxPrefillBatchSize"):
        assert name in vllm
        assert name not in native
    for warning in (native, vllm):
        assert "BackendConfig.npuDeviceIds" in warning
        assert "backendName" not in warning


def test_an_unknown_engine_is_the_native_one_with_a_warning() -> None:
    settings = read(name="tgi_engine")
    assert settings.engine.kind is EngineKind.NATIVE
    (warning,) = [warning for warning in settings.warnings if "backendName" in warning]
    assert "'tgi_engine'" in warning
    assert "the native one answers" in warning


def test_the_command_lines_engine_decides_what_has_an_effect() -> None:
    settings = load_configuration(FILE, {}, kind=EngineKind.VLLM)
    assert settings.engine.kind is EngineKind.VLLM
    assert settings.engine.parallel == ParallelSettings(tensor=4)
    assert "worldSize" not in settings.warnings[0]
