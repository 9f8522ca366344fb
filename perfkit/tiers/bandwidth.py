"""Memory bandwidth: STREAM's kernels as single passes of NumPy, one pinned thread on each core.

A pass is cut into slices, 8 MiB of each array for all threads together. Each slice is a sample,
short enough to fall between two preemptions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from perfkit.errors import NotSupportedHere, UsageError
from perfkit.optional import loaded
from perfkit.records.base import Quality
from perfkit.records.tiers import Job, TierProbe
from perfkit.system.caches import (
    allowed_cpus,
    last_levels_bytes,
    one_cpu_per_core,
    spare_memory_bytes,
)
from perfkit.system.limits import read_limits
from perfkit.tiers.chase import anonymous_memory, page_size
from perfkit.tiers.samples import Samples, Surroundings, Team, Watch, origin
from perfkit.units import bandwidth, capacity, count

__all__ = ["KERNELS", "Arrays", "Slice", "calls", "probe_bandwidth", "take_turn", "together"]

QUICK_S, FULL_S = 2.5, 12.0
SLICE_BYTES, LEAST_SLICE_BYTES = 2**23, 2**21
USUAL_LAST_LEVEL = 2**25
TO_LAST_LEVEL, MEMORY_SHARE = 4, 0.08
QUICK_ARRAY_BYTES = 2**28
"""In a quick run an array is no larger, also where the last level of the cache is the whole host's:
to touch more takes longer than the run.
"""
# Arrays a power of two apart fall into the same sets of a cache: copy came to 0.4 of its speed.
APART_BYTES = 2**20
TURN_S, LEAST_TURN_S, LEAST_S = 0.07, 0.03, 0.12
COVERED = 0.9
RULES = "based on a variant of the STREAM rules"

KERNELS = {"read": 8, "copy": 16, "scale": 16, "add": 24, "update": 24, "triad": 24}
"""Bytes that STREAM counts for an element of each: what it reads and writes, nothing else."""

Call = Callable[[Any], object]


class Slice(NamedTuple):
    """One sample of one thread; seconds on the clock of all. `clean`: it kept its core."""

    start_s: float
    end_s: float
    clean: bool


def probe_bandwidth(
    *,
    quick: bool = True,
    budget_s: float | None = None,
    threads: int | None = None,
    kernels: Sequence[str] | None = None,
    tick: Callable[[str, float], None] = lambda *_: None,
) -> list[TierProbe]:
    """Bytes per second of each kernel, with one thread and with one on every core allowed (or with
    `threads` alone), counted as STREAM counts.

    `bandwidth_Bps` is of the samples in which every thread kept its core: what the memory gives.
    `sustained_Bps` is the mean over all, which a CPU quota or a neighbour lowers. `budget_s` is the
    wall time aimed at: 2.5 s, or 12 s without `quick`. `tick` is told what is measured and which
    part of the work is done. `triad` is measured where torch is imported already.

    Probes are refused, with the reason, with fewer than 20 clean samples, or with too much scatter,
    or where memory is not to be had. Raises UsageError for an unknown kernel or a count of threads
    that this process may not run, NotSupportedHere for a triad without torch.
    """
    asked, teams = _checked_kernels(kernels), _teams(threads)
    end_s = time.perf_counter() + (budget_s or (QUICK_S if quick else FULL_S))
    last_level = last_levels_bytes(teams[-1])
    nbytes = _array_bytes(last_level)
    if quick:
        nbytes = min(nbytes, QUICK_ARRAY_BYTES)
    probes: list[TierProbe] = []
    for i, cpus in enumerate(teams):
        share_end_s = end_s - (len(teams) - i - 1) * (end_s - time.perf_counter()) / (
            len(teams) - i
        )
        told = _teller(tick, i, len(teams))
        try:
            arrays = Arrays(nbytes, len(cpus))
        except (OSError, MemoryError) as error:
            probes += [_absent(kernel, nbytes, error) for kernel in asked]
            continue
        run = _Run(arrays, cpus, asked, last_level)
        probes += run.probes(share_end_s, told)
    return probes


def _checked_kernels(kernels: Sequence[str] | None) -> list[str]:
    has_torch = loaded("torch") is not None
    if kernels is None:
        return [kernel for kernel in KERNELS if kernel != "triad" or has_torch]
    for kernel in kernels:
        if kernel not in KERNELS:
            raise UsageError(f"no kernel {kernel!r}: there are {', '.join(KERNELS)}")
    if "triad" in kernels and not has_torch:
        raise NotSupportedHere(
            "a triad in one pass needs torch: import it first, or take add, which moves as much"
        )
    return list(kernels)


def _teams(threads: int | None) -> list[list[int]]:
    """CPUs for each run, the widest last."""
    allowed = allowed_cpus()
    if threads is not None:
        if not 1 <= threads <= len(allowed):
            raise UsageError(f"threads={threads}: this process may run 1 to {len(allowed)}")
        cores = one_cpu_per_core(allowed)
        others = [cpu for cpu in allowed if cpu not in cores]
        return [(cores + others)[:threads]]
    # More threads than the quota has CPUs would only be stopped more often.
    cpus = one_cpu_per_core(allowed)[: max(1, math.ceil(read_limits().cpus or len(allowed)))]
    return [cpus[:1], cpus] if len(cpus) > 1 else [cpus]


def _array_bytes(last_level: int | None) -> int:
    spare = spare_memory_bytes()
    wanted = TO_LAST_LEVEL * (last_level or USUAL_LAST_LEVEL)
    return wanted if spare is None else max(2**20, min(wanted, int(MEMORY_SHARE * spare)))


def _teller(
    tick: Callable[[str, float], None], turn: int, turns: int
) -> Callable[[str, float], None]:
    return lambda words, done: tick(words, (turn + min(1.0, done)) / turns)


def _absent(kernel: str, nbytes: int, error: Exception) -> TierProbe:
    reason = f"3 arrays of {capacity(nbytes)} are not to be had: {error}"
    quality = Quality(status="refused", reasons=(reason,))
    job = Job(kernel=kernel, array_bytes=nbytes, rules=RULES)
    return TierProbe.of(
        probe="memory.bandwidth", tier="memory", job=job, quality=quality, **origin()
    )


class Arrays:
    """Arrays a, b and c of float64 in private memory, with a part for each thread in slices.

    `parts[i]` holds triples of slices. Pages come into being when `touch` writes to them. Raises
    OSError or MemoryError.
    """

    def __init__(self, nbytes: int, threads: int) -> None:
        import numpy as np

        # Many threads share one memory, and below 2 MiB they would meet at the interpreter's lock.
        aim = max(LEAST_SLICE_BYTES, SLICE_BYTES // threads)
        slices = max(1, math.ceil(nbytes / threads / aim))
        # Up to the next page: four times the last level should not become a little less.
        self.slice_bytes = math.ceil(nbytes / threads / slices / 4096) * 4096
        self.nbytes = self.slice_bytes * slices * threads
        memory = anonymous_memory(3 * (self.nbytes + APART_BYTES))
        self._first = np.frombuffer(memory, np.uint8).ctypes.data
        whole = [
            np.frombuffer(memory, np.float64, self.nbytes // 8, i * (self.nbytes + APART_BYTES))
            for i in range(3)
        ]
        step = self.slice_bytes // 8
        cut = [
            tuple(array[i * step : (i + 1) * step] for array in whole)
            for i in range(slices * threads)
        ]
        self.parts = [cut[i * slices : (i + 1) * slices] for i in range(threads)]

    def touch(self, team: Team) -> None:
        """Every thread writes to its own part first, so that it lies on its own memory node."""

        def fill(i: int) -> None:
            for triple in self.parts[i]:
                for array, value in zip(triple, (1.0, 2.0, 0.5), strict=True):
                    if not team.stopped.is_set():
                        array.fill(value)

        team.run(fill)

    @property
    def page_size(self) -> str:
        """In words; huge pages can make a third of the speed."""
        return page_size(self._first)


def calls(kernels: Sequence[str]) -> dict[str, Call]:
    """What runs each kernel over a triple of slices, in one pass and without a temporary."""
    import numpy as np

    # Not np.copyto: libc's memcpy takes its thresholds from the host's whole cache.
    known: dict[str, Call] = {
        "read": lambda s: np.maximum.reduce(s[0]),
        "copy": lambda s: np.positive(s[0], out=s[2]),
        "scale": lambda s: np.multiply(s[2], 3.0, out=s[1]),
        "add": lambda s: np.add(s[0], s[1], out=s[2]),
        "update": lambda s: np.add(s[0], s[1], out=s[0]),
    }
    torch = loaded("torch")
    if torch is not None:
        view = torch.from_numpy
        known["triad"] = lambda s: torch.add(view(s[1]), view(s[2]), alpha=3.0, out=view(s[0]))
    return {kernel: known[kernel] for kernel in kernels}


def take_turn(
    team: Team, parts: Sequence[Sequence[Any]], call: Call, seconds: float
) -> list[list[Slice]]:
    """Every thread calls `call` on the slices of its part, round and round, for `seconds`. What it
    took, by thread, without the first pass or the first quarter of the time.
    """
    begin_s = time.perf_counter()

    def work(i: int) -> list[Slice]:
        watch, taken, done, end_s = Watch(), [], 0, begin_s
        while end_s < begin_s + seconds and not team.stopped.is_set():
            triple = parts[i][done % len(parts[i])]
            start_s = time.perf_counter()
            call(triple)
            end_s = time.perf_counter()
            clean = watch.kept_core()
            done += 1
            if done > len(parts[i]) or start_s > begin_s + seconds / 4:
                taken.append(Slice(start_s, end_s, clean))
        watch.close()
        return taken

    return team.run(work)


def together(threads: Sequence[Sequence[Slice]], nbytes: int) -> Samples:
    """Bytes per second of all threads, for every slice of any, when a slice is `nbytes`.

    Clean are those that kept their core while all others had theirs for nine tenths of the time:
    a slice that had the memory to itself tells nothing about the whole.
    """
    import numpy as np

    samples = Samples()
    every = [piece for taken in threads for piece in taken]
    if not every or not all(threads):
        return samples
    start, end, clean = (np.array(column) for column in zip(*every, strict=True))
    total, covered = np.zeros(len(every)), np.zeros(len(every))
    anyhow = np.zeros(len(every))
    for taken in threads:
        rate, share = _rate_between(start, end, [piece for piece in taken if piece.clean], nbytes)
        total, covered = total + rate, covered + share / len(threads)
        anyhow += _rate_between(start, end, taken, nbytes)[0]
    clean &= (covered >= COVERED) & (total > 0)
    for good, clean_rate, rate in zip(clean, total, anyhow, strict=True):
        samples.add(float(clean_rate if good else rate), clean=bool(good))
    return samples


def _rate_between(start: Any, end: Any, taken: Sequence[Slice], nbytes: int) -> tuple[Any, Any]:
    """A thread's mean rate in its slices between `start` and `end`, and their part of that time."""
    import numpy as np

    if not taken:
        return np.zeros(len(start)), np.zeros(len(start))
    knots = np.array([(piece.start_s, piece.end_s) for piece in taken])
    ends = np.cumsum(knots[:, 1] - knots[:, 0])
    busy = np.column_stack([ends - (knots[:, 1] - knots[:, 0]), ends]).ravel()
    moved = np.repeat(np.arange(len(taken) + 1.0), 2)[1:-1] * nbytes
    busy = np.interp(end, knots.ravel(), busy) - np.interp(start, knots.ravel(), busy)
    moved = np.interp(end, knots.ravel(), moved) - np.interp(start, knots.ravel(), moved)
    return np.divide(moved, busy, out=np.zeros(len(start)), where=busy > 0), busy / (end - start)


