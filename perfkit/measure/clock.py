"""The clocks of a measurement. Tests pass one that they move by hand."""

from __future__ import annotations

import time
from typing import Protocol

from perfkit.system.noise import RunQueueWait

__all__ = ["Clock", "HostClock"]


class Clock(Protocol):
    """All in seconds."""

    def now(self) -> float:
        """Monotonic wall clock."""

    def thread_cpu(self) -> float:
        """Processor time of this thread. Reading it makes the kernel settle the time slice, so
        that a due preemption falls before the sample and not into it.
        """

    def process_cpu(self) -> float:
        """Processor time of the whole process."""

    def waited(self) -> float | None:
        """Time that this thread stood ready without a core; None where the kernel is silent."""

    def close(self) -> None:
        """Give back what the clock holds."""


class HostClock:
    """The real ones. Make it on the thread that measures; `close` it."""

    now = staticmethod(time.perf_counter)
    thread_cpu = staticmethod(time.thread_time)
    process_cpu = staticmethod(time.process_time)

    def __init__(self) -> None:
        self._wait = RunQueueWait()
        self.waited = self._wait.read_s
        self.close = self._wait.close
