"""The processors and the memory of the whole machine, whatever this process may use of them."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfkit.records.doctor import CacheLevel, Processor
from perfkit.system.caches import cpu_list, read_caches
from perfkit.system.files import read

__all__ = ["read_processor"]

_VECTORS = (
    ("sse2", "sse3", "ssse3", "sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2"),
    ("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    ("amx_tile", "amx_int8", "amx_bf16"),
    ("neon", "asimd", "asimdhp", "asimddp", "sve", "i8mm", "bf16", "sve2", "sme"),
    ("vsx", "vx", "v"),
)


def read_processor(root: Path = Path("/")) -> Processor:
    """What the kernel tells below `root`; what it does not tell is None, with the reason."""
    facts = _facts(root)
    places = list(_places(root))
    here = root == Path("/")
    cpus = len(places) or _listed(root) or (os.cpu_count() if here else None)
    cores = len({place for place, _ in places if None not in place}) or None
    nodes = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    words = (facts.get("flags") or facts.get("Features") or facts.get("isa") or "").split()
    return Processor(
        model=facts.get("model name") or facts.get("Model") or (_name() if here else ""),
        isa=tuple(name for row in _VECTORS for name in row if name in words),
        cpus=cpus,
        cores=cores,
        sockets=len({place[0] for place, _ in places if None not in place}) or None,
        threads_per_core=max((siblings for _, siblings in places if siblings), default=None),
        numa_nodes=len(nodes) or None,
        caches=_caches(root, len(places)),
        memory_bytes=_memory_bytes(root),
        reasons=tuple(_reasons(root, facts, places)),
    )


def _facts(root: Path) -> dict[str, str]:
    """The first processor of cpuinfo, key to value; later ones fill in what it does not have."""
    facts: dict[str, str] = {}
    for line in read(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            facts.setdefault(key.strip(), value.strip())
    return facts


def _places(root: Path) -> Iterator[tuple[tuple[int | None, int | None], int]]:
    """For each CPU that is on: its socket and core, and how many CPUs share the core."""
    for cpu in sorted(cpu_list(read(root / "sys/devices/system/cpu/online"))):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        socket, core = _number(folder / "physical_package_id"), _number(folder / "core_id")
        yield (socket, core), len(cpu_list(read(folder / "thread_siblings_list")))


def _number(path: Path) -> int | None:
    text = read(path)
    # Some ARM kernels write -1 for the one socket.
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _listed(root: Path) -> int:
    """CPUs that cpuinfo lists."""
    return len(re.findall(r"^processor\s*:\s*\d+", read(root / "proc/cpuinfo"), re.MULTILINE))


def _caches(root: Path, cpus: int) -> tuple[CacheLevel, ...]:
    """The levels, nearest first. Where cores differ, each size is a row."""
    seen = {
        (cache.level, cache.size_bytes, cache.cpus)
        for cpu in range(cpus)
        for cache in read_caches(cpu, root)
    }
    kinds = Counter((level, size, len(sharers)) for level, size, sharers in seen)
    return tuple(
        CacheLevel(level=level, size_bytes=size, shared_by_cpus=sharers, instances=count)
        for (level, size, sharers), count in sorted(kinds.items())
    )


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return 1024 * int(found[1])
    if root != Path("/"):
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _name() -> str:
    return platform.processor() or platform.machine()


def _reasons(root: Path, facts: dict[str, str], places: Sequence[object]) -> Iterator[str]:
    if not facts:
        yield "vector extensions n/a: /proc/cpuinfo cannot be read"
    if not places:
        yield "cores, sockets and caches n/a: /sys/devices/system/cpu cannot be read"
    elif not read_caches(0, root):
        yield "caches n/a: the kernel does not list them"
    if not read(root / "proc/meminfo"):
        yield "memory may be n/a: /proc/meminfo cannot be read"
