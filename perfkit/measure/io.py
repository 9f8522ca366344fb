"""What a body reads and writes, and how much of it the page cache gave."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import UsageError
from perfkit.records.base import Quality, keep_last
from perfkit.records.tiers import IoTime
from perfkit.system.facts import machine
from perfkit.system.files import read
from perfkit.system.mounts import is_network

__all__ = ["Counters", "IoMeasurement", "read_counters", "time_io"]

Runs = Generator[None, None, None]
MOSTLY = 0.95
SMALL = 64 * 1024
"""Requests below this are the interpreter's own: sockets, pipes, counters."""


class Counters(NamedTuple):
    """What the kernel counts for this process, in bytes and calls (`/proc/self/io`), and pages
    that had to be read when they were touched.
    """

    rchar: int
    wchar: int
    syscr: int
    syscw: int
    read_bytes: int
    write_bytes: int
    major_faults: int


def read_counters(root: Path = Path("/")) -> Counters | None:
    """The counters now; None where the kernel does not tell."""
    found = dict(
        line.split(": ") for line in read(root / "proc/self/io").splitlines() if ": " in line
    )
    try:
        rchar, wchar, syscr, syscw, read_bytes, write_bytes = (
            int(found[name]) for name in Counters._fields[:6]
        )
    except (KeyError, ValueError):
        return None
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    return Counters(rchar, wchar, syscr, syscw, read_bytes, write_bytes, faults)


def time_io(fn: Callable[[], object]) -> IoTime:
    """Call `fn()` once and say what it read and wrote, in all threads of this process.

    Raises UsageError if `fn` cannot be called, and whatever `fn` raises; what was seen by then is
    `perfkit.last()`.
    """
    if not callable(fn):
        raise UsageError(f"time_io runs a function, not {type(fn).__name__}: wrap it in lambda:")
    measurement = IoMeasurement(label=getattr(fn, "__qualname__", type(fn).__name__))
    with closing(measurement.runs()) as runs:
        for _ in runs:
            fn()
    assert measurement.record is not None
    return measurement.record


class IoMeasurement:
    """One measurement under way. `record` is set when `runs` has ended, however it ended."""

    def __init__(
        self,
        *,
        label: str,
        done: Callable[[IoTime | None], None] = lambda _: None,
        root: Path = Path("/"),
    ) -> None:
        self.record: IoTime | None = None
        self._label, self._done, self._root = label, done, root

    def runs(self) -> Runs:
        """Yield once; the body runs in between."""
        __tracebackhide__ = True
        own = self._own()
        before = read_counters(self._root)
        start_s = time.perf_counter()
        stopped = "an error or an interrupt"
        try:
            yield
            stopped = ""
        finally:
            wall_s = time.perf_counter() - start_s
            after = read_counters(self._root)
            try:
                self.record = self._judge(wall_s, before, after, own, stopped)
                keep_last(self.record)
            finally:
                self._done(self.record)

    def _own(self) -> tuple[int, int]:
        """Bytes and calls that reading the counters adds to them."""
        seen = [read_counters(self._root) for _ in range(4)]
        known = [each for each in seen if each is not None]
        if len(known) < len(seen):
            return 0, 0
        # Other threads can only add to a difference.
        return (
            min(after.rchar - before.rchar for before, after in pairwise(known)),
            min(after.syscr - before.syscr for before, after in pairwise(known)),
        )

    def _judge(
        self,
        wall_s: float,
        before: Counters | None,
        after: Counters | None,
        own: tuple[int, int],
        stopped: str,
    ) -> IoTime:
        reasons = [f"stopped by {stopped}"] if stopped else []
        if before is None or after is None:
            reasons.append("the kernel does not count this process's I/O here (/proc/self/io)")
            return self._record(wall_s, stopped, Quality(status="refused", reasons=tuple(reasons)))
        # The reading before the body counts itself only afterwards.
        rchar = max(0, after.rchar - before.rchar - own[0])
        syscr = max(0, after.syscr - before.syscr - own[1])
        device = after.read_bytes - before.read_bytes
        state, doubt = self._state(rchar, device)
        reasons += [doubt] if doubt else []
        return self._record(
            wall_s,
            stopped,
            Quality(
                status="suspect" if reasons else "valid",
                reasons=tuple(reasons),
                source="/proc/self/io",
            ),
            read_requested_bytes=rchar,
            read_device_bytes=device,
            write_requested_bytes=after.wchar - before.wchar,
            write_device_bytes=after.write_bytes - before.write_bytes,
            read_calls=syscr,
            write_calls=after.syscw - before.syscw,
            mapped_read_bytes=max(0, device - rchar),
            major_faults=after.major_faults - before.major_faults,
            state=state,
        )

    def _state(self, requested: int, device: int) -> tuple[str, str]:
        """Where the bytes came from, and why that is in doubt."""
        if max(requested, device) < SMALL:
            return "none", ""
        share = device / requested if requested else 1.0
        if share >= MOSTLY:
            return "device", ""
        network = self._network_mounts()
        if network:
            return "unknown", (
                f"bytes from {', '.join(network)} are not counted as read from a device: what is "
                "missing may have come over the network"
            )
        return ("page cache" if share <= 1 - MOSTLY else "mixed"), ""

    def _network_mounts(self) -> list[str]:
        kinds = set()
        for line in read(self._root / "proc/self/mountinfo").splitlines():
            _, _, rest = line.partition(" - ")
            kind = rest.split(" ")[0]
            # The kernel does not count its bytes as read from a device.
            if is_network(kind):
                kinds.add(kind)
        return sorted(kinds)

    def _record(self, wall_s: float, stopped: str, quality: Quality, **seen: object) -> IoTime:
        return IoTime.of(
            label=self._label,
            wall_s=wall_s,
            stopped=stopped,
            machine=machine(),
            quality=quality,
            **seen,
        )
