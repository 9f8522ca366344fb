"""The fingerprint of this machine."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from pathlib import Path

from perfkit.records.machine import Machine
from perfkit.system.files import read
from perfkit.system.limits import read_limits

__all__ = ["last_level_cache_bytes", "machine"]

_SIZE_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30}


def machine(*, root: str | Path = "/") -> Machine:
    """What this machine is and what this process may use of it.

    `root` stands for `/` when /proc and /sys are read, so that recorded trees can be judged.
    """
    return _cached_machine() if str(root) == "/" else _read_machine(Path(root))


@lru_cache(maxsize=1)
def _cached_machine() -> Machine:
    return _read_machine(Path("/"))


def _read_machine(root: Path) -> Machine:
    return Machine.of(
        host=_host_id(root),
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(root),
        limits=read_limits(root),
        last_level_cache_bytes=last_level_cache_bytes(root),
        python=platform.python_version(),
        perfkit=_own_version(),
    )


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # 10 ms

    try:
        return version("perfkit")
    except PackageNotFoundError:
        return "unknown"


def _host_id(root: Path) -> str:
    """Stable on one host, and useless to anyone who wants to know which host."""
    salted = f"perfkit:{read(root / 'etc/machine-id') or platform.node()}"
    return hashlib.sha256(salted.encode()).hexdigest()[:12]


def _processor(root: Path) -> str:
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def last_level_cache_bytes(root: Path = Path("/")) -> int | None:
    """Size of the largest cache of the first CPU, as the kernel tells it; None if it does not."""
    sizes = []
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = read(path)
        digits, suffix = text.rstrip("KMG"), text[-1:]
        if digits.isdigit():
            sizes.append(int(digits) * _SIZE_SUFFIX.get(suffix, 1))
    return max(sizes, default=None)
