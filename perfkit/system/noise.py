"""How quiet it is: what this thread lost to others, and what the kernel counts of waiting."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from perfkit.system.files import read

__all__ = ["RunQueueWait", "Spin", "pressure", "spin", "stalled_s"]

GAP_S = 50e-6
"""A spinning thread that sees the clock jump so far was not running."""


class RunQueueWait:
    """Seconds that the calling thread has waited on the run queue (Linux schedstat, field 2).

    The file is kept open, since opening it costs thirty times as much as reading it.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def read_s(self) -> float | None:
        """Seconds since the thread began; None where the kernel does not tell."""
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Spin(NamedTuple):
    """A short spin: how long, the part of it in which the thread did not run, the longest gap."""

    spin_s: float
    lost_share: float
    longest_gap_s: float


def spin(seconds: float = 0.1) -> Spin:
    """Look at the clock without a pause. Steal time does not show a neighbour; gaps do."""
    clock = time.perf_counter
    start_s = now_s = clock()
    lost_s = longest_s = 0.0
    while now_s - start_s < seconds:
        then_s, now_s = now_s, clock()
        gap_s = now_s - then_s
        if gap_s > GAP_S:
            lost_s += gap_s
            longest_s = max(longest_s, gap_s)
    passed_s = now_s - start_s
    return Spin(passed_s, min(1.0, lost_s / passed_s), longest_s)


def pressure(resource: str, root: Path = Path("/")) -> float | None:
    """Part of the last ten seconds in which some task waited for cpu, memory or io; None where the
    kernel does not tell (Linux < 4.20, or switched off).
    """
    found = re.search(r"^some avg10=(\d+(?:\.\d+)?)", read(root / f"proc/pressure/{resource}"))
    return min(1.0, float(found[1]) / 100) if found else None


def stalled_s(resource: str, root: Path = Path("/")) -> float | None:
    """Seconds in which some task has waited for cpu, memory or io since the machine was started."""
    for line in read(root / f"proc/pressure/{resource}").splitlines():
        if line.startswith("some") and line.rpartition("total=")[2].isdigit():
            return int(line.rpartition("total=")[2]) * 1e-6
    return None
