"""One folder, many processes at once: does it get faster, and who is last?"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median_low
from typing import Any, Literal, NamedTuple

from perfkit.ranks import Rank, Ranks, mpi
from perfkit.ranks.ending import removed_on_sigterm
from perfkit.records.base import Quality
from perfkit.records.tiers import CacheState, Job, Target, TierProbe
from perfkit.tiers.cache import bypass, cache_state, drop, read_bytes
from perfkit.tiers.files import Reads, check_path
from perfkit.tiers.scratch import PAGE, pages, plain_errors, scratch_folder, sweep
from perfkit.tiers.storage import new_probe, samples_of
from perfkit.units import ratio, share

__all__ = ["main_rank", "probe_together"]

_MIB = 2**20
_QUICK, _FULL = 64 * _MIB, 256 * _MIB
_QUICK_S, _FULL_S = 2.5, 20.0
_STRETCHES = 8
_MOST_OF_FREE = 20
_START_S = 60.0
_LATE = 1.25
_MOST_SKEW = 0.01


class _Moves(NamedTuple):
    """One rank's transfers of `bs` bytes: when it began and the end of each, on its host's clock.

    `device_bytes`: what the block layer read for it; `resident`: part of the file that was in the
    page cache before.
    """

    bs: int
    stamps_ns: list[int]
    direct: bool
    device_bytes: int | None
    resident: float | None

    @property
    def seconds(self) -> float:
        """From its start to its last end."""
        return (self.stamps_ns[-1] - self.stamps_ns[0]) * 1e-9


class _Phases(NamedTuple):
    """What one rank brought home. `reordered`: it read another rank's file."""

    host: str
    alone: tuple[_Moves, _Moves] | None
    wrote: _Moves
    read: _Moves
    reordered: bool


class _Plan(NamedTuple):
    folder: str
    nbytes: int
    seconds: float


def probe_together(
    path: str | Path, ranks: Ranks, *, nbytes: int | None = None, quick: bool = True
) -> tuple[TierProbe, ...]:
    """Write and read in the folder `path` by rank 0 alone, then by all ranks at once.

    Each rank writes a file of its own (`nbytes`, by default 64 MiB, or 256 when not `quick`; all
    together at most 5 % of what is free), with fsync; then each reads that of the next rank, which
    is not in its own node's cache. Each of the four steps ends after 2.5 s (20 s when not `quick`).

    Gives four records: write and read alone, write and read together. Those together have the
    bandwidth of all ranks until the first was done and until the last was, the skew of their start
    and the names of stragglers. Ranks that do not lead get nothing.

    Raises UsageError for a folder that cannot be probed, RankError for a rank that fails or dies,
    a full disk or quota among it. The files are gone afterwards.
    """
    target = check_path(path)
    size = _file_size(nbytes or (_QUICK if quick else _FULL), target.free_bytes or 0, ranks.size)
    seconds = _QUICK_S if quick else _FULL_S
    with ExitStack() as stack:
        folder = Path()
        if ranks.leads:
            sweep(target.path)
            stack.enter_context(plain_errors(target.path))
            folder = stack.enter_context(scratch_folder(target.path))
            # The last rank took it along, and who removes it wants to find it.
            stack.callback(folder.mkdir, exist_ok=True)
        plan = _Plan(str(folder), size, seconds)
        seen = ranks.run(_on_rank, plan, timeout_s=_START_S + 10 * seconds)
    return _records(seen, target, size, seconds) if ranks.leads else ()


def main_rank(
    path: str | Path, *, nbytes: int | None = None, quick: bool = True
) -> tuple[TierProbe, ...] | None:
    """`probe_together` for a program under `mpiexec`: every rank calls it, rank 0 gets the records,
    the others None.
    """
    with mpi() as ranks:
        found = probe_together(path, ranks, nbytes=nbytes, quick=quick)
        return found if ranks.leads else None


