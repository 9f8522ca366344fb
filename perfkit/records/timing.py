"""What one body of code cost: first call, host, device, wall, and who was waiting for whom."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from perfkit.records.base import Bytes, Count, Instant, Quality, Record, Seconds
from perfkit.records.machine import Machine

__all__ = [
    "DISTURBED",
    "THRESHOLDS",
    "Direction",
    "Part",
    "Sample",
    "Span",
    "Thresholds",
    "Timing",
    "Transfer",
    "is_disturbed",
]


Direction = Literal["h2d", "d2h", "d2d"]


class Thresholds(NamedTuple):
    """Where one verdict ends and the next begins. Shares are of wall time."""

    device_busy: float = 0.6
    """device or transfer: the device is busy for at least this share."""
    device_idle: float = 0.4
    """launch or host: it is busy for at most this share; between the two there is no verdict."""
    copying: float = 0.5
    """transfer: at least this share of the busy time is copies between host and device."""
    launches: int = 10
    """launch: at least so many launches in one run ..."""
    launch_s: float = 100e-6
    """... and at most so much host time for each; above it the host does other work."""


THRESHOLDS = Thresholds()
DISTURBED = 0.05
"""A sample is disturbed if the thread waited for a core for more than this share of it."""
ENOUGH_CLEAN = (12, 0.3)
"""Clean samples are used alone if there are so many, and they are such a share of all."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample, in seconds per run of the body. None: not measurable here.

    `wait_s`: how long the thread stood ready without a core. `launches`: commands given to
    devices, None if they are not counted. `compiles`: programs that a runtime compiled, and the
    seconds of the host that this took.
    """

    naive_s: Seconds
    wall_s: Seconds | None = None
    host_s: Seconds | None = None
    device_s: Seconds | None = None
    device_busy_s: Seconds | None = None
    wait_s: Seconds | None = None
    launches: Count | None = 0
    compiles: Count = 0
    compile_s: Seconds = 0.0


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Copies in one direction during one run: `h2d`, `d2h` or `d2d`. `memory`: the host's side of
    them, None where the runtime does not tell.
    """

    direction: Direction
    memory: Literal["pinned", "pageable"] | None = None
    count: Count
    nbytes: Bytes
    seconds: Seconds

    @property
    def bandwidth_Bps(self) -> float | None:
        """Bytes per second while copying; None if bytes or time are not known."""
        return self.nbytes / self.seconds if self.nbytes and self.seconds else None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one runtime did in a typical run, in seconds; None where it does not tell."""

    backend: str
    device_s: Seconds | None = None
    device_busy_s: Seconds | None = None
    launches: Count | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of the picture of the last run, in seconds from the start of the body."""

    lane: str
    kind: str
    name: str
    start_s: Instant
    end_s: Instant


