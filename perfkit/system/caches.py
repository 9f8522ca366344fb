"""The caches as the kernel lists them, and the memory that may be taken.

From sysfs: in a virtual machine sysconf and CPUID tell of the host's whole last level.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from perfkit.system.files import read
from perfkit.system.limits import read_limits

__all__ = [
    "Cache",
    "allowed_cpus",
    "cpu_list",
    "last_levels_bytes",
    "one_cpu_per_core",
    "read_caches",
    "spare_memory_bytes",
]

_CPUS = "sys/devices/system/cpu"
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Cache(NamedTuple):
    """A cache that holds data. `cpus`: those that share it."""

    level: int
    size_bytes: int
    cpus: frozenset[int]


def read_caches(cpu: int, root: Path = Path("/")) -> tuple[Cache, ...]:
    """What lies between `cpu` and memory, nearest first; empty where the kernel does not tell."""
    found = []
    for folder in (root / _CPUS / f"cpu{cpu}/cache").glob("index*"):
        level, size = read(folder / "level"), _size_bytes(read(folder / "size"))
        if level.isdigit() and size and read(folder / "type") != "Instruction":
            sharers = cpu_list(read(folder / "shared_cpu_list"))
            found.append(Cache(int(level), size, sharers or frozenset({cpu})))
    return tuple(sorted(found, key=lambda cache: cache.level))


def last_levels_bytes(cpus: Iterable[int], root: Path = Path("/")) -> int | None:
    """All last-level caches that `cpus` reach, together; None where the kernel does not tell."""
    lasts = {caches[-1] for cpu in cpus if (caches := read_caches(cpu, root))}
    return sum(cache.size_bytes for cache in lasts) or None


def one_cpu_per_core(cpus: Iterable[int], root: Path = Path("/")) -> list[int]:
    """`cpus` without those that share their first level with an earlier one."""
    kept: list[int] = []
    for cpu in cpus:
        caches = read_caches(cpu, root)
        if not caches or not caches[0].cpus.intersection(kept):
            kept.append(cpu)
    return kept


def allowed_cpus() -> list[int]:
    """CPUs that the calling thread may run on, from the one that it runs on now upwards and round:
    with fewer threads than CPUs, processes that pin theirs should not all meet on the first.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    cpus = sorted(os.sched_getaffinity(0))
    # Field 39 of stat; the name in the second may hold blanks.
    fields = read(Path("/proc/thread-self/stat")).rpartition(")")[2].split()
    now = int(fields[36]) if len(fields) > 36 else cpus[0]
    return [cpu for cpu in cpus if cpu >= now] + [cpu for cpu in cpus if cpu < now]


def spare_memory_bytes(root: Path = Path("/")) -> int | None:
    """The least of the limit, what the system has available, and the limit of address space."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    known = [
        read_limits(root).memory_bytes,
        1024 * int(available[1]) if available else None,
        space if space != resource.RLIM_INFINITY else None,
    ]
    return min((value for value in known if value is not None), default=None)


def _size_bytes(text: str) -> int | None:
    digits, suffix = text.rstrip("KMG"), text[-1:]
    return int(digits) * _FACTOR.get(suffix, 1) if digits.isdigit() else None


def cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: 0-3,8."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(cpu for a, b in spans for cpu in range(int(a), int(b or a) + 1))
