"""What a trace tells: where each device was busy, where it waited, and for whom."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.records.base import Bytes, Count, Instant, Part, Quality, Record, Seconds
from perfkit.records.machine import Machine

__all__ = [
    "CAUSES",
    "Cause",
    "CauseShare",
    "Compile",
    "Copies",
    "DeviceTimeline",
    "Difference",
    "Gap",
    "Kernel",
    "Launches",
    "Operator",
    "Picture",
    "Step",
    "TimelineReport",
]

Cause = Literal[
    "host late",
    "waiting on a stream",
    "launch gap",
    "data loading",
    "compile",
    "blocking copy",
    "unknown",
]
CAUSES: dict[Cause, str] = {
    "host late": "the host had not launched the next work yet",
    "waiting on a stream": "the next work was launched and waited for another stream or device",
    "launch gap": "the time from a launch to the start of its work",
    "data loading": "the host was fetching or preparing input",
    "compile": "the host was tracing or compiling a program",
    "blocking copy": "the host had waited for a result, so nothing was queued behind it",
    "unknown": "the trace does not show what the host did",
}
"""Why a device was idle. Of several, the one that took the longest part of the gap."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch in which no lane of the device worked. Seconds since the trace began.

    `host`: what the launching thread was doing, as the annotation, operator or Python line that
    covers most of it; empty if the trace does not show it. `before`, `after`: the work on either
    side. `share`: of the device's idle time. `step`: the step it lies in.
    """

    start_s: Instant
    duration_s: Seconds
    cause: Cause
    host: str = ""
    before: str = ""
    after: str = ""
    share: Part = 0.0
    step: int | None = None


class CauseShare(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of one cause, and of the host's doing behind most of it."""

    cause: Cause
    host: str = ""
    idle_s: Seconds
    count: Count
    share: Part


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """How the host feeds the device. `latency_*_s`: from the start of the launching call to the
    start of the work. `depth_*`: launches that had not started when another was made.
    """

    count: Count
    latency_median_s: Seconds | None = None
    latency_p99_s: Seconds | None = None
    depth_median: Count | None = None
    depth_max: Count | None = None


class DeviceTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One device over the whole trace. span = first start to last end of its work; busy = union
    over its lanes; idle = span - busy; compute = union of kernels that are no collectives;
    non-compute = busy - compute; duty cycle = busy / span. It says how long the device had work,
    not how well it used it.

    `hidden_s`: copies and collectives that ran while something computed. `gaps`: the largest.
    """

    name: str
    start_s: Instant
    span_s: Seconds
    busy_s: Seconds
    idle_s: Seconds
    compute_s: Seconds
    non_compute_s: Seconds
    copy_s: Seconds
    collective_s: Seconds
    hidden_s: Seconds
    duty_cycle: Part
    intervals: Count
    lanes: tuple[str, ...] = ()
    gap_count: Count = 0
    gaps: tuple[Gap, ...] = ()
    causes: tuple[CauseShare, ...] = ()
    launches: Launches | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step, from its start to the start of the next one (the last one to its own end).
    `busy_s`: of the device that worked most. `outlier`: it took much longer than the median.
    """

    name: str
    number: int | None = None
    start_s: Instant
    duration_s: Seconds
    busy_s: Seconds | None = None
    duty_cycle: Part | None = None
    blocking_copies: Count = 0
    compiles: Count = 0
    outlier: bool = False


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All work of one name on one device. `share`: of the sum over all its work."""

    name: str
    device: str
    kind: str
    count: Count
    total_s: Seconds
    share: Part


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator on the host. `self_s`: without the operators inside it."""

    name: str
    count: Count
    total_s: Seconds
    self_s: Seconds


class Compile(msgspec.Struct, frozen=True, kw_only=True):
    """Compilations of one program: `shapes` where the trace tells them, one for each."""

    name: str
    count: Count
    total_s: Seconds
    shapes: tuple[str, ...] = ()


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies in one direction. `blocking`: those that the host waited for."""

    direction: Literal["h2d", "d2h", "d2d", "memset"]
    device: str
    count: Count
    nbytes: Bytes | None = None
    seconds: Seconds
    blocking: Count | None = None


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as it is drawn: bars as (start, end, kind, name), close ones merged."""

    device: str
    lane: str
    bars: tuple[tuple[Instant, Instant, str, str], ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of this trace beside the same one of the other."""

    what: str
    here: float | None = None
    there: float | None = None
    unit: Literal["s", "share", "count"] = "s"


class TimelineReport(Record, frozen=True, kw_only=True):
    """What one trace tells. `devices` is empty where it has no device events; `host` then says
    when the host's operators ran.

    `selection`: what of the trace is in. `events`: intervals read. `against`: the other trace's
    label, with `differences`. `stopped`: why recording ended early, or empty.
    """

    label: str = ""
    source: str = ""
    selection: str = "the whole trace"
    events: Count = 0
    span_s: Seconds | None = None
    devices: tuple[DeviceTimeline, ...] = ()
    host: DeviceTimeline | None = None
    steps: tuple[Step, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    operators: tuple[Operator, ...] = ()
    compiles: tuple[Compile, ...] = ()
    copies: tuple[Copies, ...] = ()
    picture: tuple[Picture, ...] = ()
    against: str = ""
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = ""
    machine: Machine | None = None
    quality: Quality
