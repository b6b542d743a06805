"""The lock files hold what pyproject.toml asks for, every package with its sum, both in the same versions."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = PROJECT["dependencies"]
DEVELOPMENT = [*RUNTIME, *PROJECT["optional-dependencies"]["dev"]]
ENTRY = re.compile(r"^([a-z0-9-]+)==([^ ]+)(.*?)(?=^[a-z0-9]|\Z)", re.MULTILINE | re.DOTALL)


def locked(name: str) -> dict[str, set[str]]:
    """Package -> versions (several where they depend on the Python) of a lock file whose entries all carry hashes."""
    versions: dict[str, set[str]] = {}
    for package, version, rest in ENTRY.findall((ROOT / name).read_text()):
        assert "--hash=sha256:" in rest, f"{package} in {name} has no hash"
        versions.setdefault(package, set()).add(version)
    return versions


@pytest.mark.parametrize(("name", "asked"), [("requirements.lock", RUNTIME), ("requirements-dev.lock", DEVELOPMENT)])
def test_lock_satisfies_the_project(name: str, asked: list[str]) -> None:
    versions = locked(name)
    assert len(versions) > len(asked)
    for requirement in map(Requirement, asked):
        found = versions.get(requirement.name.lower(), set())
        assert found, f"{requirement.name} is missing in {name}: run scripts/lock"
        assert all(requirement.specifier.contains(version) for version in found), f"{requirement}: run scripts/lock"


def test_both_locks_agree() -> None:
    runtime, development = locked("requirements.lock"), locked("requirements-dev.lock")
    assert {name: development.get(name) for name in runtime} == runtime


def test_locks_name_no_index() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        assert "index-url" not in (ROOT / name).read_text()
