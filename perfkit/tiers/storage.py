"""What a file system gives to one reader and to several, and what it takes in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perfkit.errors import UsageError
from perfkit.records.base import Quality
from perfkit.records.tiers import CacheState, Job, Target, TierProbe
from perfkit.system.facts import machine
from perfkit.tiers.cache import Bypass, bypass, cache_state, drop, resident_share
from perfkit.tiers.files import Reading, Reads, asks_huge_pages, check_path, read_file
from perfkit.tiers.samples import Samples, Surroundings, origin
from perfkit.tiers.scratch import PAGE, file_cap, pages, plain_errors, scratch_file
from perfkit.units import ratio, share

__all__ = [
    "led_to",
    "new_probe",
    "probe_reads",
    "said_of",
    "samples_of",
    "silent",
    "write_file",
]

QUICK_S, FULL_S = 2.5, 20.0
MANY_READERS = 32
WORTH_IT = 1.15
MOST_SPREAD, FEW = 0.5, 4
CLIENT_LIMIT, INTERPRETER_LIMIT = 0.9, 0.7
CACHE_BELOW = 2.0
_MIB = 2**20
_WEIGHTS = {"write": 7, "read": 2.5, "again": 1.2, "step": 1.2, "readers": 2, "random": 3}
_WEIGHTS |= {"random readers": 3, "buffered": 2.5, "warm": 1}


_Wanted = Literal["uncached", "page cache"]
_TIERS = {"memory": "memory", "page cache": "page cache"}


def silent(step: str) -> None:
    """What a probe does next, told to nobody."""


def probe_reads(
    path: str | Path,
    *,
    quick: bool = True,
    budget_s: float | None = None,
    readers: Sequence[int] = (1, 2, 4, 8),
    tick: Callable[[str], None] = silent,
) -> list[TierProbe]:
    """Write one scratch file in the folder `path`, with fsync, and read it in several ways.

    Gives: the write; sequential reads of 1 MiB by one reader, with the curve over `readers`, and by
    the best number of them; random reads of 4 KiB by one and by 32; then, through the page cache,
    a cold read and a warm one. It ends by the clock: `budget_s` seconds, 2.5 by default, 20 when
    not `quick`. `tick` is told each step before it begins. The file is gone afterwards.

    Raises UsageError for a folder that cannot be probed, NotSupportedHere for what the file system
    refuses in the middle.
    """
    target = check_path(path)
    counts = sorted({1, *readers})
    if counts[0] < 1:
        raise UsageError(f"readers are {tuple(readers)}: give whole numbers from 1")
    clock = _Clock(budget_s or (QUICK_S if quick else FULL_S), len(counts) - 1)
    notes = led_to(path, target)
    with plain_errors(target.path), scratch_file(target.path) as fd, ExitStack() as stack:
        tick("write")
        around = Surroundings()
        stretches = write_file(fd, file_cap(target), clock.seconds("write"))
        written = _record_of_writes(target, stretches, around, notes)
        way, size = bypass(fd, stack), os.fstat(fd).st_size
        bed = _Bed(target=target, way=way, size=size, notes=notes, clock=clock, tick=tick)
        read = [*_sequential(bed, counts), *_random(bed)]
        return [written, *read, *(() if target.memory_backed else _buffered(bed))]


def led_to(path: str | Path, target: Target) -> tuple[str, ...]:
    """A note where `path` is or holds a symbolic link."""
    asked = os.path.normpath(Path(path).expanduser().absolute())
    return () if asked == target.path else (f"{asked} leads to {target.path}",)


class _Clock:
    """Deals out a budget in seconds. What one step takes too much is taken from the last ones."""

    def __init__(self, budget_s: float, steps: int) -> None:
        total = sum(_WEIGHTS.values()) + (steps - 1) * _WEIGHTS["step"]
        self._unit_s = budget_s / total
        self._end_s = time.perf_counter() + budget_s

    def seconds(self, step: str) -> float:
        """For this step; at least enough for a few reads."""
        return max(0.02, min(_WEIGHTS[step] * self._unit_s, self.left_s))

    @property
    def left_s(self) -> float:
        """Until the end of the budget."""
        return self._end_s - time.perf_counter()


def write_file(fd: int, size: int, seconds: float) -> list[tuple[int, float]]:
    """Fill a file with up to `size` bytes: bytes and seconds of each stretch, its fsync included.

    Stretches grow from 4 to 64 MiB, as far as the time allows; the first is always written.
    Raises OSError.
    """
    blocks, stretches, done = pages(), list[tuple[int, float]](), 0
    step, end_s = 4 * _MIB, time.perf_counter() + seconds
    while done < size and step >= min(_MIB, size):
        begin, stop, took_s = done, min(size, done + step), 0.0
        while done < stop:
            block = memoryview(next(blocks))[: stop - done]
            start_s = time.perf_counter()
            done += os.pwrite(fd, block, done)
            took_s += time.perf_counter() - start_s
        start_s = time.perf_counter()
        os.fsync(fd)
        took_s += time.perf_counter() - start_s
        stretches.append((stop - begin, took_s))
        fits = int((end_s - time.perf_counter()) * (stop - begin) / max(took_s, 1e-9))
        step = min(2 * step, 64 * _MIB, fits // _MIB * _MIB)
    return stretches


@dataclass(frozen=True)
class _Seen:
    """One pass: what was asked, what came, and what of the file was in the page cache before."""

    job: Reading
    reads: Reads
    resident: float | None
    around: Surroundings
    direct: bool


@dataclass(frozen=True, kw_only=True)
class _Bed:
    """A written file, the way past the page cache, and what each of its records says."""

    target: Target
    way: Bypass
    size: int
    notes: tuple[str, ...]
    clock: _Clock
    tick: Callable[[str], None]

    @property
    def bs(self) -> int:
        """Of sequential reads."""
        return min(_MIB, self.size)

    def read(self, step: str, job: Reading) -> _Seen:
        """One pass beside the page cache, with its proof."""
        self.tick(step)
        around = Surroundings()
        resident = self.way.prepare(random=job.random)
        if not self.way.direct:
            job = replace(job, once=True, flags=self.way.flags)
        reads = read_file(self.way.fd, job)
        return _Seen(job, reads, resident, around, self.way.direct)

    def record(
        self,
        seen: _Seen,
        *,
        wanted: _Wanted = "uncached",
        second_pass: float | None = None,
        curve: tuple[tuple[float, float], ...] = (),
        notes: tuple[str, ...] = (),
    ) -> TierProbe:
        """The record of a pass, refused where its bytes did not come from where they should."""
        job, reads = seen.job, seen.reads
        proof = cache_state(
            self.target,
            asked=reads.nbytes,
            from_device=reads.device_bytes,
            resident_before=seen.resident,
            dio_align=self.way.dio_align,
            second_pass_ratio=second_pass,
        )
        # What is read ahead comes in bursts: short stretches would tell of them alone.
        stretches = reads.rates_Bps(20 if seen.direct or proof.state != "uncached" else 5)
        rates, latencies = samples_of(stretches), reads.latencies_s()
        wait_share = None if reads.wait_s is None else reads.wait_s / reads.seconds / job.readers
        return new_probe(
            "storage.read",
            self.target,
            tier=_TIERS.get(proof.state, ""),
            job=_job_of(job, self.size, seen.direct),
            bandwidth_Bps=rates.summary(),
            sustained_Bps=reads.mean_Bps,
            iops=samples_of([rate / job.bs for rate in stretches]).summary(),
            latency_s=samples_of(latencies).summary(),
            percentiles_s=_percentiles(latencies),
            io_bytes=reads.nbytes,
            curve=curve,
            curve_unit="readers, B/s" if curve else "",
            cache=proof,
            noise=seen.around.noise(Samples(), wait_share=wait_share),
            notes=(*self.notes, *self.way.notes, *notes, *_halves(reads), *said_of(self.target)),
            quality=_judged(seen, proof, rates, wanted),
        )


def _sequential(bed: _Bed, counts: Sequence[int]) -> Iterator[TierProbe]:
    job = Reading(bs=bed.bs, seconds=bed.clock.seconds("read"))
    one = bed.read("read", job)
    again = bed.read("read again", replace(job, seconds=bed.clock.seconds("again")))
    rates = {1: one.reads.mean_Bps}
    for count in counts[1:]:
        # A slow disk needs as long for one round of many readers as for as many blocks.
        if count * bed.bs / rates[1] > bed.clock.left_s / 2:
            break
        step = replace(job, readers=count, seconds=bed.clock.seconds("step"))
        rates[count] = bed.read(f"read, {count} readers", step).reads.mean_Bps
    second_pass = again.reads.mean_Bps / one.reads.mean_Bps
    curve = tuple((float(count), rate) for count, rate in rates.items())
    yield bed.record(one, second_pass=second_pass, curve=curve, notes=(_answer(rates),))
    best = max(rates, key=lambda count: rates[count])
    if best > 1:
        many = replace(job, readers=best, seconds=bed.clock.seconds("readers"))
        yield bed.record(bed.read(f"read, {best} readers", many))


def _answer(rates: dict[int, float]) -> str:
    """Would parallel readers be faster?"""
    best = max(rates, key=lambda count: rates[count])
    gain = rates[best] / rates[1]
    if len(rates) == 1:
        return "no time to try more readers"
    if gain < WORTH_IT:
        return f"more readers do not read faster: {max(rates)} tried, at best {gain:.2f} x one"
    return f"{best} readers together read {gain:.1f} x as fast as one"


def _random(bed: _Bed) -> Iterator[TierProbe]:
    job = Reading(bs=PAGE, random=True, seconds=bed.clock.seconds("random"))
    yield bed.record(bed.read("random read", job))
    many = replace(job, readers=MANY_READERS, seconds=bed.clock.seconds("random readers"))
    yield bed.record(bed.read(f"random read, {MANY_READERS} readers", many))


def _buffered(bed: _Bed) -> Iterator[TierProbe]:
    """A cold read through the page cache, then the same blocks once more, now warm."""
    fd = bed.way.buffered
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
    drop(fd)
    job = Reading(bs=bed.bs, seconds=bed.clock.seconds("buffered"), once=True)
    bed.tick("buffered read")
    around, resident = Surroundings(), resident_share(fd)
    cold = _Seen(job, read_file(fd, job), resident, around, False)
    yield bed.record(cold, notes=("through the page cache, which was emptied of this file before",))
    bed.tick("warm read")
    length = cold.reads.nbytes
    job = replace(job, seconds=bed.clock.seconds("warm"), once=False, length=length)
    around, resident = Surroundings(), resident_share(fd, length)
    warm = _Seen(job, read_file(fd, job), resident, around, False)
    yield bed.record(warm, wanted="page cache")


def new_probe(probe: str, target: Target, **fields: Any) -> TierProbe:
    """A record with the time, this host and its limits. Raises msgspec.ValidationError."""
    return TierProbe.of(probe=probe, target=target, **origin(), **fields)


def samples_of(values: Sequence[float]) -> Samples:
    """Figures of which none is left out: who waits for a disk gives its core away of itself."""
    samples = Samples()
    for value in values:
        samples.add(value, clean=True)
    return samples


def _record_of_writes(
    target: Target,
    stretches: Sequence[tuple[int, float]],
    around: Surroundings,
    notes: tuple[str, ...],
) -> TierProbe:
    size = sum(nbytes for nbytes, _ in stretches)
    largest = max(nbytes for nbytes, _ in stretches)
    # Short stretches tell more of fsync than of the disk.
    rates = samples_of([nbytes / took_s for nbytes, took_s in stretches if 2 * nbytes >= largest])
    state = "memory" if target.memory_backed else "unknown" if target.network else "uncached"
    few = f"few samples: {len(rates.clean)}" if len(rates.clean) < FEW else ""
    return new_probe(
        "storage.write",
        target,
        tier=_TIERS.get(state, ""),
        job=Job(
            rw="write",
            bs=_MIB,
            size=size,
            ioengine="psync",
            iodepth=1,
            numjobs=1,
            direct=False,
            end_fsync=True,
        ),
        bandwidth_Bps=rates.summary(),
        sustained_Bps=size / sum(took_s for _, took_s in stretches),
        io_bytes=size,
        cache=CacheState(state=state),  # type: ignore[arg-type]
        noise=around.noise(Samples()),
        notes=(*notes, f"fsync after each of {len(stretches)} stretches", *said_of(target)),
        quality=Quality(status="suspect" if few else "valid", reasons=(few,) if few else ()),
    )


def _job_of(job: Reading, size: int, direct: bool) -> Job:
    return Job(
        rw="randread" if job.random else "read",
        bs=job.bs,
        size=size,
        ioengine="psync",
        iodepth=1,
        numjobs=job.readers,
        direct=direct,
        page_size="huge pages asked for" if asks_huge_pages(job.bs) else "",
        runtime_s=job.seconds,
        ramp_time_s=0.0,
    )


def _percentiles(latencies_s: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The 50th, 99th and 99.9th, as far as there are enough reads for at least one above it."""
    total = len(latencies_s)
    known = (percent for percent in (50.0, 99.0, 99.9) if total * (100 - percent) >= 99.9)
    return tuple((percent, latencies_s[int(total * percent / 100)]) for percent in known)


