"""Reads of one file by perfkit and by fio in turn; and what a quick run takes."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figures import figure, spread

from perfkit.tiers.files import Reading, read_file
from perfkit.tiers.metadata import probe_metadata
from perfkit.tiers.storage import probe_reads, write_file

MIB = 2**20
FILE_BYTES = 512 * MIB
SECONDS = 0.4
PAIRS = 20
DEEP = (2, 4, 8, 32)


def by_fio(path, rw, bs, depth, engine):
    """Bytes per second of one job of fio; it prints notes before its JSON.

    Its buffers ask for huge pages, as perfkit's do; malloc asks only for those of 2 MiB and more.
    """
    asked = [
        *("fio", "--name=job", f"--filename={path}", "--readonly", "--direct=1", "--thread"),
        *(f"--rw={rw}", f"--bs={bs}", f"--ioengine={engine}", f"--iodepth={depth}"),
        *(f"--runtime={SECONDS * 1000:.0f}ms", "--time_based", "--output-format=json"),
    ]
    huge = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    text = subprocess.run(asked, capture_output=True, text=True, check=True, env=huge).stdout
    return json.loads(text[text.index("{") :])["jobs"][0]["read"]["bw_bytes"]


def by_perfkit(path, rw, bs, depth):
    """The same through the code that `probe_reads` runs."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        job = Reading(bs=bs, readers=depth, random=rw == "randread", seconds=SECONDS)
        return read_file(fd, job).mean_Bps
    finally:
        os.close(fd)


def pairs(ours, fios):
    """Rates of both, taken in turn, each first as often as the other."""
    rates = []
    for number in range(PAIRS):
        if number % 2:
            rates.append((ours(), fios()))
        else:
            other = fios()
            rates.append((ours(), other))
    return rates


def compare(name, bound, ours, fios):
    """The ratio of the medians, beside it that of each pair."""
    rates = pairs(ours, fios)
    mine, theirs = ([pair[side] / 1e6 for pair in rates] for side in (0, 1))
    ratio = median(mine) / median(theirs)
    each = spread([a / b for a, b in rates])
    figure(f"{name}, perfkit over fio", f"{ratio:.3f}", f">= {bound}", ratio >= bound)
    print(f"      each pair {each}; MB/s: perfkit {spread(mine)}, fio {spread(theirs)}")


def engine_of(path):
    """The deepest queue that fio has here: io_uring is forbidden in many containers."""
    try:
        by_fio(path, "randread", 4096, 2, "io_uring")
    except (subprocess.CalledProcessError, ValueError, KeyError):
        return "libaio"
    return "io_uring"


def bench_fio(path):
    """Random and sequential, one at a time and deep; fio against itself tells of the noise."""
    deep = engine_of(path)
    same = pairs(*[lambda: by_fio(path, "randread", 4096, 1, "psync")] * 2)
    print(f"      fio over fio, random 4k QD1, each pair: {spread([a / b for a, b in same])}")
    for name, bound, rw, bs, depth, engine in (
        ("random 4k QD1", 0.95, "randread", 4096, 1, "psync"),
        ("sequential 1M QD1", 0.95, "read", MIB, 1, "psync"),
        (f"random 4k QD32 ({deep})", 0.90, "randread", 4096, 32, deep),
    ):
        compare(
            name,
            bound,
            lambda rw=rw, bs=bs, depth=depth: by_perfkit(path, rw, bs, depth),
            lambda rw=rw, bs=bs, depth=depth, engine=engine: by_fio(path, rw, bs, depth, engine),
        )
    compare(
        f"sequential 1M, best of QD {DEEP} ({deep})",
        0.90,
        lambda: max(by_perfkit(path, "read", MIB, depth) for depth in DEEP),
        lambda: max(by_fio(path, "read", MIB, depth, deep) for depth in DEEP),
    )


def bench_quick(folder):
    """One file system in all: seconds, and memory at its highest."""
    took = []
    for _ in range(5):
        start = time.perf_counter()
        probe_reads(folder)
        probe_metadata(folder)
        took.append(time.perf_counter() - start)
    figure("quick run of one file system, s", spread(took), "<= 3.5", median(took) <= 3.5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figure("  resident memory at its highest, MiB", f"{peak:.0f}", "<= 600", peak <= 600)
    left = len(list(Path(folder).iterdir()))
    figure("  files left behind", left, "0", left == 0)


if __name__ == "__main__":
    if shutil.which("fio") is None:
        sys.exit("fio is missing: sudo apt-get install fio")
    # Not in /tmp, which often is memory.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        bench_quick(folder)
        path = Path(folder) / "data"
        with path.open("wb") as file:
            write_file(file.fileno(), FILE_BYTES, 60.0)
        bench_fio(path)