class _Run:
    """All kernels on one team, in turns, so that a quiet or a busy moment meets each of them."""

    def __init__(
        self, arrays: Arrays, cpus: Sequence[int], kernels: Sequence[str], last_level: int | None
    ) -> None:
        self._arrays, self._cpus, self._last_level = arrays, cpus, last_level
        self._calls = calls(kernels)
        self._taken: dict[str, list[list[list[Slice]]]] = {kernel: [] for kernel in kernels}

    def probes(self, end_s: float, tick: Callable[[str, float], None]) -> list[TierProbe]:
        start_s, words = time.perf_counter(), count(len(self._cpus), "thread")
        around = Surroundings()
        with Team(self._cpus) as team, _one_thread_in_torch(self._calls):
            tick(f"bandwidth, {words}: arrays", 0.0)
            self._arrays.touch(team)
            # On a host that has to find the memory first that can take longer than all the rest.
            end_s = max(end_s, time.perf_counter() + LEAST_S * len(self._calls))
            for kernel, seconds in self._turns(end_s):
                done = (time.perf_counter() - start_s) / max(end_s - start_s, 1e-9)
                tick(f"bandwidth, {words}: {kernel}", done)
                call = self._calls[kernel]
                self._taken[kernel].append(take_turn(team, self._arrays.parts, call, seconds))
        pages = self._arrays.page_size
        return [self._probe(kernel, around, pages) for kernel in self._taken]

    def _turns(self, end_s: float) -> Iterator[tuple[str, float]]:
        """Whole rounds of kernels, at least one, until the time is over."""
        round_s = TURN_S * len(self._calls)
        rounds = max(1, int((end_s - time.perf_counter()) / round_s))
        for turn in range(rounds * len(self._calls)):
            left_s = (end_s - time.perf_counter()) / (rounds * len(self._calls) - turn)
            yield list(self._calls)[turn % len(self._calls)], max(LEAST_TURN_S, left_s)

    def _probe(self, kernel: str, around: Surroundings, pages: str) -> TierProbe:
        arrays, width = self._arrays, KERNELS[kernel]
        samples = Samples()
        nbytes = arrays.slice_bytes // 8 * width
        for turn in self._taken[kernel]:
            found = together(turn, nbytes)
            samples.clean += found.clean
            samples.disturbed += found.disturbed
        ratio = arrays.nbytes / self._last_level if self._last_level else None
        notes, noise = _notes(ratio), around.noise(samples)
        if noise.nr_throttled:
            stops = f"the CPU quota stopped this run {count(noise.nr_throttled, 'time')}"
            notes = (*notes, f"{stops}: what lasts is the sustained figure")
        return TierProbe.of(
            probe="memory.bandwidth",
            tier="memory",
            job=Job(
                kernel=kernel,
                bs=arrays.slice_bytes,
                threads=len(self._cpus),
                array_bytes=arrays.nbytes,
                array_to_llc=ratio,
                bytes_per_element=width,
                page_size=pages,
                rules=RULES,
            ),
            bandwidth_Bps=samples.summary(),
            sustained_Bps=self._sustained(kernel, nbytes),
            io_bytes=nbytes * sum(len(taken) for turn in self._taken[kernel] for taken in turn),
            noise=noise,
            notes=notes,
            quality=samples.quality(bandwidth, reasons=_notes(ratio)),
            **origin(),
        )

    def _sustained(self, kernel: str, nbytes: int) -> float | None:
        """The sum of the threads' means over the time of all of their slices."""
        total_Bps = 0.0
        for turns in zip(*self._taken[kernel], strict=True):
            spent_s = [piece.end_s - piece.start_s for taken in turns for piece in taken]
            if not spent_s:
                return None
            total_Bps += len(spent_s) * nbytes / sum(spent_s)
        return total_Bps


def _notes(ratio: float | None) -> tuple[str, ...]:
    if ratio is None:
        return ("rule not checked: the kernel does not tell the sizes of the caches",)
    if ratio < TO_LAST_LEVEL:
        return (f"rule not met: arrays are {ratio:.1f} x the last-level caches, not 4 x",)
    return ()


@contextmanager
def _one_thread_in_torch(kernels: dict[str, Call]) -> Iterator[None]:
    """Our threads call it: its own would stand in their way."""
    torch = loaded("torch") if "triad" in kernels else None
    before = torch.get_num_threads() if torch else 0
    try:
        if torch:
            torch.set_num_threads(1)
        yield
    finally:
        if torch:
            torch.set_num_threads(before)
