"""Memory latency: a walk over a random cycle of lines, for working sets from 4 KiB upwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.records.base import Quality
from perfkit.records.tiers import Job, Noise, Plateau, TierProbe
from perfkit.system.caches import Cache, allowed_cpus, read_caches, spare_memory_bytes
from perfkit.tiers.chase import LINE_BYTES, Walk, anonymous_memory, page_size, walker
from perfkit.tiers.samples import Samples, Surroundings, Team, Watch, origin
from perfkit.units import capacity, seconds

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["Curve", "find_plateaus", "name_plateaus", "probe_latency", "working_sets"]

QUICK_S, FULL_S = 2.0, 10.0
SMALLEST_BYTES, LARGEST_BYTES = 2**12, 2**28
MEMORY_SHARE = 0.125
# Sets of at most an eighth of the largest have room side by side.
TOGETHER, LARGE_SHARE = 8, 0.2
SAMPLE_S, TURN_S, MOST_WARM_S = 5e-4, 5e-3, 0.1
LEAST_IN_TURN, LEAST_CHUNKS, CHUNK_HOPS = 8, 4, 2**12
NEW_PLATEAU = 1.6

Curve = Sequence[tuple[int, float]]
"""Pairs of a working set in bytes and the seconds of a hop in it, smallest first."""


def probe_latency(
    *,
    quick: bool = True,
    budget_s: float | None = None,
    tick: Callable[[str, float], None] = lambda *_: None,
) -> TierProbe:
    """Seconds of one load that waits for the one before, over the size of what is walked.

    `latency_s` is that of the largest working set, `curve` has all sizes in bytes with the median
    of clean samples in seconds, `plateaus` the levels found, beside their nominal sizes: their ends
    in the lowest fiftieth of the samples, when neighbours take least of a cache. `budget_s` is the
    wall time aimed at: 2 s, or 10 s for the finer grid without `quick`. `tick` is told what is
    measured and which part of the work is done, on the thread that measures.

    Refused, with the reason and no figures, where nothing can walk or memory is not to be had;
    the figure is refused as well with fewer than 20 clean samples, or with too much scatter.
    """
    way, notes = walker()
    largest = _largest_bytes()
    if way is None:
        return _refused("no way to walk memory works here", notes)
    try:
        memory = anonymous_memory(largest)
    except (OSError, MemoryError) as error:
        return _refused(f"{capacity(largest)} of memory are not to be had: {error}", notes)
    cpu = allowed_cpus()[0]
    caches = read_caches(cpu)
    sizes = working_sets(caches, largest, quick=quick)
    if not way.resolves_caches:
        sizes = [size for size in sizes if size > _inner_bytes(caches)] or sizes[-1:]
    sweep = _Sweep(way, memory, budget_s or (QUICK_S if quick else FULL_S), tick)
    with Team([cpu]) as team:
        seen = team.run(lambda _: sweep.run(sizes, team.stopped))[0]
    return _report(seen, caches, way, notes)


def _refused(reason: str, notes: Iterable[str]) -> TierProbe:
    quality = Quality(status="refused", reasons=(reason, *notes))
    return TierProbe.of(probe="memory.latency", tier="memory", quality=quality, **origin())


def _largest_bytes() -> int:
    spare = spare_memory_bytes()
    bound = LARGEST_BYTES if spare is None else min(LARGEST_BYTES, int(MEMORY_SHARE * spare))
    return max(SMALLEST_BYTES, bound // 2**12 * 2**12)


def working_sets(caches: Sequence[Cache], largest: int, *, quick: bool) -> list[int]:
    """Sizes in bytes, smallest first. Quick: about a dozen round the nominal sizes, so that each
    level has two; else every power of two and the middle between.
    """
    grid = [step * 2**k // 2 for k in range(12, 40) for step in (2, 3)]
    if quick:
        nominal = [cache.size_bytes for cache in caches] or [2**15, 2**20, 2**25]
        first, last = nominal[0], nominal[-1]
        grid = [2**12, first // 2, first, 3 * first // 2, last // 4, last, 4 * last]
        for middle in nominal[1:-1]:
            grid += [middle // 4, middle // 2, 2 * middle, 3 * middle, 4 * middle]
    inside = {size for size in grid if SMALLEST_BYTES <= size <= largest}
    return sorted(inside | {largest})


def _inner_bytes(caches: Sequence[Cache]) -> int:
    """What is too small for a walk that computes as well."""
    return caches[-2].size_bytes if len(caches) > 1 else 2**20


class _Seen(NamedTuple):
    """What a sweep brings back. `samples`: of the seconds of a hop, by working set."""

    samples: dict[int, Samples]
    noise: Noise
    wait_share: float | None
    page_size: str


class _Sweep:
    def __init__(
        self, way: type[Walk], memory: mmap, budget_s: float, tick: Callable[[str, float], None]
    ) -> None:
        self._way, self._memory, self._budget_s, self._tick = way, memory, budget_s, tick
        self._end_s = time.perf_counter() + budget_s
        self._samples: dict[int, Samples] = {}

    def run(self, sizes: Sequence[int], stopped: Event) -> _Seen:
        """On the thread that measures. The large sets one by one and first, since what it takes
        to lay them out is not known; then the others in turn, so that each has its quiet moments.
        """
        import numpy as np

        lines = np.frombuffer(self._memory, np.uint64).reshape(-1, LINE_BYTES // 8)
        self._watch, around, self._stopped = Watch(), Surroundings(), stopped
        self._together_bytes = sizes[-1] // TOGETHER
        small = [size for size in sizes if size <= self._together_bytes]
        large = sizes[len(small) :]
        for size in reversed(large):
            if size == sizes[-1] or time.perf_counter() < self._end_s:
                walks = self._lay(lines, [size])
                self._rounds(walks, time.perf_counter() + LARGE_SHARE * self._budget_s / len(large))
        self._rounds(self._lay(lines, small), self._end_s)
        share = self._watch.wait_share
        self._watch.close()
        noise = around.noise(self._samples.get(sizes[-1], Samples()), wait_share=share)
        return _Seen(self._samples, noise, share, page_size(lines.ctypes.data))

    def _lay(self, lines: Any, sizes: Sequence[int]) -> dict[int, Walk]:
        """Side by side in memory, each in a random order."""
        import numpy as np

        random, walks, used = np.random.default_rng(1), {}, 0
        for size in sizes:
            if not self._stopped.is_set():
                self._say(f"latency, laying out {capacity(size)}")
                count = size // LINE_BYTES
                walks[size] = self._way(lines[used : used + count], random.permutation(count))
                used += count
        return walks

    def _rounds(self, walks: dict[int, Walk], end_s: float) -> None:
        """A turn for every size until the time is over. The first round may go beyond it, by as
        much as the whole budget: on a busy machine the figures are late before they are few.
        """
        last_s, is_first = max(end_s, time.perf_counter()) + self._budget_s, True
        while walks and (is_first or time.perf_counter() < end_s):
            for size, walk in walks.items():
                if self._stopped.is_set() or time.perf_counter() > (last_s if is_first else end_s):
                    return
                self._say(f"latency, {capacity(size)}")
                self._turn(size, walk)
            is_first = False

    def _turn(self, size: int, walk: Walk) -> None:
        """Once round, since other lines are in the cache by now; then samples for as long again.
        They take half a millisecond, so that most of them fall between two preemptions.
        """
        # What no cache holds need not be warm.
        lines = size // LINE_BYTES if size <= self._together_bytes else 0
        start_s = time.perf_counter()
        hops = max(1, int(SAMPLE_S / self._warm(walk, lines)))
        now_s = time.perf_counter()
        end_s = now_s + max(TURN_S, now_s - start_s)
        samples, taken = self._samples.setdefault(size, Samples()), 0
        self._watch.kept_core()
        # A turn that a neighbour takes over would end without a sample worth having.
        while (now_s < end_s or taken < LEAST_IN_TURN) and not self._stopped.is_set():
            start_s = time.perf_counter()
            walked = walk.walk(hops)
            now_s = time.perf_counter()
            kept = self._watch.kept_core()
            samples.add((now_s - start_s) / walked, clean=kept)
            taken += 1
            # Whoever had the core has left its own lines in the cache.
            while not kept and time.perf_counter() < end_s and not self._stopped.is_set():
                self._warm(walk, lines)
                kept = self._watch.kept_core()

    def _warm(self, walk: Walk, lines: int) -> float:
        """Walk `lines`, or as many as a tenth of a second allows; the seconds of a hop, without
        what preemptions add.
        """
        hop_s, now_s = 1.0, time.perf_counter()
        give_up_s, left = now_s + MOST_WARM_S, max(lines, LEAST_CHUNKS * CHUNK_HOPS)
        while left > 0 and now_s < give_up_s and not self._stopped.is_set():
            start_s = now_s
            hops = walk.walk(CHUNK_HOPS)
            now_s = time.perf_counter()
            hop_s = min(hop_s, (now_s - start_s) / hops)
            left -= hops
        return max(hop_s, 1e-10)

    def _say(self, words: str) -> None:
        self._tick(
            words, min(1.0, max(0.0, 1 - (self._end_s - time.perf_counter()) / self._budget_s))
        )


def find_plateaus(curve: Curve) -> list[Curve]:
    """Stretches of two or more sizes, each within 1.6 times the median of those before it."""
    groups: list[list[tuple[int, float]]] = []
    for point in curve:
        if groups and point[1] <= NEW_PLATEAU * median(s for _, s in groups[-1]):
            groups[-1].append(point)
        else:
            groups.append([point])
    return [group for group in groups if len(group) > 1]


def name_plateaus(
    curve: Curve, caches: Sequence[Cache], typical_s: Mapping[int, float] | None = None
) -> tuple[Plateau, ...]:
    """A Plateau for every level that the kernel lists and for DRAM. DRAM has the stretch that ends
    the curve, if it ends beyond the last level; each other goes to the level that most of its
    sizes would fit in, where the longest one counts. Seconds are the median over its sizes, of
    `typical_s` if that is given, and None where no stretch went.
    """
    levels = [(f"L{cache.level}", cache.size_bytes) for cache in caches] or _usual(curve)
    found: dict[str, Curve] = {}
    for stretch in find_plateaus(curve):
        homes = [_home(size, levels) for size, _ in stretch]
        is_end = stretch[-1] == curve[-1] and homes[-1] == "DRAM"
        name = "DRAM" if is_end else max(homes, key=homes.count)
        if is_end or len(stretch) > len(found.get(name, ())):
            found[name] = stretch
    nominal, known_s = dict(levels) if caches else {}, typical_s or dict(curve)
    return tuple(
        _plateau(name, found.get(name), nominal.get(name), known_s)
        for name in [*(name for name, _ in levels), "DRAM"]
    )


def _usual(curve: Curve) -> list[tuple[str, int]]:
    """Levels from the curve alone: what is found is what counts, up to the last stretch."""
    ends = [stretch[-1][0] for stretch in find_plateaus(curve)[:-1]]
    return [(f"L{i + 1}", end) for i, end in enumerate(ends[:3])]


def _home(size: int, levels: Sequence[tuple[str, int]]) -> str:
    return next((name for name, nbytes in levels if size <= nbytes), "DRAM")


def _plateau(
    name: str, stretch: Curve | None, nominal: int | None, typical_s: Mapping[int, float]
) -> Plateau:
    if not stretch:
        return Plateau(level=name, seconds=None, nominal_bytes=nominal)
    return Plateau(
        level=name,
        seconds=median(typical_s[size] for size, _ in stretch),
        end_bytes=None if name == "DRAM" else stretch[-1][0],
        nominal_bytes=nominal,
    )


def _report(
    seen: _Seen, caches: Sequence[Cache], way: type[Walk], notes: tuple[str, ...]
) -> TierProbe:
    largest, headline = max(seen.samples.items(), default=(0, Samples()))
    clean = {size: sorted(s.clean) for size, s in sorted(seen.samples.items()) if s.clean}
    curve = [(size, median(values)) for size, values in clean.items()]
    # Whoever shares a cache takes room in it for a while, and can only add to the time.
    quiet = [(size, values[len(values) // 50]) for size, values in clean.items()]
    plateaus = name_plateaus(quiet, caches, _typical_s(curve, quiet))
    return TierProbe.of(
        probe="memory.latency",
        tier="memory",
        job=Job(
            pattern="random",
            page_size=seen.page_size,
            working_set_bytes=largest,
            ioengine=way.name,
            threads=1,
        ),
        latency_s=headline.summary(),
        curve=tuple(curve),
        curve_unit="s",
        plateaus=plateaus,
        noise=seen.noise,
        notes=(*notes, *_remarks(seen, way, plateaus), *_crowded(curve, quiet)),
        quality=headline.quality(
            seconds, wait_share=seen.wait_share, reasons=_doubts(largest, caches, way)
        ),
        **origin(),
    )


def _typical_s(curve: Curve, quiet: Curve) -> dict[int, float]:
    """Medians; where most samples were of a slower level, what a quiet moment gave."""
    pairs = zip(curve, quiet, strict=True)
    return {size: s if s <= NEW_PLATEAU * low else low for (size, s), (_, low) in pairs}


def _crowded(curve: Curve, quiet: Curve) -> list[str]:
    typical_s = _typical_s(curve, quiet)
    sizes = [capacity(size) for size, s in curve if typical_s[size] < s]
    return [f"neighbours share the caches: most hops were slower at {', '.join(sizes)}"] * bool(
        sizes
    )


def _remarks(seen: _Seen, way: type[Walk], plateaus: Sequence[Plateau]) -> list[str]:
    lost = [size for size, samples in seen.samples.items() if not samples.clean]
    flat = [plateau.level for plateau in plateaus if plateau.seconds is None]
    said = [f"no clean sample at {', '.join(map(capacity, sorted(lost)))}"] if lost else []
    if not way.resolves_caches:
        said.append(
            "L1 and L2 cannot be told apart: each hop holds a comparison by libc, about 10 ns"
        )
    elif flat:
        said.append(f"no stretch of equal latency for {', '.join(flat)}: neighbours may hold it")
    return said


def _doubts(largest: int, caches: Sequence[Cache], way: type[Walk]) -> list[str]:
    said = []
    if caches and largest < 4 * caches[-1].size_bytes:
        said.append(f"the largest working set, {capacity(largest)}, is under 4 x the last level")
    if not way.resolves_caches:
        said.append("libc's comparison, about 10 ns, is in every hop")
    return said
