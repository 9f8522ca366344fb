"""Figures of the memory probes against C on the same buffers and threads, and with a neighbour."""

import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from figures import figure, spread

from perfkit.system.caches import allowed_cpus, last_levels_bytes, read_caches
from perfkit.tiers.bandwidth import KERNELS, Arrays, calls, probe_bandwidth, take_turn, together
from perfkit.tiers.chase import LINE_BYTES, CodeWalk, TreeWalk, anonymous_memory
from perfkit.tiers.latency import probe_latency
from perfkit.tiers.samples import Samples, Team, Watch

SOURCE = Path(__file__).with_name("memory_reference.c")
BOUNDS = {"read": 0.95, "copy": 0.95, "scale": 0.90, "add": 0.95, "update": 0.95}
# Which of a, b and c each kernel in C takes, in its own order.
ARGUMENTS = {"read": "a", "copy": "ac", "scale": "bc", "add": "abc", "update": "ab"}
ROUNDS = 15


def compile_reference(folder):
    """The reference as a library; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = Path(folder) / "reference.so"
    flags = ["-O3", "-fopenmp", "-march=native", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)
    return ctypes.CDLL(str(library))


def in_c(reference, kernel):
    """A kernel in C, called as ours are."""
    run = reference["read_sum" if kernel == "read" else kernel]
    run.restype = ctypes.c_double if kernel == "read" else None
    run.argtypes = [ctypes.c_void_p] * len(ARGUMENTS[kernel]) + [ctypes.c_size_t]
    wanted = ["abc".index(name) for name in ARGUMENTS[kernel]]
    return lambda s: run(*(s[i] for i in wanted), s[3])


def addresses(arrays):
    """The slices of `arrays` as C takes them: three pointers and a length."""
    return [
        [(*(array.ctypes.data for array in triple), len(triple[0])) for triple in part]
        for part in arrays.parts
    ]


def bench_kernels(reference):
    """Each kernel in turn with C: ratio of the clean medians, round by round."""
    cpus = sorted(allowed_cpus())
    nbytes = 4 * (last_levels_bytes(cpus) or 2**25)
    for team_cpus in {len(c): c for c in (cpus[:1], cpus)}.values():
        arrays = Arrays(nbytes, len(team_cpus))
        pointers, ours = addresses(arrays), calls(list(BOUNDS))
        with Team(team_cpus) as team:
            arrays.touch(team)
            print(f"      {len(team_cpus)} threads, pages: {arrays.page_size}")
            for kernel, bound in BOUNDS.items():
                width = arrays.slice_bytes // 8 * KERNELS[kernel]
                rates = {"C": [], "ours": []}
                for turn in range(2 * ROUNDS):
                    way = ("C", "ours")[turn % 2]
                    call = in_c(reference, kernel) if way == "C" else ours[kernel]
                    parts = pointers if way == "C" else arrays.parts
                    seen = together(take_turn(team, parts, call, 0.2), width).clean
                    rates[way].append(median(seen) if len(seen) >= 5 else None)
                report_kernel(kernel, bound, rates)


def report_kernel(kernel, bound, rates):
    """Ratios of neighbouring turns, where both had quiet moments."""
    pairs = [(o, c) for o, c in zip(rates["ours"], rates["C"], strict=True) if o and c]
    if len(pairs) < 4:
        figure(f"{kernel} over C", "too few quiet rounds", f">= {bound}", False)
        return
    ratios = [o / c for o, c in pairs]
    note = f"C: {median(c for _, c in pairs) / 1e9:.3g} GB/s, {len(pairs)} rounds"
    figure(f"{kernel} over C", spread(ratios), f">= {bound}", median(ratios) >= bound, note)


class CWalk(CodeWalk):
    """The walk in C."""

    def __init__(self, lines, order, reference):
        super().__init__(lines, order)
        reference.chase.restype = ctypes.c_uint64
        reference.chase.argtypes = [ctypes.c_uint64, ctypes.c_int64]
        self._code = reference.chase


def hop_times(walk, hops, watch, seconds=0.012):
    """Clean samples of a hop, in seconds, after a turn that is not counted."""
    samples, end_s = Samples(), time.perf_counter() + seconds
    walk.walk(hops)
    watch.kept_core()
    while (now_s := time.perf_counter()) < end_s:
        walked = walk.walk(hops)
        samples.add((time.perf_counter() - now_s) / walked, clean=watch.kept_core())
    return samples.clean


def bench_chase(reference):
    """Hops of our code and of C over one cycle, turn about, at a size of each level."""
    caches = read_caches(allowed_cpus()[0])
    nominal = [cache.size_bytes for cache in caches]
    sizes = {f"L{c.level}": (nominal[i - 1] * 4 if i else 2**14) for i, c in enumerate(caches)}
    sizes[f"L{caches[-1].level}"] = 2 * nominal[-2]
    sizes["DRAM"] = 2**28
    memory = anonymous_memory(2**28)
    lines = np.frombuffer(memory, np.uint64).reshape(-1, LINE_BYTES // 8)
    with Team(allowed_cpus()[:1]) as team:
        for level, nbytes in sizes.items():
            bound = 0.10 if level == "L1" else 0.05
            ratios, trees, c = team.run(lambda _, n=nbytes: compare_walks(reference, lines, n))[0]
            off = abs(median(ratios) - 1)
            note = f"C: {1e9 * median(c):.4g} ns; libc's tfind over C: {median(trees):.3g}"
            name = f"{level} latency over C, {nbytes // 1024} KiB"
            figure(name, spread(ratios), f"1 +- {bound}", off <= bound, note)


def compare_walks(reference, lines, nbytes):
    """Ratios of ours and of tfind to C, and C's own seconds."""
    order = np.random.default_rng(2).permutation(nbytes // LINE_BYTES)
    mine = lines[: len(order)]
    walks = [CodeWalk(mine, order), CWalk(mine, order, reference)]
    watch, pairs, hops = Watch(), [], 2**19 if nbytes <= 2**18 else 2**15
    walks[0].walk(min(len(order), 2**19))
    for _ in range(40):
        pair = [hop_times(walk, hops if nbytes < 2**26 else 2**12, watch) for walk in walks]
        if all(pair):
            pairs.append([median(times) for times in pair])
    tree, trees = TreeWalk(mine, order), []
    for _ in range(10):
        trees += hop_times(tree, 2**12, watch)
    watch.close()
    c = [pair[1] for pair in pairs]
    return [ours / theirs for ours, theirs in pairs], [t / median(c) for t in trees], c


def bench_plateaus():
    """What the probe finds, five times, beside what the kernel says; and how long it takes."""
    ends, spent = [], []
    for _ in range(5):
        start_s = time.perf_counter()
        probe = probe_latency()
        spent.append(time.perf_counter() - start_s)
        ends.append({p.level: (p.end_bytes or 0) // 1024 for p in probe.plateaus})
        seen = ", ".join(
            f"{p.level} {1e9 * p.seconds:.3g} ns"
            + (f" to {p.end_bytes // 1024} KiB" if p.end_bytes else "")
            for p in probe.plateaus
            if p.seconds
        )
        print(f"      {seen}; {probe.quality.status}")
    nominal = read_caches(allowed_cpus()[0])[0].size_bytes // 1024
    exact = sum(end["L1"] == nominal for end in ends)
    figure("L1 size found exactly", f"{exact} of 5", "5 of 5", exact == 5)
    figure("quick latency probe, s", spread(spent), "about 2", median(spent) < 2.6)


@contextmanager
def neighbours(cpus):
    """A process that keeps each of `cpus` busy."""
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code, str(cpu)]) for cpu in cpus]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def bench_neighbour():
    """The add kernel, one thread on each core and a busy process beside the first, and without."""
    cpus = sorted(allowed_cpus())
    arrays = Arrays(4 * (last_levels_bytes(cpus) or 2**25), 1)
    width, add = arrays.slice_bytes // 8 * KERNELS["add"], calls(["add"])["add"]
    clean, raw = [], []
    with Team(cpus[:1]) as team:
        arrays.touch(team)
        for _ in range(9):
            quiet = together(take_turn(team, arrays.parts, add, 0.5), width)
            with neighbours(cpus[:1]):
                busy = together(take_turn(team, arrays.parts, add, 1.0), width)
            if min(len(quiet.clean), len(busy.clean)) >= 20:
                truth = median(quiet.clean)
                clean.append(median(busy.clean) / truth)
                raw.append(busy.all_median_over_clean() * clean[-1])
    note = f"clean of all: {len(busy.clean)} of {len(busy.clean) + len(busy.disturbed)}"
    if len(clean) < 4:
        figure("add with a busy neighbour", "too few quiet rounds", "1 +- 0.15", False, note)
        return
    off = abs(median(clean) - 1)
    figure("add, busy neighbour: clean median", spread(clean), "1 +- 0.15", off <= 0.15, note)
    figure("  beside it, the median of all samples", spread(raw), "none", True)


def bench_probe():
    """How long the quick bandwidth probe takes, and what it gives."""
    spent = []
    for _ in range(5):
        start_s = time.perf_counter()
        probes = probe_bandwidth()
        spent.append(time.perf_counter() - start_s)
    for probe in probes:
        rate = probe.bandwidth_Bps.median / 1e9 if probe.bandwidth_Bps else float("nan")
        print(f"      {probe.job.kernel}, {probe.job.threads}: {rate:.3g} GB/s, "
              f"{probe.noise.clean} clean, {probe.quality.status}")  # fmt: skip
    figure("quick bandwidth probe, s", spread(spent), "about 2.5", median(spent) < 3.2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        reference = compile_reference(folder)
        if reference is None:
            print("      no C compiler (cc) here: nothing to compare with")
            sys.exit()
        bench_kernels(reference)
        bench_chase(reference)
        bench_plateaus()
        bench_neighbour()
        bench_probe()
