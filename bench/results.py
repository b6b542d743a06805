"""Where a measurement was made, of what and how, written beside its raw numbers."""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, memory and kernel."""
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_name() -> str:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    identity = [f"{key} {facts[key]}" for key in ("cpu family", "model", "CPU part") if key in facts]
    return ", ".join([facts.get("model name", "unknown processor"), *identity])


def commit() -> str:
    """The commit measured; `+` says that the working tree differs from it."""
    name = _git("rev-parse", "HEAD")
    return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", "src") else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages."""
    return {package: version(package) for package in packages}


def rival_versions() -> dict[str, str]:
    """Versions pinned for the rivals' environment."""
    lines = (Path(__file__).parent / "rivals/requirements.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def save(name: str, content: dict[str, Any]) -> Path:
    """Write the result with the circumstances around it; returns the file."""
    now = datetime.datetime.now(datetime.UTC)
    around = {
        "measured": now.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(around | content, indent=1) + "\n")
    return path
