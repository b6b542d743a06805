"""How much memory and how many cores this process may use."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
GIB = 1024**3

CACHE_SHARE = 0.25
"""Of the available memory, what keys and values get when the configuration names no figure."""
MAX_DEFAULT_CACHE_BYTES = GIB


def available_bytes() -> int:
    """What can be allocated without swapping, the container's limit considered."""
    free = _meminfo_available()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return free if limit is None or used is None else min(free, max(0, limit - used))


def usable_cores() -> int:
    """Cores that the process is allowed to run on, the container's CPU quota considered."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, allowed if quota is None else min(allowed, round(quota)))


def default_cache_bytes(*, block_bytes: int, blocks_wanted: int, blocks_needed: int) -> int:
    """Memory for keys and values: what the batch can use, within a share of what is free, never less than one
    sequence of full length needs."""
    share = min(int(available_bytes() * CACHE_SHARE), MAX_DEFAULT_CACHE_BYTES)
    return max(block_bytes * blocks_needed, min(share, block_bytes * blocks_wanted))


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cpu_quota() -> float | None:
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdigit() else None
