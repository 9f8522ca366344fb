"""How many small files a file system creates, looks up, reads and removes per second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from perfkit.records.base import Quality
from perfkit.records.tiers import CacheState, Job, Target, TierProbe
from perfkit.tiers.cache import cache_state, read_bytes
from perfkit.tiers.files import check_path
from perfkit.tiers.samples import Samples, Surroundings
from perfkit.tiers.scratch import PAGE, pages, plain_errors, scratch_folder, small_files_cap, sweep
from perfkit.tiers.storage import led_to, new_probe, said_of, samples_of, silent

__all__ = ["probe_metadata"]

QUICK_S, FULL_S = 0.5, 4.0
FEW = 20
_STRETCHES = 10
_SAID = {"create": "no fsync, as mdtest has it", "stat": "metadata warm", "read": "metadata warm"}
_SAID["remove"] = _SAID["create"]
_SHARES = {"create": 0.5, "stat": 0.2, "read": 0.3, "remove": 1.0}


def probe_metadata(
    path: str | Path,
    *,
    quick: bool = True,
    budget_s: float | None = None,
    tick: Callable[[str], None] = silent,
) -> list[TierProbe]:
    """Operations per second, in mdtest's words: create, stat, read and remove, files of 4 KiB.

    At most 1000 files, or 1 % of the free inodes, in a folder of their own that is gone afterwards;
    fewer where creating them takes half of `budget_s` seconds (0.5 by default, 4 when not `quick`).
    All but create work on what this node has just written: names and data are warm.

    Raises UsageError for a folder that cannot be probed, NotSupportedHere for what the file system
    refuses in the middle.
    """
    target = check_path(path)
    sweep(target.path)
    budget_s = budget_s or (QUICK_S if quick else FULL_S)
    steps, blocks = [], pages(PAGE)
    with plain_errors(target.path), scratch_folder(target.path) as folder:
        names = [str(folder / f"{number:04}") for number in range(small_files_cap(folder))]
        for rw, work in (
            ("create", lambda name: _create(name, next(blocks))),
            ("stat", os.stat),
            ("read", _read),
            ("remove", os.unlink),
        ):
            tick(rw)
            steps.append(_timed(rw, work, names, _SHARES[rw] * budget_s))
            names = names[: steps[0].count]
    notes = led_to(path, target)
    return [_record(target, step, notes) for step in steps]


@dataclass(frozen=True)
class _Step:
    """`stamps_s`: when it began, then the end of each operation."""

    rw: str
    stamps_s: Sequence[float]
    device_bytes: int | None
    around: Surroundings

    @property
    def count(self) -> int:
        return len(self.stamps_s) - 1


def _timed(rw: str, work: Callable[[str], object], names: Sequence[str], seconds: float) -> _Step:
    """Do it to one name after another until the time is over; to one at least."""
    around, before, clock = Surroundings(), read_bytes("thread-self"), time.perf_counter
    stamps = [clock()]
    for name in names:
        work(name)
        stamps.append(clock())
        if stamps[-1] - stamps[0] > seconds:
            break
    after = read_bytes("thread-self")
    device = None if before is None or after is None else after - before
    return _Step(rw, stamps, device, around)


def _create(name: str, data: bytearray) -> None:
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _read(name: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.read(fd, PAGE)
    finally:
        os.close(fd)


def _record(target: Target, step: _Step, notes: tuple[str, ...]) -> TierProbe:
    took_s = [end - begin for begin, end in pairwise(step.stamps_s)]
    rates = samples_of(_rates(step.stamps_s))
    few = (f"few operations: {step.count}",) if step.count < FEW else ()
    summary = rates.summary()
    return new_probe(
        "storage.metadata",
        target,
        tier="memory" if target.memory_backed else "",
        job=Job(rw=step.rw, items=step.count, file_bytes=PAGE, numjobs=1, direct=False),
        iops=summary,
        latency_s=samples_of(took_s).summary(),
        io_bytes=step.count * PAGE if step.rw in ("create", "read") else None,
        cache=_proof(target, step),
        noise=step.around.noise(Samples()),
        notes=(*notes, *said_of(target), _SAID[step.rw]),
        quality=Quality(
            status="suspect" if few else "valid",
            reasons=few,
            spread=summary.spread if summary else None,
        ),
    )


def _rates(stamps_s: Sequence[float]) -> list[float]:
    """Operations per second in up to ten stretches of as many operations each."""
    total = len(stamps_s) - 1
    parts = min(_STRETCHES, total)
    cuts = [part * total // parts for part in range(parts + 1)] if parts else []
    return [
        (high - low) / max(stamps_s[high] - stamps_s[low], 1e-9) for low, high in pairwise(cuts)
    ]


def _proof(target: Target, step: _Step) -> CacheState | None:
    """Where the data of the reads came from; of names the kernel keeps no count."""
    if step.rw != "read":
        return CacheState(state="memory") if target.memory_backed else None
    return cache_state(target, asked=step.count * PAGE, from_device=step.device_bytes)
