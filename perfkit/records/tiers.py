"""The tiers of a machine: what each probe saw, and the table that they make."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.records.base import Bytes, Count, Quality, Record, Seconds, Share
from perfkit.records.machine import Limits, Machine

__all__ = [
    "CacheState",
    "IoTime",
    "Job",
    "Noise",
    "PlannedPath",
    "Plateau",
    "Summary",
    "Target",
    "Tier",
    "TierAnswer",
    "TierPlan",
    "TierProbe",
    "TierTable",
    "Tristate",
]

Tristate = Literal["yes", "no", "partly", "unknown"]
"""To "does it persist?" and "do nodes share it?"; partly: while the job or reservation lasts."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one figure, in the unit of the field that holds it. `n`: samples that count."""

    median: float
    min: float
    max: float
    p25: float | None = None
    p75: float | None = None
    n: Count

    @property
    def spread(self) -> float | None:
        """IQR over median."""
        if self.p25 is None or self.p75 is None or not self.median:
            return None
        return (self.p75 - self.p25) / self.median


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a probe worked. `memory_backed`: the file system lies in RAM; `network`: on other
    machines. `stripe`: as the file system tells it.
    """

    path: str = ""
    fstype: str = ""
    source: str = ""
    st_dev: str = ""
    mount_options: str = ""
    memory_backed: bool = False
    network: bool = False
    stripe: str | None = None
    free_bytes: Bytes | None = None
    total_bytes: Bytes | None = None
    device: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, in the words of fio (storage), STREAM (memory), mdtest (metadata) and
    nvbandwidth (devices). `bs`, `size` in bytes.
    """

    rw: str = ""
    bs: Bytes | None = None
    size: Bytes | None = None
    ioengine: str = ""
    iodepth: Count | None = None
    numjobs: Count | None = None
    direct: bool | None = None
    end_fsync: bool | None = None
    runtime_s: Seconds | None = None
    ramp_time_s: Seconds | None = None
    kernel: str = ""
    threads: Count | None = None
    array_bytes: Bytes | None = None
    array_to_llc: Share | None = None
    bytes_per_element: Count | None = None
    page_size: str = ""
    pattern: str = ""
    working_set_bytes: Bytes | None = None
    items: Count | None = None
    file_bytes: Bytes | None = None
    pinned: bool | None = None
    tasks: Count | None = None
    clients_per_node: Count | None = None
    access: str = ""
    reorder_tasks: Count | None = None
    rules: str = ""


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes came from. `device_share`: bytes that the block layer read over bytes asked
    for; None where the kernel does not count them. `resident_before`: part of the file in the page
    cache before. `second_pass_ratio`: speed of a second pass over the first; much more than one
    tells of a cache below this machine. `state`: uncached, page cache, mixed, memory or unknown.
    """

    device_share: Share | None = None
    resident_before: Share | None = None
    dio_align: Count | None = None
    second_pass_ratio: Share | None = None
    state: Literal["uncached", "page cache", "mixed", "memory", "unknown"] = "unknown"


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What disturbed the probe. `clean`, `disturbed`: samples without and with an involuntary
    context switch. `all_median_over_clean`: median of all samples over that of the clean ones.
    """

    clean: Count = 0
    disturbed: Count = 0
    all_median_over_clean: Share | None = None
    wait_share: Share | None = None
    psi_cpu_some: Share | None = None
    psi_io_some: Share | None = None
    nr_throttled: Count | None = None
    loadavg: Share | None = None


