"""The processor itself, as NumPy and plain Python use it: every call returns when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from perfkit.devices.base import Clock, Flush, Graph, Lane, Mark, Memory, Probe, Trace
from perfkit.errors import NotSupportedHere
from perfkit.system.facts import last_level_cache_bytes

__all__ = ["HostDevice", "flush_host_cache"]


class HostDevice:
    """Synchronous, and says so: wall time and naive time are the same."""

    name = "host"
    asynchronous = False
    has_events = sees_commands = False
    sees_waits = True
    has_profile = False

    def probe(self) -> Probe:
        """Always there."""
        return Probe(available=True, devices=("host",))

    def owns(self, obj: object) -> bool:
        """NumPy arrays."""
        return type(obj).__module__.partition(".")[0] == "numpy"

    def lanes(self) -> Sequence[Lane]:
        """None: nothing runs on after a call."""
        return ()

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Nothing to wait for."""

    def mark(self, lane: Lane) -> Mark:
        """There is no lane to mark."""
        raise NotSupportedHere("the host has no events: time its calls with a clock")

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Always None: no events."""
        return None

    def memory(self) -> Memory | None:
        """Not told here."""
        return None

    def trace(self, clock: Clock) -> Trace:
        """Nothing is given away, so there is nothing to see."""
        return Trace()

    def flush_cache(self) -> Flush:
        """Write twice the last-level cache."""
        return flush_host_cache()

    def capture(self) -> AbstractContextManager[Graph]:
        """The host has no graphs."""
        raise NotSupportedHere("the host has no graphs to capture; compile the loop instead")


def flush_host_cache() -> Flush:
    """Write and read memory of twice the last-level cache. Raises NotSupportedHere where the
    size of that cache is not told.
    """
    cache_bytes = last_level_cache_bytes()
    if not cache_bytes:
        raise NotSupportedHere("--cold: this machine does not tell its cache size; time it warm")
    victim = bytearray(2 * cache_bytes)
    victim[:] = bytes(1) * len(victim)
    return Flush(nbytes=len(victim), cache_bytes=cache_bytes)
