"""How long this thread stood ready to run and had no core."""

from __future__ import annotations

import os

__all__ = ["RunQueueWait"]


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