def _file_size(wanted: int, free: int, ranks: int) -> int:
    """Bytes of each rank's file: whole pages in each stretch, and never a full disk."""
    unit = _STRETCHES * PAGE
    return max(unit, min(wanted, free // _MOST_OF_FREE // max(ranks, 1)) // unit * unit)


def _on_rank(rank: Rank, plan: _Plan) -> _Phases:
    """On every rank: rank 0 alone first, then all. The file is removed, however it ends."""
    folder = Path(plan.folder)
    # Made here where the folder is another one on each node.
    folder.mkdir(exist_ok=True)
    own = folder / f"rank-{rank.number}"
    following = folder / f"rank-{(rank.number + 1) % rank.size}"
    alone: tuple[_Moves, _Moves] | None = None
    with removed_on_sigterm(folder), plain_errors(folder.parent):
        try:
            if rank.number == 0:
                alone = _write(own, plan, _at_once), _read(own, plan, _at_once)
                own.unlink()
            wrote = _write(own, plan, rank.barrier)
            rank.barrier()
            # A folder that is not shared between nodes has no file of another node's rank.
            other = following if following.exists() else own
            read = _read(other, plan, rank.barrier)
            rank.barrier()
            return _Phases(rank.host, alone, wrote, read, reordered=other != own)
        finally:
            own.unlink(missing_ok=True)
            # The last rank to go takes the folder along, should the one that leads be gone.
            with suppress(OSError):
                folder.rmdir()


def _at_once() -> None:
    """The start of who works alone."""


def _write(path: Path, plan: _Plan, start: Callable[[], None]) -> _Moves:
    """Write a file in stretches with fsync, and take it from this node's page cache."""
    stretch = plan.nbytes // _STRETCHES
    blocks = pages(min(_MIB, stretch // PAGE * PAGE))
    block = next(blocks)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        start()
        stamps = [time.perf_counter_ns()]
        end_ns, done = stamps[0] + int(plan.seconds * 1e9), 0
        while done < plan.nbytes and stamps[-1] < end_ns:
            stop = done + stretch
            while done < stop:
                done += os.pwrite(fd, memoryview(block)[: stop - done], done)
                block = next(blocks)
            os.fsync(fd)
            stamps.append(time.perf_counter_ns())
        drop(fd)
        return _Moves(stretch, stamps, False, None, None)
    finally:
        os.close(fd)


def _read(path: Path, plan: _Plan, start: Callable[[], None]) -> _Moves:
    """Read a file once, past the page cache where the file system lets it."""
    with ExitStack() as stack:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        # All have dropped their pages before any looks at a file.
        start()
        way, size = bypass(fd, stack), os.fstat(fd).st_size
        bs = min(_MIB, size)
        buffer = stack.enter_context(mmap.mmap(-1, bs))
        buffer.write(bytes(bs))
        resident = way.prepare(random=False)
        device = read_bytes()
        start()
        stamps = [time.perf_counter_ns()]
        end_ns = stamps[0] + int(plan.seconds * 1e9)
        for offset in range(0, size - bs + 1, bs):
            if stamps[-1] >= end_ns:
                break
            os.preadv(way.fd, [buffer], offset, way.flags)
            stamps.append(time.perf_counter_ns())
        now = read_bytes()
        came = None if now is None or device is None else now - device
        return _Moves(bs, stamps, way.direct, came, resident)


_Kind = Literal["write", "read"]


class _Step(NamedTuple):
    """One step, by one rank or by all."""

    kind: _Kind
    hosts: list[str]
    moves: list[_Moves]
    reordered: bool


def _records(
    seen: Sequence[_Phases], target: Target, size: int, seconds: float
) -> tuple[TierProbe, ...]:
    """Write and read by rank 0 alone, then by all together."""
    alone, hosts = seen[0].alone, [phases.host for phases in seen]
    assert alone is not None
    reordered = len(seen) > 1 and all(phases.reordered for phases in seen)
    steps = (
        _Step("write", hosts[:1], [alone[0]], False),
        _Step("read", hosts[:1], [alone[1]], False),
        _Step("write", hosts, [phases.wrote for phases in seen], False),
        _Step("read", hosts, [phases.read for phases in seen], reordered),
    )
    made = [_record(step, target, size, seconds) for step in steps]
    return (*made[:2], *(_compared(*pair) for pair in zip(made[:2], made[2:], strict=True)))


def _record(step: _Step, target: Target, size: int, seconds: float) -> TierProbe:
    reads, proof = _merged(step), _proof(step, target)
    rates = samples_of(reads.rates_Bps())
    summary = rates.summary()
    skew_s = _skew_s(step)
    refused = list(_refusals(step, proof))
    doubts = [*_doubts(step, proof, skew_s, reads.seconds)]
    return new_probe(
        f"storage.{step.kind}",
        target,
        tier=proof.state if proof.state in ("memory", "page cache") else "",
        job=_job(step, size, seconds),
        bandwidth_Bps=summary,
        sustained_Bps=reads.mean_Bps,
        io_bytes=reads.nbytes,
        bw_first_done_Bps=_first_done_Bps(reads),
        bw_last_done_Bps=reads.mean_Bps,
        start_skew_s=skew_s,
        cache=proof,
        notes=(*_notes(step),),
        quality=Quality(
            status="refused" if refused else "suspect" if doubts else "valid",
            reasons=(*refused, *doubts),
            spread=summary.spread if summary else None,
        ),
    )


def _job(step: _Step, size: int, seconds: float) -> Job:
    return Job(
        rw=step.kind,
        bs=step.moves[0].bs,
        size=size,
        ioengine="psync",
        iodepth=1,
        numjobs=1,
        direct=all(moves.direct for moves in step.moves),
        end_fsync=step.kind == "write",
        runtime_s=seconds,
        tasks=len(step.moves),
        clients_per_node=max(Counter(step.hosts).values()),
        access="file-per-process",
        reorder_tasks=int(step.reordered),
    )


def _merged(step: _Step) -> Reads:
    """All ranks as readers of one job. Each host has a clock of its own: the ranks left one
    barrier, so the first start on each host is taken for the same moment.
    """
    zero = dict[str, int]()
    for host, moves in zip(step.hosts, step.moves, strict=True):
        zero[host] = min(zero.get(host, moves.stamps_ns[0]), moves.stamps_ns[0])
    stamps = tuple(
        [stamp - zero[host] for stamp in moves.stamps_ns]
        for host, moves in zip(step.hosts, step.moves, strict=True)
    )
    nothing: dict[str, Any] = {"device_bytes": None, "cpu_s": 0.0, "user_s": 0.0, "wait_s": None}
    return Reads(bs=step.moves[0].bs, stamps_ns=stamps, **nothing)


def _first_done_Bps(reads: Reads) -> float:
    """All ranks' bytes until the first of them was done, over that time."""
    begin = min(stamps[0] for stamps in reads.stamps_ns)
    first = min(stamps[-1] for stamps in reads.stamps_ns)
    done = sum(end <= first for stamps in reads.stamps_ns for end in stamps[1:])
    return done * reads.bs / (max(first - begin, 1) * 1e-9)


def _skew_s(step: _Step) -> float | None:
    """Between the first and the last start on one host, the worst host; None for one rank each."""
    starts = dict[str, list[int]]()
    for host, moves in zip(step.hosts, step.moves, strict=True):
        starts.setdefault(host, []).append(moves.stamps_ns[0])
    skews = [max(times) - min(times) for times in starts.values() if len(times) > 1]
    return max(skews) * 1e-9 if skews else None


def _proof(step: _Step, target: Target) -> CacheState:
    if step.kind == "write":
        known = "unknown" if target.network else "uncached"
        return CacheState(state="memory" if target.memory_backed else known)  # type: ignore[arg-type]
    device = [moves.device_bytes for moves in step.moves]
    resident = [moves.resident for moves in step.moves if moves.resident is not None]
    return cache_state(
        target,
        asked=sum(moves.bs * (len(moves.stamps_ns) - 1) for moves in step.moves),
        from_device=None if None in device else sum(filter(None, device)),
        resident_before=max(resident, default=None),
    )


def _refusals(step: _Step, proof: CacheState) -> Iterator[str]:
    if proof.state in ("page cache", "mixed"):
        part = share(proof.device_share)
        yield f"{part} of these bytes came from the device: this is the page cache, not the disk"


def _doubts(step: _Step, proof: CacheState, skew_s: float | None, seconds: float) -> Iterator[str]:
    if proof.state == "unknown" and not (step.reordered and len(set(step.hosts)) > 1):
        yield "where these bytes came from cannot be proven on this file system"
    if skew_s is not None and skew_s > _MOST_SKEW * seconds:
        yield f"the ranks began {skew_s * 1e3:.1f} ms apart, in a step of {seconds * 1e3:.0f} ms"


def _notes(step: _Step) -> Iterator[str]:
    """Who was late, and what of the way could not be kept."""
    if len(step.moves) == 1:
        yield "rank 0 alone"
        return
    usual = median_low(moves.seconds for moves in step.moves)
    for number, (host, moves) in enumerate(zip(step.hosts, step.moves, strict=True)):
        if moves.seconds > _LATE * usual:
            yield f"straggler: rank {number} on {host}, {ratio(moves.seconds / usual)} the time"
    if len(set(step.hosts)) > 1:
        yield "several hosts: the start skew is that within a host"
    if step.kind == "read" and not step.reordered:
        yield "not shared between nodes: ranks without the next one's file read their own"


def _compared(alone: TierProbe, together: TierProbe) -> TierProbe:
    """The record of all ranks, with what they gained over one."""
    one, many = alone.bw_last_done_Bps, together.bw_last_done_Bps
    if not one or not many:
        return together
    gain = f"{together.job.tasks} ranks together: {ratio(many / one)} the bandwidth of one alone"
    fields = {name: getattr(together, name) for name in together.__struct_fields__}
    return TierProbe.of(**fields | {"notes": (gain, *together.notes)})
