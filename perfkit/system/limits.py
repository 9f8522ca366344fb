"""What this process may use: affinity mask, CPU quota and memory limit of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from perfkit.records.machine import Limits
from perfkit.system.files import read

__all__ = ["Throttling", "control_groups", "group_memory", "read_limits", "read_throttling"]

# Control groups of version 1 write "no limit" as a number near 2**63.
_NO_LIMIT = 2**60
_MEMORY_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")


def read_limits(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Limits:
    """The limits below `root`; a limit that is not set or not readable is None.

    JupyterHub's CPU_LIMIT and MEM_LIMIT stand in where no control group tells; another `root` has
    no environment unless one is given.
    """
    if environ is None:
        environ = os.environ if root == Path("/") else {}
    affinity = _affinity_cpus(root)
    groups = list(control_groups(root))
    quota = min((value for group in groups if (value := _quota_cpus(group))), default=None)
    memory = min((value for group in groups if (value := _memory_bytes(group))), default=None)
    reasons = []
    if quota:
        reasons.append(f"CPU quota {quota:g}")
    elif quota := _said(environ, "CPU_LIMIT"):
        reasons.append(f"CPU_LIMIT {quota:g}")
    if affinity:
        reasons.append(f"affinity mask {affinity} CPUs")
    if memory is None and (said := _said(environ, "MEM_LIMIT")):
        memory = int(said)
        reasons.append("MEM_LIMIT")
    known = [value for value in (quota, affinity) if value is not None]
    return Limits(
        quota_cpus=quota,
        affinity_cpus=affinity,
        cpus=min(known, default=None),
        memory_bytes=memory,
        reason=", ".join(reasons) or "no limit readable",
    )


def _said(environ: Mapping[str, str], key: str) -> float | None:
    """A number above 0 from the environment; None for any other text."""
    try:
        value = float(environ.get(key, ""))
    except ValueError:
        return None
    return value if 0 < value < _NO_LIMIT else None


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


# -- control groups ------------------------------------------------------------------------------


def control_groups(root: Path) -> Iterator[Path]:
    """Each group that holds this process, leaf first, then its ancestors: the strictest counts."""
    mount = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        # A name that leads out of the namespace, /../.., is above all that can be seen.
        inside = Path(*(part for part in name.split("/") if part not in ("", "..")))
        for top in _mounts(mount, controllers.split(",")):
            leaf = top / inside
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
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _memory_bytes(group: Path) -> int | None:
    """The lower of the limit that kills and the one that slows down to a crawl."""
    sizes = (_size(read(group / name)) for name in _MEMORY_FILES)
    return min((size for size in sizes if size), default=None)


def _size(text: str) -> int | None:
    try:
        return int(text) if 0 <= int(text) < _NO_LIMIT else None
    except ValueError:
        return None


def group_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Bytes used and the limit, of the group that is nearest to its limit; without what the kernel
    can drop. None without a limit.
    """
    found = []
    for group in control_groups(root):
        limit = _memory_bytes(group)
        used = _size(read(group / "memory.current") or read(group / "memory.usage_in_bytes"))
        if limit and used is not None:
            stat = _stat(group / "memory.stat")
            cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            found.append((max(0, used - cache), limit))
    return min(found, key=lambda pair: pair[1] - pair[0], default=None)


class Throttling(NamedTuple):
    """Of the group that was stopped most, since it was made: periods, those that ended in a stop,
    seconds of all stops (summed over CPUs).
    """

    periods: int
    throttled: int
    stopped_s: float


def read_throttling(root: Path = Path("/")) -> Throttling | None:
    """What the quotas have done to this process's groups; None where the kernel does not tell."""
    found = []
    for group in control_groups(root):
        stat = _stat(group / "cpu.stat")
        if "nr_throttled" in stat:
            stopped_s = (
                stat["throttled_usec"] * 1e-6
                if "throttled_usec" in stat
                else stat.get("throttled_time", 0) * 1e-9
            )
            found.append(Throttling(stat.get("nr_periods", 0), stat["nr_throttled"], stopped_s))
    return max(found, key=lambda row: row.throttled, default=None)


def _stat(path: Path) -> dict[str, int]:
    """Lines of a key and a whole number; others are left out."""
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
