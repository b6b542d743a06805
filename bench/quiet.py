"""How quiet the machine is while something is measured: cores that neither the client nor the contender kept busy."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.servers import Child

IDLE_COLUMNS = (3, 4)
"""Of the `cpu` line in /proc/stat: idle, iowait."""


@dataclass(slots=True)
class OthersBusy:
    """Set when the measured block is over."""

    cores: float = 0.0


@contextmanager
def others_busy(child: Child) -> Generator[OthersBusy]:
    """Measures while the block runs. Time stolen by the host counts as others' time too."""
    found = OthersBusy()
    started, machine, ours = time.perf_counter(), _busy_s(), _ours_s(child)
    yield found
    seconds = time.perf_counter() - started
    found.cores = round(max(0.0, (_busy_s() - machine) - (_ours_s(child) - ours)) / seconds, 3)


def _busy_s() -> float:
    """Seconds that all cores of the machine together were not idle since it started."""
    columns = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(columns) - sum(columns[i] for i in IDLE_COLUMNS)) / os.sysconf("SC_CLK_TCK")


def _ours_s(child: Child) -> float:
    own = os.times()
    return child.cpu_s() + own.user + own.system
