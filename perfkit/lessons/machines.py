"""Six machines of lesson 13: the files in which a kernel says what a process may use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from perfkit.system.files import read
from perfkit.system.limits import control_groups

__all__ = ["TREES", "Listing", "Tree", "count", "read", "show", "trees"]


class Listing(tuple[str, ...]):
    """Lines that are shown as they are."""

    def __repr__(self) -> str:
        return "\n".join(self)


class Tree(NamedTuple):
    """A machine as its kernel shows it to one process: files below a root, CPUs that it may use,
    and what others would answer: all CPUs of the machine, the mask, the quota of its own group.
    """

    files: Mapping[str, str]
    cpus: float
    machine: int
    mask: int
    leaf: float | None = None


_V2 = "35 25 0:30 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
_V1 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"


def _tree(
    cpus: float, machine: int, allowed: str, mounts: str, groups: str, limits: Mapping[str, str]
) -> Tree:
    """`allowed`: the mask as a list; `limits`: file below sys/fs/cgroup and its line."""
    files = {
        "proc/self/cgroup": groups,
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\t{_bits(allowed, machine)}\n"
        f"Cpus_allowed_list:\t{allowed}\n",
        "proc/self/mountinfo": mounts,
        "sys/devices/system/cpu/online": f"0-{machine - 1}\n",
    }
    files |= {f"sys/fs/cgroup/{name}": f"{line}\n" for name, line in limits.items()}
    first = next(iter(limits.values())).split()[0]
    leaf = int(first) / 100_000 if first.isdigit() else None
    return Tree(files, cpus, machine, count(allowed), leaf)


def _bits(allowed: str, machine: int) -> str:
    """A mask as the kernel writes it: hexadecimal words of 32 CPUs, the last CPU first."""
    bits = sum(1 << cpu for cpu in _listed(allowed))
    digits = f"{bits:0{-(-machine // 4)}x}"
    first = len(digits) % 8
    words = [digits[:first]] * (first > 0)
    return ",".join(words + [digits[i : i + 8] for i in range(first, len(digits), 8)])


def _listed(text: str) -> Iterator[int]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def count(text: str) -> int:
    """CPUs in a list such as "0-2,8": four."""
    return sum(1 for _ in _listed(text))


def _v1(quota_us: int, group: str, controllers: str = "cpu,cpuacct") -> dict[str, str]:
    files = {"cpu.cfs_quota_us": quota_us, "cpu.cfs_period_us": 100_000}
    return {f"{controllers}/{group}/{name}": str(value) for name, value in files.items()}


def _v1_mounts(*controllers: str) -> str:
    return _V1 + "".join(
        f"{32 + i} 31 0:{29 + i} / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
        for i, name in enumerate(controllers)
    )


_UNIT = "system.slice/jupyter-ada.service"
_POD = "kubepods.slice/kubepods-pod7c1f.slice"
_JOB = "system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
TREES = {
    "pod": _tree(1, 64, "0-63", _V2, "0::/\n", {"cpu.max": "100000 100000"}),
    "hub": _tree(
        2.5,
        16,
        "0-15",
        _v1_mounts("cpu,cpuacct", "memory"),
        f"3:memory:/{_UNIT}\n2:cpu,cpuacct:/{_UNIT}\n1:name=systemd:/{_UNIT}\n",
        _v1(250_000, _UNIT) | _v1(-1, "system.slice"),
    ),
    "both versions": _tree(
        1.5,
        8,
        "0-7",
        _v1_mounts("cpu", "cpuacct")
        + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        "2:cpuacct:/\n1:cpu:/course/ada\n0::/course/ada\n",
        _v1(150_000, "course/ada", "cpu")
        | _v1(-1, "course", "cpu")
        | {"unified/course/ada/cgroup.procs": "4711"},
    ),
    "nested pod": _tree(
        2,
        64,
        "0-63",
        _V2,
        f"0::/{_POD}/cri-b2.scope\n",
        {
            f"{_POD}/cri-b2.scope/cpu.max": "400000 100000",
            f"{_POD}/cpu.max": "200000 100000",
            "kubepods.slice/cpu.max": "max 100000",
        },
    ),
    "batch job": _tree(
        6, 128, "2-4,66-68", _V2, f"0::/{_JOB}\n", {f"{_JOB}/cpu.max": "max 100000"}
    ),
    "laptop": _tree(
        8,
        8,
        "0-7",
        _V2,
        "0::/user.slice/user-1000.slice/session-2.scope\n",
        {"user.slice/user-1000.slice/cpu.max": "max 100000"},
    ),
}
"""Six machines: the shapes of the files are the kernel's, the names and figures are invented."""


def trees(folder: str | Path | None = None) -> dict[str, Path]:
    """Write the six trees below a folder, a temporary one if none is given, which goes when this
    process ends in order; a killed kernel leaves its few small files. Each root stands for `/`.
    """
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="perfkit-trees-")
        _kept.append(temporary)
        folder = temporary.name
    roots = {name: Path(folder) / name.replace(" ", "-") for name in TREES}
    for name, root in roots.items():
        for file, text in TREES[name].files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
    return roots


_kept: list[tempfile.TemporaryDirectory[str]] = []


def show(root: str | Path) -> Listing:
    """The files below `root` that tell how many CPUs its process may use; "/" is this machine."""
    root = Path(root)
    groups = dict.fromkeys(control_groups(root))
    limits = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    names = [str((group / name).relative_to(root)) for group in groups for name in limits]
    return Listing(
        _lines(root, "sys/devices/system/cpu/online")
        + _lines(root, "proc/self/status", "Cpus_allowed_list")
        + _lines(root, "proc/self/mountinfo", "cgroup2", "cpu")
        + _lines(root, "proc/self/cgroup")
        + [line for name in names for line in _lines(root, name)]
    )


def _lines(root: Path, name: str, *having: str) -> list[str]:
    """The file's name and, indented, its lines, or those that have one of these words."""
    lines = [f"    {line}" for line in read(root / name).splitlines()]
    kept = [line for line in lines if not having or any(word in line for word in having)]
    return [name, *kept] if kept else []
