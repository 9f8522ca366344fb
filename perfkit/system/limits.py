"""What this process may use: affinity mask, CPU quota and memory limit of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from perfkit.records.machine import Limits
from perfkit.system.files import read

__all__ = ["control_groups", "read_limits"]

# Control groups of version 1 write "no limit" as a number near 2**63.
_NO_LIMIT = 2**60


def read_limits(root: Path = Path("/")) -> Limits:
    """The limits below `root`; a limit that is not set or not readable is None."""
    affinity = _affinity_cpus(root)
    groups = list(control_groups(root))
    quota = min((value for group in groups if (value := _quota_cpus(group))), default=None)
    memory = min((value for group in groups if (value := _memory_bytes(group))), default=None)
    known = [value for value in (quota, affinity) if value is not None]
    reasons = [
        f"CPU quota {quota:g}" if quota else "",
        f"affinity mask {affinity} CPUs" if affinity else "",
    ]
    return Limits(
        quota_cpus=quota,
        affinity_cpus=affinity,
        cpus=min(known, default=None),
        memory_bytes=memory,
        reason=", ".join(filter(None, reasons)) or "no limit readable",
    )


def _affinity_cpus(root: Path) -> int | None:
    if root == Path("/") and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    for line in read(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return sum(_range_length(part) for part in line.split(":")[1].split(",")) or None
    return os.cpu_count() if root == Path("/") else None


def _range_length(part: str) -> int:
    first, _, last = part.strip().partition("-")
    try:
        return max(0, int(last or first) - int(first) + 1)
    except ValueError:
        return 0


def control_groups(root: Path) -> Iterator[Path]:
    """Each group that holds this process, leaf first, then its ancestors: the strictest counts."""
    mount = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        for top in _mounts(mount, controllers.split(",")):
            leaf = top / name.lstrip("/")
            yield leaf
            yield from (parent for parent in leaf.parents if parent.is_relative_to(top))


def _mounts(mount: Path, controllers: list[str]) -> list[Path]:
    if controllers == [""]:
        return [mount, mount / "unified"]
    return [mount / name for name in (",".join(controllers), *controllers) if name in _RELEVANT]


_RELEVANT = ("cpu", "cpu,cpuacct", "cpuacct,cpu", "memory")


def _quota_cpus(group: Path) -> float | None:
    quota, _, period = read(group / "cpu.max").partition(" ")
    if not quota:
        quota = read(group / "cpu.cfs_quota_us")
        period = read(group / "cpu.cfs_period_us")
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _memory_bytes(group: Path) -> int | None:
    text = read(group / "memory.max") or read(group / "memory.limit_in_bytes")
    try:
        return int(text) if 0 < int(text) < _NO_LIMIT else None
    except ValueError:
        return None
