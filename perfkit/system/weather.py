"""How quiet it is here just now, and how near the limits are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from perfkit.records.doctor import Weather
from perfkit.system.files import read
from perfkit.system.limits import group_memory, read_throttling
from perfkit.system.noise import pressure, spin

__all__ = ["read_weather"]


def read_weather(root: Path = Path("/"), *, spin_s: float = 0.1) -> Weather:
    """All of it; it takes `spin_s`. What the kernel does not tell is None."""
    spun = spin(spin_s) if spin_s else None
    stops, held = read_throttling(root), group_memory(root)
    available = re.search(r"^MemAvailable:\s+(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    left = [1024 * int(available[1])] if available else []
    left += [max(0, held[1] - held[0])] if held else []
    return Weather(
        spin_s=spun and spun.spin_s,
        lost_share=spun and spun.lost_share,
        longest_gap_s=spun and spun.longest_gap_s,
        cpu_pressure=pressure("cpu", root),
        memory_pressure=pressure("memory", root),
        io_pressure=pressure("io", root),
        load=_load(root),
        periods=stops and stops.periods,
        throttled_share=min(1.0, stops.throttled / stops.periods)
        if stops and stops.periods
        else None,
        throttled_s=stops and stops.stopped_s,
        memory_used_bytes=held and held[0],
        memory_available_bytes=min(left, default=None),
    )


def _load(root: Path) -> float | None:
    """Tasks that ran or stood ready, over the last minute."""
    try:
        return float(read(root / "proc/loadavg").split()[0])
    except (IndexError, ValueError):
        return os.getloadavg()[0] if root == Path("/") and hasattr(os, "getloadavg") else None
