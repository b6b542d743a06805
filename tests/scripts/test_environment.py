"""The environment is made when the lock or the project changed, and left alone otherwise."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_environment(folder: Path) -> str:
    """Run `make_environment` in `folder` with the installing parts played; returns what they were asked."""
    program = f"""
        set -euo pipefail
        . {ROOT}/scripts/common.sh
        make_venv() {{ echo venv; mkdir -p .venv/bin; printf '' >.venv/bin/python; chmod +x .venv/bin/python; }}
        pip_install() {{ echo "install $*"; cp .venv/bin/python .venv/bin/mindserve; }}
        make_environment some.lock
    """
    result = subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    return result.stdout


def test_environment_follows_lock_and_project(tmp_path: Path) -> None:
    (tmp_path / "some.lock").write_text("a==1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    whole = "venv\ninstall --require-hashes -r some.lock\ninstall --no-deps -e .\n"
    assert make_environment(tmp_path) == whole
    assert make_environment(tmp_path) == ""

    (tmp_path / "some.lock").write_text("a==2\n")
    assert make_environment(tmp_path) == whole.removeprefix("venv\n")
    assert make_environment(tmp_path) == ""

    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert make_environment(tmp_path) == whole.removeprefix("venv\n")


def test_scripts_are_sound_shell() -> None:
    scripts = [
        ROOT / ".ci/run",
        ROOT / "bench/rivals/setup",
        *(ROOT / "scripts" / n for n in ("demo", "test", "lock", "fetch_qwen")),
    ]
    for script in scripts:
        assert script.stat().st_mode & 0o111, f"{script} is not executable"
        subprocess.run(["bash", "-n", script], check=True, timeout=30)
