"""The memory of this process: now, and at its highest since it was last asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfkit.system.files import read

__all__ = ["HostPeak", "traced_memory"]

_RESET_PEAK = "5"
"""What /proc/self/clear_refs takes to start the peak of resident memory anew (Linux >= 4.0)."""


class HostPeak:
    """How far resident memory rose above where it was when this was made."""

    def __init__(self) -> None:
        self._start_bytes: int | None = None
        try:
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        except OSError:
            return
        self._start_bytes = _status_bytes("VmRSS")

    def rise_bytes(self) -> int | None:
        """Bytes between then and the highest point since; None where the kernel does not tell."""
        peak = _status_bytes("VmHWM")
        if self._start_bytes is None or peak is None:
            return None
        return max(0, peak - self._start_bytes)


def _status_bytes(key: str) -> int | None:
    found = re.search(rf"^{key}:\s+(\d+) kB", read(Path("/proc/self/status")), re.MULTILINE)
    return 1024 * int(found[1]) if found else None


@contextmanager
def traced_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Count what Python and NumPy allocate while this is open. Gives a function that returns bytes
    now, and the most since it was last called. Makes allocations several times slower.
    """
    import tracemalloc

    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start(1)

    def now() -> tuple[int, int]:
        seen = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return seen

    try:
        yield now
    finally:
        if ours:
            tracemalloc.stop()
