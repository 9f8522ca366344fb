"""Lesson 10: a file of your own, rows of a tier table, and the lesson's questions."""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from perfkit import units
from perfkit.errors import PerfkitError
from perfkit.lessons.checks import Wrong, question
from perfkit.records.tiers import Tier, TierProbe, TierTable
from perfkit.tiers.cache import bypass, drop
from perfkit.tiers.files import Reading, check_path, read_file
from perfkit.tiers.scratch import file_cap, plain_errors, scratch_file
from perfkit.tiers.storage import write_file
from perfkit.tiers.turns import turn

__all__ = [
    "LABELS",
    "PROBES",
    "OwnFile",
    "Readers",
    "direct_read",
    "disk",
    "memory",
    "readers",
    "shown_probes",
    "small_files",
    "stage",
    "take_turns",
]

_MIB = 2**20
MOST_BYTES = 128 * _MIB


class OwnFile:
    """A file without a name in `folder`, gone when nobody uses it: up to 128 MiB of random bytes,
    less on a slow or full disk; with `zeros` as many that were never written. Raises UsageError
    or NotSupportedHere where it cannot be written.
    """

    def __init__(self, folder: str | Path, *, zeros: bool = False) -> None:
        target = check_path(folder)
        self.fstype = target.fstype
        with plain_errors(target.path), ExitStack() as stack:
            self.fd = stack.enter_context(scratch_file(target.path))
            size = min(MOST_BYTES, file_cap(target))
            if zeros:
                os.truncate(self.fd, size)
            else:
                write_file(self.fd, size, seconds=3.0)
            self.nbytes = os.fstat(self.fd).st_size
            weakref.finalize(self, stack.pop_all().close)

    def read(self) -> int:
        """Read it all, in order, 1 MiB at a time: how many bytes that were."""
        done = 0
        with mmap.mmap(-1, _MIB) as block:
            while got := os.preadv(self.fd, [block], done):
                done += got
        return done

    def forget(self) -> None:
        """Take this file, and no other, out of the page cache."""
        drop(self.fd)

    def __repr__(self) -> str:
        return f"OwnFile of {units.capacity(self.nbytes)} on {self.fstype}"


def direct_read(folder: str | Path) -> str:
    """What a read with O_DIRECT gives in `folder`, as a line."""
    try:
        file = OwnFile(folder)
    except PerfkitError as error:
        return f"{folder}: not here ({error})"
    with ExitStack() as stack:
        way = bypass(file.fd, stack)
        if not way.direct:
            return f"{folder}: O_DIRECT is refused"
        reads = read_file(way.fd, Reading(bs=min(_MIB, file.nbytes), seconds=1.0, once=True))
    share = None if reads.device_bytes is None else reads.device_bytes / reads.nbytes
    return (
        f"{folder} ({file.fstype}): O_DIRECT is accepted, "
        f"{units.bandwidth(reads.mean_Bps)}, {units.share(share)} from a device"
    )


# -- rows of a table ---------------------------------------------------------------------------

_ELSEWHERE = " (recorded elsewhere, not yours)"
_MEMORY = Tier(name="memory" + _ELSEWHERE, kind="memory", read_Bps=28e9, latency_s=150e-9)
_DISK = Tier(name="virtual disk" + _ELSEWHERE, kind="storage", read_Bps=1.2e9, latency_s=60e-6)


class Readers(NamedTuple):
    """Where it was measured; then, for each number of readers that was tried, bytes per second of
    large reads in order, and small random reads per second.
    """

    place: str
    rates: dict[int, float]
    iops: dict[int, float]


_READERS = Readers(
    "virtual disk" + _ELSEWHERE,
    {1: 1.1e9, 2: 1.2e9, 4: 1.3e9, 8: 1.2e9},
    {1: 13e3, 32: 64e3},
)


def memory(table: TierTable) -> Tier:
    """The row of the CPU's memory; one from elsewhere, which says so, where a figure is missing."""
    rows = [t for t in table.tiers if t.name == "CPU memory" and t.read_Bps and t.latency_s]
    return rows[0] if rows else _MEMORY


def disk(table: TierTable) -> Tier:
    """The row of the first file system that is not in memory; else as `memory` does."""
    for row in table.tiers:
        if row.kind == "storage" and row.read_Bps and row.latency_s:
            return row
    return _DISK


