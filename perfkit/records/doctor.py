"""What a machine really gives, and what in it should be put right."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.records.base import Bytes, Count, Part, Quality, Record, Seconds, Share
from perfkit.records.machine import Limits, Machine

__all__ = [
    "Array",
    "CacheLevel",
    "Change",
    "Diagnosis",
    "FileSystem",
    "Finding",
    "Gpu",
    "GpuStack",
    "Library",
    "Processor",
    "Product",
    "Severity",
    "Surroundings",
    "Switch",
    "Weather",
]

Severity = Literal["problem", "warning", "note"]


class CacheLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One level of the caches, as the kernel lists it. `instances`: how many this machine has."""

    level: Count
    size_bytes: Bytes
    shared_by_cpus: Count
    instances: Count


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine's processors and memory, whatever this process may use of them.

    `isa`: the vector extensions. `threads_per_core`: above 1 with SMT. `reasons`: why a field is
    None.
    """

    model: str = ""
    isa: tuple[str, ...] = ()
    cpus: Count | None = None
    cores: Count | None = None
    sockets: Count | None = None
    threads_per_core: Count | None = None
    numa_nodes: Count | None = None
    caches: tuple[CacheLevel, ...] = ()
    memory_bytes: Bytes | None = None
    reasons: tuple[str, ...] = ()


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Where this process runs; an empty text: nothing of that kind was seen.

    `container`: its kind. `hypervisor`: of a virtual machine. `batch`: the scheduler, its job and
    what it granted. `hub`: JupyterHub or Binder. `cpus_granted`: by the batch system.
    """

    container: str = ""
    hypervisor: str = ""
    batch: str = ""
    hub: str = ""
    cpus_granted: Count | None = None


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How quiet it is just now.

    `lost_share`: part of a short spin in which this thread did not run, `longest_gap_s` its longest
    stretch. `*_pressure`: share of the last ten seconds in which some task waited, from
    /proc/pressure. `throttled_share`: part of the quota's periods that ended in a stop, since the
    group was made; `throttled_s` all stops. `memory_used_bytes`: counted against the limit, without
    what the kernel can drop. `memory_available_bytes`: before the limit or the machine is full.
    """

    spin_s: Seconds | None = None
    lost_share: Part | None = None
    longest_gap_s: Seconds | None = None
    cpu_pressure: Part | None = None
    memory_pressure: Part | None = None
    io_pressure: Part | None = None
    load: Share | None = None
    periods: Count | None = None
    throttled_share: Part | None = None
    throttled_s: Seconds | None = None
    memory_used_bytes: Bytes | None = None
    memory_available_bytes: Bytes | None = None


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """What lies behind a path that matters. `use`: what for. `reason`: why the rest is missing."""

    use: str
    path: str
    fstype: str = ""
    network: bool = False
    memory_backed: bool = False
    free_bytes: Bytes | None = None
    total_bytes: Bytes | None = None
    reason: str = ""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A numeric library of this process.

    `kind`: BLAS, LAPACK, OpenMP, threads (another pool), package, SIMD or FFT. `of`: the package
    that brought it. `threads`: how many it uses now. `loaded`: is it in this process? `can_set`:
    does threadpoolctl know how to set its threads? `reason`: why something is not known.
    """

    name: str
    kind: Literal["BLAS", "LAPACK", "OpenMP", "threads", "package", "SIMD", "FFT"]
    version: str = ""
    of: str = ""
    threads: Count | None = None
    architecture: str = ""
    layer: str = ""
    path: str = ""
    loaded: bool = True
    can_set: bool = False
    details: str = ""
    reason: str = ""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that changes numbers or speed. `name`: as code spells it; `means`: in words."""

    of: str
    name: str
    value: str
    means: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its driver tells it; None or empty: not told, and `reasons` says why.

    `sharing`: MIG, time-slicing or alone, as far as it can be seen. `others`: processes on it
    beside this one. `slowed_by`: what holds the clock down now. `link_width` and
    `link_generation`: of PCI Express now, and at most.
    """

    index: Count
    name: str
    uuid: str = ""
    compute_capability: str = ""
    memory_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    sharing: str = ""
    others: Count | None = None
    others_bytes: Bytes | None = None
    slowed_by: tuple[str, ...] = ()
    temperature_C: float | None = None
    power_W: float | None = None
    power_limit_W: float | None = None
    ecc: bool | None = None
    ecc_errors: Count | None = None
    link_width: Count | None = None
    link_width_max: Count | None = None
    link_generation: Count | None = None
    link_generation_max: Count | None = None
    reasons: tuple[str, ...] = ()


class GpuStack(msgspec.Struct, frozen=True, kw_only=True):
    """What stands under the GPUs. `needs`: what a GPU would need here, in a line; empty where there
    is one. `cuda`: the newest CUDA that the driver serves.
    """

    driver: str = ""
    cuda: str = ""
    needs: str = ""
    reasons: tuple[str, ...] = ()


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """A float64 array that the user holds. `exact`: every value looked at is one of float32."""

    name: str
    nbytes: Bytes
    exact: bool


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix product `n` by `n` on `threads` threads: 2 n^3 operations over the median time.

    `peak_flops`: the most that the processor did in registers alone, on as many threads, in the
    same seconds; None where that cannot be measured. `quality.spread`: of the samples.
    """

    library: str
    dtype: str
    n: Count
    threads: Count
    seconds: Seconds
    samples: Count
    peak_flops: Share | None = None
    quality: Quality = Quality()

    @property
    def flops(self) -> float:
        """Operations a second."""
        return 2 * self.n**3 / self.seconds

    @property
    def of_peak(self) -> float | None:
        """Part of the peak."""
        return self.flops / self.peak_flops if self.peak_flops else None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know. `evidence`: what was seen. `fix`: a line to run, empty where there is
    none. `gain`: what it should bring here. `lesson`: its number. `safe`: `--fix` applies it.
    """

    id: str
    severity: Severity
    title: str
    evidence: str
    fix: str = ""
    gain: str = ""
    lesson: str = ""
    safe: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What `--fix` changed. `undo`: the line that takes it back."""

    what: str
    before: str
    after: str
    undo: str


class Diagnosis(Record, frozen=True, kw_only=True):
    """All of it. `findings`: the worst first, after the fix where one was made. `seconds`: how long
    the examination took.

    `thread_gain`: how many times as fast a small product is on as many threads as there are CPUs
    to use, as on those that are set. `float32_gain`: of the largest float64 array's values in
    float32. `denormals`: what happens to numbers below the smallest normal one, and
    `denormals_factor` how many times as long NumPy takes for them. None: not measured.
    """

    machine: Machine
    limits: Limits
    processor: Processor = Processor()
    surroundings: Surroundings = Surroundings()
    weather: Weather = Weather()
    file_systems: tuple[FileSystem, ...] = ()
    libraries: tuple[Library, ...] = ()
    switches: tuple[Switch, ...] = ()
    gpu_stack: GpuStack = GpuStack()
    gpus: tuple[Gpu, ...] = ()
    arrays: tuple[Array, ...] = ()
    denormals: str = ""
    denormals_factor: Share | None = None
    thread_gain: Share | None = None
    float32_gain: Share | None = None
    products: tuple[Product, ...] = ()
    findings: tuple[Finding, ...] = ()
    changes: tuple[Change, ...] = ()
    seconds: Seconds | None = None
    reasons: tuple[str, ...] = ()