def _halves(reads: Reads) -> Iterator[str]:
    """Devices with a credit for bursts are slower once it is used up."""
    halves = reads.rates_Bps(2)
    if len(halves) == 2 and not 0.8 <= halves[1] / halves[0] <= 1.25:
        yield f"the second half ran at {halves[1] / halves[0]:.2f} x the first"


def said_of(target: Target) -> Iterator[str]:
    """What has to be known about every figure of this file system."""
    if target.memory_backed:
        yield f"{target.fstype} lies in memory: this is memory, not storage"
    elif target.network:
        yield "the server may have these bytes in its own memory"


def _judged(seen: _Seen, proof: CacheState, rates: Samples, wanted: _Wanted) -> Quality:
    """Refused for bytes from the wrong place; suspect where the figure may be another's limit."""
    refused = list(_refusals(proof, wanted))
    doubts = [*_doubts(proof, rates), *(_client(seen) if proof.state == "uncached" else ())]
    summary = rates.summary()
    return Quality(
        status="refused" if refused else "suspect" if doubts else "valid",
        reasons=(*refused, *doubts),
        spread=summary.spread if summary else None,
    )


def _refusals(proof: CacheState, wanted: _Wanted) -> Iterator[str]:
    if proof.state in ("memory", "unknown", wanted):
        return
    part = share(proof.device_share)
    if wanted == "uncached":
        yield f"{part} of these bytes came from the device: this is the page cache, not the disk"
    else:
        yield f"{part} of these bytes came from the device: they do not fit in the page cache"


def _doubts(proof: CacheState, rates: Samples) -> Iterator[str]:
    summary = rates.summary()
    if proof.state == "unknown":
        yield "where these bytes came from cannot be proven on this file system"
    if proof.second_pass_ratio is not None and proof.second_pass_ratio > CACHE_BELOW:
        times = ratio(proof.second_pass_ratio)
        yield f"a second pass is {times} as fast: there is a cache below this machine"
    if summary is None or summary.n < FEW:
        yield f"few samples: {summary.n if summary else 0}"
    elif (summary.spread or 0) > MOST_SPREAD:
        yield f"unsteady: the middle half of the samples spreads over {share(summary.spread)}"


def _client(seen: _Seen) -> Iterator[str]:
    reads, cores = seen.reads, machine().limits.cpus or os.cpu_count() or 1
    if reads.cpu_s / reads.seconds > CLIENT_LIMIT * cores:
        yield f"client limited: {reads.cpu_s / reads.seconds:.1f} of {cores:g} cores were busy"
    elif seen.job.readers > 1 and reads.user_s / reads.seconds > INTERPRETER_LIMIT:
        yield "client limited: the readers wait for one another's turn in Python"
