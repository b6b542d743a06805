"""Adapters of the older file beside the weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindserve.errors import ConfigError
from mindserve.settings.mindie import from_json
from mindserve.settings.values import AdapterSettings

from .test_mindie import MODEL, changed


def read(home: Path, legacy: Any, **modules: Any) -> tuple[AdapterSettings, ...]:
    document = changed(f"{MODEL}.modelWeightPath", "weights")
    document["BackendConfig"]["ModelDeployConfig"] |= modules
    (home / "weights").mkdir()
    (home / "weights" / "lora_adapter.json").write_text(json.dumps(legacy))
    return from_json(document, home=home).model.adapters


def test_the_older_file_is_read_where_no_modules_are_listed(tmp_path: Path) -> None:
    found = read(tmp_path, {"a": "adapters/a", "b": "/elsewhere/b"})
    assert found == (
        AdapterSettings(name="a", path=tmp_path / "weights" / "adapters" / "a"),
        AdapterSettings(name="b", path=Path("/elsewhere/b")),
    )


def test_listed_modules_win(tmp_path: Path) -> None:
    found = read(tmp_path, {"a": "a"}, LoraModules=[{"name": "c", "path": "c"}])
    assert found == (AdapterSettings(name="c", path=tmp_path / "c"),)


@pytest.mark.parametrize("legacy", [{"-": "a"}, {"a": 1}, {"a": ""}, {"llama_65b": "a"}, ["a"]])
def test_a_damaged_older_file_is_refused_by_its_name(tmp_path: Path, legacy: Any) -> None:
    with pytest.raises(ConfigError, match=r"lora_adapter\.json"):
        read(tmp_path, legacy)


def test_the_older_file_counts_for_its_own_directory_only(tmp_path: Path) -> None:
    (tmp_path / "lora_adapter.json").write_text('{"a": "a"}')
    (tmp_path / "weights").mkdir()
    assert from_json(changed(f"{MODEL}.modelWeightPath", "weights"), home=tmp_path).model.adapters == ()