def readers(table: TierTable) -> Readers:
    """What one reader of that disk gets, and what several do."""
    found = [p for p in table.probes if p.probe == "storage.read" and _is_of(p, disk(table).path)]
    rates: dict[int, float] = {}
    iops: dict[int, float] = {}
    for probe in found:
        rates |= {int(count): rate for count, rate in probe.curve}
        if probe.job.rw == "randread" and probe.iops is not None:
            iops[probe.job.numjobs or 1] = probe.iops.median
    return Readers(disk(table).name, rates, iops) if rates and len(iops) > 1 else _READERS


def small_files(table: TierTable) -> dict[str, float]:
    """Files of 4 KiB per second on that disk, for each thing done to them."""
    return {
        probe.job.rw: probe.iops.median
        for probe in table.probes
        if probe.probe == "storage.metadata" and probe.iops and _is_of(probe, disk(table).path)
    }


def _is_of(probe: TierProbe, path: str) -> bool:
    return probe.target.path == path


def take_turns(folder: str | Path, people: int = 3, seconds: float = 0.4) -> list[float]:
    """So many people come at once, and each needs the file system for `seconds`, alone: how many
    seconds each of them has waited, the first one first.
    """
    target, waits = check_path(folder), list[float]()

    def probe() -> None:
        with turn(target) as waited_s:
            waits.append(waited_s)
            time.sleep(seconds)

    threads = [threading.Thread(target=probe, daemon=True) for _ in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


# -- exercise 10.1: where did the bytes come from ----------------------------------------------

LABELS = ("disk", "page cache", "memory", "unknown")


class Recorded(NamedTuple):
    """A read as it was recorded; `direct`: with O_DIRECT. Sizes are MiB."""

    fstype: str
    source: str
    direct: bool
    asked: int
    from_device: int
    GBps: float


PROBES = {
    "A": Recorded("ext4", "/dev/vda1", False, 1024, 1026, 2.1),
    "B": Recorded("tmpfs", "tmpfs", True, 256, 0, 10.2),
    "C": Recorded("overlay", "overlay", False, 256, 0, 11.7),
    "D": Recorded("lustre", "10.0.0.1@o2ib:/work", False, 4096, 0, 2.3),
    "E": Recorded("ext4", "/dev/vda1", False, 1024, 524, 1.6),
    "F": Recorded("xfs", "/dev/md0", True, 8192, 8192, 13.1),
    "G": Recorded("ext4", "/dev/vda1", False, 64, 0, 0.9),
    "H": Recorded("ext4", "/dev/ram0", True, 512, 512, 6.4),
}
"""Eight recorded reads; these figures are made up, each after one that was seen."""

_TRUTH = dict(zip("ABCDEFGH", ["disk", "memory", "page cache", "unknown"], strict=False)) | {
    "E": "unknown",
    "F": "disk",
    "G": "page cache",
    "H": "memory",
}
_WHY = {
    "A": "every byte came from the device",
    "B": "tmpfs lies in memory; it accepts O_DIRECT and ignores it",
    "C": "a file system on a disk, and not one byte came from it",
    "D": "the kernel does not count what comes over a network, so 0 says nothing",
    "E": "half came from the device, half from memory: the speed is neither's",
    "F": "every byte came from the device, which is fast: speed alone proves nothing",
    "G": "not one byte came from the device; a cache may be slow, as in a pod with little CPU",
    "H": "every byte came from the device, but /dev/ram0 is a piece of memory",
}


def shown_probes() -> str:
    """The eight probes as a table."""
    row = "{:5}  {:7}  {:19}  {:8}  {:>9}  {:>11}  {:>9}"
    lines = [row.format("probe", "fstype", "source", "O_DIRECT", "asked", "from device", "speed")]
    for name, p in PROBES.items():
        sizes = (f"{p.asked:,} MiB", f"{p.from_device:,} MiB")
        direct = "yes" if p.direct else "no"
        lines.append(row.format(name, p.fstype, p.source, direct, *sizes, f"{p.GBps} GB/s"))
    return "\n".join(lines)


def _by_speed(p: Recorded) -> str:
    return "disk" if p.GBps < 4 else "page cache"


def _by_flag(p: Recorded) -> str:
    return "disk" if p.direct else "page cache"


def _by_counter(p: Recorded) -> str:
    share = p.from_device / p.asked
    return "disk" if share >= 0.95 else "page cache" if share <= 0.05 else "unknown"


_SHORT_CUTS: dict[str, Callable[[Recorded], str]] = {
    "You judged by speed alone, and there are fast disks and slow caches": _by_speed,
    "You took O_DIRECT for a proof, and it is only a request": _by_flag,
    "You judged by the counter alone; first ask whether it can see these bytes": _by_counter,
}


@question("10.1")
def judge_labels(labels: Callable[[], Mapping[str, str]]) -> str:
    """One label for each probe, exactly; what led astray is named where it can be told."""
    given = {name: str(label) for name, label in dict(labels()).items()}
    if given.keys() != PROBES.keys():
        raise Wrong(f"give one label for each of {', '.join(PROBES)}")
    if unknown := sorted(set(given.values()) - set(LABELS)):
        raise Wrong(f"{unknown} are not among {', '.join(LABELS)}")
    wrong = [name for name in PROBES if given[name] != _TRUTH[name]]
    if not wrong:
        return "All eight. In D and E nobody can say “disk”, however much they would like to."
    raise Wrong(f"{len(PROBES) - len(wrong)} of 8 are right. {_reason(given, wrong)}")


def _reason(given: dict[str, str], wrong: list[str]) -> str:
    for why, rule in _SHORT_CUTS.items():
        # "page cache" or "memory": a short cut cannot tell one from the other.
        if all(_is_near(given[name], rule(probe)) for name, probe in PROBES.items()):
            return why
    # One at a time, so that there is something left to find.
    return f"Look at {wrong[0]} again: {_WHY[wrong[0]]}"


def _is_near(label: str, by_rule: str) -> bool:
    return label == by_rule or {label, by_rule} == {"page cache", "memory"}


# -- exercise 10.2: when does staging pay ------------------------------------------------------


def stage(epochs: int, slow: float, fast: float, write: float) -> tuple[float, float]:
    """Seconds for one GB and so many epochs: read from `slow` each time, and copied to `fast` once,
    then read from there. All rates in GB/s, `write` is that of the faster tier.
    """
    return epochs / slow, _copy(slow, write) + epochs / fast


_CASES = ((1.0, 4.0, 0.4), (0.5, 2.0, 1.5), (2.5, 3.2, 1.1), (1.0, 3.0, 0.9))
_NEVER = ((4.7, 3.2, 1.5), (2.0, 2.0, 2.0))


def _copy(slow: float, write: float) -> float:
    return 1 / min(slow, write)


def _up(epochs: float) -> int:
    return int(epochs) + 1


def _first(slow: float, fast: float, write: float) -> int:
    """The first epoch count at which copying pays, by trying one after another."""
    epochs = 1
    while True:
        stays, moves = stage(epochs, slow, fast, write)
        if moves < stays:
            return epochs
        epochs += 1


_MISTAKES: tuple[tuple[str, Callable[[float, float], float], Callable[[float], int]], ...] = (
    ("you forgot how fast the copy can be written", lambda slow, _: 1 / slow, _up),
    ("the copy is read too: it is no faster than its source", lambda _, write: 1 / write, _up),
    (
        "a copy reads and writes at the same time: the slower counts, not the sum",
        lambda slow, write: 1 / slow + 1 / write,
        _up,
    ),
    ("you rounded down: in that epoch the copy has not yet paid", _copy, int),
    ("you rounded to the nearest: often the copy has not yet paid", _copy, round),
    ("you did not count the copy", lambda *_: 0, _up),
)
"""What is to be said, what the copy then costs in seconds per GB, and how it is rounded."""


@question("10.2")
def judge_staging(epochs: Callable[[float, float, float], int | None]) -> str:
    """The exact number of epochs in each case, and None where it never pays."""
    for case in _NEVER:
        try:
            given = epochs(*case)
        except ZeroDivisionError:
            given = "a division by zero"  # type: ignore[assignment]
        if given is not None:
            raise Wrong(f"{_said(case)}: it never pays, so give None; you gave {given}")
    answers = {case: epochs(*case) for case in _CASES}
    wrong = [case for case in _CASES if answers[case] != _first(*case)]
    if not wrong:
        return (
            "By the slides' figures it never pays to move from home (4.7) to local scratch (3.2): "
            "one is a file of zeros, the other a data sheet. Would you decide by them?"
        )
    case = wrong[0]
    why = next(_mistakes(answers), "")
    raise Wrong(
        f"{_said(case)}: it pays from epoch {_first(*case)} on, you gave {answers[case]}{why}"
    )


def _mistakes(answers: Mapping[tuple[float, float, float], Any]) -> Iterator[str]:
    for why, copy, whole in _MISTAKES:
        if all(
            given == whole(copy(slow, write) / (1 / slow - 1 / fast))
            for (slow, fast, write), given in answers.items()
        ):
            yield f"; {why}"


def _said(case: tuple[float, float, float]) -> str:
    slow, fast, write = case
    return f"{slow} GB/s now, {fast} there, written at {write}"