class Plateau(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of sizes with one latency: a level of the cache, or memory. `nominal_bytes`: what
    the kernel says of the level.
    """

    level: str
    seconds: Seconds | None
    end_bytes: Bytes | None = None
    nominal_bytes: Bytes | None = None


class TierProbe(Record, frozen=True, kw_only=True):
    """One probe. Figures that it does not give are None: never 0.

    `probe`: memory.bandwidth, memory.latency, storage.read, storage.write, storage.metadata,
    device.copy, device.bandwidth, device.launch. `bandwidth_Bps`: counted bytes per second;
    `sustained_Bps`: the mean over all samples, throttled ones included. `iops`: operations per
    second. `latency_s`: of one operation; `percentiles_s`: pairs of percent and seconds. `curve`:
    pairs of a size in bytes (or a number of readers) and seconds (or bytes per second), as
    `curve_unit` says.
    """

    probe: str
    tier: str = ""
    time: str = ""
    host: str = ""
    rank: Count = 0
    target: Target = Target()
    job: Job = Job()
    bandwidth_Bps: Summary | None = None
    sustained_Bps: float | None = None
    iops: Summary | None = None
    latency_s: Summary | None = None
    percentiles_s: tuple[tuple[float, float], ...] = ()
    io_bytes: Bytes | None = None
    curve: tuple[tuple[float, float], ...] = ()
    curve_unit: str = ""
    plateaus: tuple[Plateau, ...] = ()
    bw_first_done_Bps: float | None = None
    bw_last_done_Bps: float | None = None
    start_skew_s: Seconds | None = None
    cache: CacheState | None = None
    noise: Noise = Noise()
    limits: Limits | None = None
    notes: tuple[str, ...] = ()
    quality: Quality = Quality()


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table, in the deck's columns. `kind`: device, memory, cache or storage.
    `figures`: measured here, nominal (a data sheet) or measured elsewhere. `multiplier`: what the
    bandwidth is multiplied by, as "nodes". `filled_in`: answers that a person gave.
    """

    name: str
    kind: Literal["device", "memory", "cache", "storage"]
    path: str = ""
    persistent: Tristate = "unknown"
    shared: Tristate = "unknown"
    capacity_bytes: Bytes | None = None
    free_bytes: Bytes | None = None
    read_Bps: float | None = None
    write_Bps: float | None = None
    latency_s: Seconds | None = None
    iops: float | None = None
    multiplier: str = ""
    figures: Literal["measured", "nominal", "elsewhere", "absent"] = "measured"
    filled_in: tuple[str, ...] = ()
    note: str = ""
    quality: Quality = Quality()


class TierAnswer(Record, frozen=True, kw_only=True):
    """What a person said of the tier at `path`; None where they said nothing."""

    path: str
    persistent: Tristate | None = None
    shared: Tristate | None = None


class PlannedPath(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a plan holds. `refused`: why nothing will be written there, or empty;
    `same_as`: an earlier path on the same file system, whose figures count for this one.
    """

    path: str
    name: str
    why: str
    target: Target
    write_bytes: Bytes = 0
    seconds: Seconds = 0.0
    refused: str = ""
    same_as: str = ""


class TierPlan(Record, frozen=True, kw_only=True):
    """What `%tiers` is going to do: memory first, then these paths, then the devices."""

    quick: bool
    budget_s: Seconds
    memory_bytes: Bytes
    memory_s: Seconds
    paths: tuple[PlannedPath, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it may take in all."""
        return self.memory_s + sum(path.seconds for path in self.paths) + 0.5 * len(self.devices)

    @property
    def write_bytes(self) -> int:
        """How much is written to files in all; they are gone afterwards."""
        return sum(path.write_bytes for path in self.paths)


class TierTable(Record, frozen=True, kw_only=True):
    """The tiers of this machine, fastest first, and the probes behind the figures. `reference`:
    rows of a named other machine, beside yours. `advice`: sentences with the figures they rest on.
    """

    label: str = ""
    tiers: tuple[Tier, ...] = ()
    reference: tuple[Tier, ...] = ()
    reference_name: str = ""
    probes: tuple[TierProbe, ...] = ()
    advice: tuple[str, ...] = ()
    plan: TierPlan | None = None
    spent_s: Seconds = 0.0
    waited_s: Seconds = 0.0
    stopped: str = ""
    notes: tuple[str, ...] = ()
    machine: Machine
    quality: Quality

    def tier(self, name: str) -> Tier:
        """The row of that name. Raises KeyError."""
        return {tier.name: tier for tier in self.tiers}[name]

    def json_lines(self) -> str:
        """One probe a line."""
        return "\n".join(probe.to_json() for probe in self.probes)


class IoTime(Record, frozen=True, kw_only=True):
    """What a cell or function read and wrote. `requested`: through read and write calls;
    `device`: what the block layer moved for this process; None where the kernel does not count.
    `mapped_read_bytes`: device bytes beyond what was requested, read through memory maps or
    ahead. `state`: where the requested reads came from.
    """

    label: str = ""
    wall_s: Seconds
    read_requested_bytes: Bytes | None = None
    read_device_bytes: Bytes | None = None
    write_requested_bytes: Bytes | None = None
    write_device_bytes: Bytes | None = None
    read_calls: Count | None = None
    write_calls: Count | None = None
    mapped_read_bytes: Bytes | None = None
    major_faults: Count | None = None
    io_wait_s: Seconds | None = None
    state: Literal["device", "page cache", "mixed", "none", "unknown"] = "unknown"
    notes: tuple[str, ...] = ()
    stopped: str = ""
    machine: Machine
    quality: Quality

    @property
    def cached_share(self) -> float | None:
        """Part of the requested bytes that did not come from a device."""
        if not self.read_requested_bytes or self.read_device_bytes is None:
            return None
        return max(0.0, 1 - self.read_device_bytes / self.read_requested_bytes)

    @property
    def read_Bps(self) -> float | None:
        """Requested bytes over the wall time of the whole cell."""
        if not self.read_requested_bytes or not self.wall_s:
            return None
        return self.read_requested_bytes / self.wall_s