class Timing(Record, frozen=True, kw_only=True):
    """A timed cell or function. Seconds are the median over the samples, for one run.

    Asked: `repeat`, `warmup`, `budget_s`, `cold`, `synchronized`. Seen: all the rest.
    `first` is the first call, never averaged into the others; with `repeat=1` it is the only one.
    `parts`: each runtime that worked, by itself.
    `number`: runs in each sample. `runs`: how often the body ran in all.
    `trimmed`: samples at the front that still belonged to the warm-up; medians leave them out.
    `collections`: garbage collections while sampling. `drain_s`: cost of draining idle runtimes.
    `traced`: one run under a runtime's profiler, whose device times stand in where samples have
    none. `replays`: samples of the captured graph.
    Memory of the first call: `device_peak_bytes`, the highest device use, where the call raised it;
    `device_retained_bytes`, what stayed on the device; `host_peak_bytes`, how far the process grew;
    `kept`, names that hold what stayed.
    `pending`: commands that had not ended when an unsynchronised stopwatch stopped.
    `stopped`: why it ended early, or empty.
    """

    label: str = ""
    repeat: Count | Literal["auto"]
    warmup: Count | None = None
    budget_s: Seconds
    cold: bool = False
    synchronized: bool = True
    first: Sample
    samples: tuple[Sample, ...] = ()
    traced: Sample | None = None
    replays: tuple[Sample, ...] = ()
    number: Count = 1
    runs: Count = 1
    trimmed: Count = 0
    single_thread: bool = False
    collections: Count = 0
    drain_s: Seconds | None = None
    pending: Count | None = None
    backends: tuple[str, ...] = ("host",)
    parts: tuple[Part, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    spans: tuple[Span, ...] = ()
    device_peak_bytes: Bytes | None = None
    device_retained_bytes: int | None = None
    host_peak_bytes: Bytes | None = None
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = ""
    machine: Machine
    quality: Quality

    @property
    def first_s(self) -> float | None:
        """Wall time of the first call, until everything was drained."""
        return self.first.naive_s if self.first.wall_s is None else self.first.wall_s

    @property
    def naive_s(self) -> float | None:
        """What a stopwatch around the body says, no synchronisation added."""
        return self._median(lambda sample: sample.naive_s)

    @property
    def host_s(self) -> float | None:
        """Naive time less the time blocked in device waits; None where waits are not seen."""
        return self._median(lambda sample: sample.host_s)

    @property
    def wall_s(self) -> float | None:
        """From the start of the body until every watched device was drained."""
        return self._median(lambda sample: sample.wall_s)

    @property
    def device_s(self) -> float | None:
        """From the first start to the last end of the device's work."""
        known = self._median(lambda sample: sample.device_s)
        return self.traced.device_s if known is None and self.traced else known

    @property
    def device_busy_s(self) -> float | None:
        """Time in which at least one lane was busy: overlap counts once."""
        known = self._median(lambda sample: sample.device_busy_s)
        return self.traced.device_busy_s if known is None and self.traced else known

    @property
    def idle_s(self) -> float | None:
        """`device_s` less `device_busy_s`."""
        if self.device_s is None or self.device_busy_s is None:
            return None
        return max(0.0, self.device_s - self.device_busy_s)

    @property
    def busy_share(self) -> float | None:
        """Share of the wall time in which the device was busy, both from the same runs."""
        busy_s, wall_s = self._median(lambda sample: sample.device_busy_s), self.wall_s
        if busy_s is None and self.traced:
            busy_s, wall_s = self.traced.device_busy_s, self.traced.wall_s
        return busy_s / wall_s if busy_s is not None and wall_s else None

    @property
    def launches(self) -> int | None:
        """Commands given to devices in one run; None if the runtime does not count them."""
        launches = self._median(lambda sample: sample.launches)
        return None if launches is None else int(launches)

    @property
    def compile_s(self) -> float:
        """Seconds of the first call that went into tracing and compiling."""
        return self.first.compile_s

    @property
    def recompiles(self) -> int:
        """Programs compiled after the warm-up, where none should be."""
        return 0 if self.repeat == 1 else sum(sample.compiles for sample in self.samples)

    @property
    def replay_s(self) -> float | None:
        """Wall time of one replay of the captured graph; None without `--graph`."""
        known = [sample.wall_s for sample in self.replays if sample.wall_s is not None]
        return median(known) if known else None

    @property
    def used(self) -> tuple[Sample, ...]:
        """The samples that the medians are taken over: after the warm-up, and clean ones
        alone where there are enough of them (see DISTURBED, ENOUGH_CLEAN).
        """
        kept = self.samples[self.trimmed :]
        if not self.single_thread:
            return kept
        clean = tuple(sample for sample in kept if not is_disturbed(sample))
        least, share = ENOUGH_CLEAN
        return clean if len(clean) >= max(least, share * len(kept)) else kept

    @property
    def verdict(self) -> Literal["synchronous", "launch", "device", "transfer", "host"] | None:
        """Who sets the pace, by THRESHOLDS; None where it cannot be known or nobody does."""
        if not self.synchronized or not self.samples:
            return None
        if self.backends == ("host",):
            return "synchronous"
        busy = self.busy_share
        if busy is None or self.device_busy_s is None:
            return None
        if busy >= THRESHOLDS.device_busy:
            crossing = sum(copy.seconds for copy in self.transfers if copy.direction != "d2d")
            return "transfer" if crossing >= THRESHOLDS.copying * self.device_busy_s else "device"
        if busy > THRESHOLDS.device_idle:
            return None
        return "launch" if self._is_launch_bound() else "host"

    def _is_launch_bound(self) -> bool:
        if self.launches is None or self.launches < THRESHOLDS.launches or self.host_s is None:
            return False
        return self.host_s <= THRESHOLDS.launch_s * self.launches

    def _median(self, get: Callable[[Sample], float | None]) -> float | None:
        values = [get(sample) for sample in self.used]
        known = [value for value in values if value is not None]
        return median(known) if known and len(known) == len(values) else None


def is_disturbed(sample: Sample) -> bool:
    """Did the thread stand without a core for a share of the sample that matters?"""
    span_s = sample.naive_s if sample.wall_s is None else sample.wall_s
    return sample.wait_s is not None and sample.wait_s > DISTURBED * span_s
