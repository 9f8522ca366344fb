"""From probes to the rows of the tier table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit import units
from perfkit.records.base import Quality
from perfkit.records.tiers import PlannedPath, Target, Tier, TierProbe, Tristate
from perfkit.system.files import read
from perfkit.system.limits import read_limits

__all__ = ["advice", "device_rows", "memory_rows", "storage_rows"]

_WORSE = {"valid": 0, "suspect": 1, "refused": 2}
DATA_SET_BYTES = 100e9
WORTH_MOVING = 1.2


def memory_rows(bandwidths: Sequence[TierProbe], latency: TierProbe | None) -> Iterator[Tier]:
    """CPU memory, and the caches that the latency probe has seen."""
    best = _best(bandwidths, "read") or _best(bandwidths, "add")
    written = _best(bandwidths, "copy")
    plateaus = latency.plateaus if latency is not None else ()
    last = plateaus[-1] if plateaus else None
    total, free = _memory()
    for plateau in plateaus[:-1]:
        nominal = units.capacity(plateau.nominal_bytes)
        yield Tier(
            name=f"{plateau.level} cache",
            kind="cache",
            persistent="no",
            shared="no",
            capacity_bytes=plateau.end_bytes,
            latency_s=plateau.seconds,
            note=f"{nominal} on paper" if plateau.nominal_bytes else "",
            quality=latency.quality if latency is not None else Quality(),
        )
    yield Tier(
        name="CPU memory",
        kind="memory",
        persistent="no",
        shared="no",
        capacity_bytes=total,
        free_bytes=free,
        read_Bps=_median(best),
        write_Bps=_median(written),
        latency_s=last.seconds if last else None,
        note=_memory_note(best),
        quality=_worst([p for p in (best, written, latency) if p is not None]),
    )


def _memory_note(best: TierProbe | None) -> str:
    if best is None:
        return "no clean sample"
    threads = units.count(best.job.threads or 1, "thread")
    return f"read and copied by {threads}, STREAM's counting; latency of a random chase"


def device_rows(probes: Sequence[TierProbe]) -> Iterator[Tier]:
    """A row for each device, with its own memory and the copies to and from it."""
    for name in dict.fromkeys(probe.tier for probe in probes):
        mine = [probe for probe in probes if probe.tier == name]
        inside = [p for p in mine if p.probe == "device.bandwidth"]
        launches = [p for p in mine if p.probe == "device.launch"]
        copies = [p for p in mine if p.probe == "device.copy" and p.bandwidth_Bps]
        said = ", ".join(_copy_words(copy) for copy in copies)
        yield Tier(
            name=f"{name} memory",
            kind="device",
            persistent="no",
            shared="no",
            read_Bps=_median(inside[0]) if inside else None,
            latency_s=launches[0].latency_s.median if launches and launches[0].latency_s else None,
            note="; ".join(
                part
                for part in (
                    mine[0].target.device,
                    said,
                    "latency is that of a launch" if launches else "",
                )
                if part
            )
            or "it could not be measured",
            quality=_worst(mine),
        )
    if not probes:
        yield Tier(
            name="GPU memory",
            kind="device",
            persistent="no",
            shared="no",
            figures="absent",
            note="no device runtime is imported: import cupy, jax, torch or pyopencl first",
        )


def _copy_words(copy: TierProbe) -> str:
    way = "to device" if "host_to" in copy.job.kernel else "to host"
    pinned = {True: " pinned", False: " pageable", None: ""}[copy.job.pinned]
    return f"{way}{pinned} {units.bandwidth(_median(copy))}"


def storage_rows(path: PlannedPath, probes: Sequence[TierProbe]) -> Iterator[Tier]:
    """The file system's row, and what the page cache gave in its place."""
    target = path.target
    reads = [
        p
        for p in probes
        if p.probe == "storage.read" and p.quality.status != "refused" and _is_direct(p)
    ]
    sequential = max(
        (p for p in reads if p.job.rw == "read"), key=lambda p: _median(p) or 0, default=None
    )
    one = next((p for p in reads if p.job.rw == "randread" and p.job.numjobs == 1), None)
    many = max(
        (p for p in reads if p.job.rw == "randread"),
        key=lambda p: p.iops.median if p.iops else 0,
        default=None,
    )
    write = next((p for p in probes if p.probe == "storage.write"), None)
    used = [p for p in (sequential, one, many, write) if p is not None]
    if sequential is None:
        # A row without its main figure says why.
        used += [p for p in probes if p.probe == "storage.read" and p.quality.status == "refused"]
    yield Tier(
        name=path.name,
        kind="memory" if target.memory_backed else "storage",
        path=path.path,
        persistent=_persistent(path),
        shared=_shared(path),
        capacity_bytes=target.total_bytes,
        free_bytes=target.free_bytes,
        read_Bps=_median(sequential),
        write_Bps=_median(write),
        latency_s=one.latency_s.median if one and one.latency_s else None,
        iops=many.iops.median if many and many.iops else None,
        multiplier="nodes" if "BeeOND" in path.name else "",
        note=_storage_note(target, sequential, many),
        quality=_worst(used) if used else _nothing(probes),
    )
    warm = [
        p for p in probes if p.probe == "storage.read" and p.cache and p.cache.state == "page cache"
    ]
    if warm and not target.memory_backed:
        yield Tier(
            name=f"page cache of {path.name}",
            kind="cache",
            path=path.path,
            persistent="no",
            shared="no",
            read_Bps=_median(warm[-1]),
            note="a second read of the same file: memory, not the disk",
            quality=warm[-1].quality,
        )


def _is_direct(probe: TierProbe) -> bool:
    state = probe.cache.state if probe.cache else "unknown"
    return state in ("uncached", "memory") or (state == "unknown" and probe.job.direct is True)


def _storage_note(target: Target, sequential: TierProbe | None, many: TierProbe | None) -> str:
    named = target.source and target.source != target.fstype
    parts = [f"{target.fstype} on {target.source}" if named else target.fstype]
    if target.memory_backed:
        parts.append("it lies in memory")
    if sequential is not None:
        parts.append(f"read by {units.count(sequential.job.numjobs or 1, 'reader')}")
    if many is not None:
        parts.append(f"IOPS with {units.count(many.job.numjobs or 1, 'reader')}")
    return ", ".join(part for part in parts if part)


def _persistent(path: PlannedPath) -> Tristate:
    if path.target.memory_backed or "BeeOND" in path.name:
        return "no"
    if path.name in ("local scratch", "temporary files") or path.target.fstype == "overlay":
        return "partly"
    return "yes" if path.name == "home" else "unknown"


def _shared(path: PlannedPath) -> Tristate:
    if path.target.network or "BeeOND" in path.name:
        return "yes"
    return (
        "no" if path.target.memory_backed or path.target.source.startswith("/dev/") else "unknown"
    )


def _nothing(probes: Sequence[TierProbe]) -> Quality:
    reasons = dict.fromkeys(reason for probe in probes for reason in probe.quality.reasons)
    return Quality(status="refused", reasons=tuple(reasons) or ("no figure came from the device",))


def _worst(probes: Sequence[TierProbe]) -> Quality:
    if not probes:
        return Quality(status="refused", reasons=("nothing could be measured",))
    worst = max(probes, key=lambda p: _WORSE[p.quality.status]).quality
    reasons = dict.fromkeys(
        f"{_figure(probe)}: {reason}" for probe in probes for reason in probe.quality.reasons
    )
    return Quality(
        status=worst.status, reasons=tuple(reasons), spread=worst.spread, source=worst.source
    )


def _figure(probe: TierProbe) -> str:
    """Which of a tier's figures a probe gives."""
    kind = probe.probe.partition(".")[2]
    return {"bandwidth": probe.job.kernel, "read": probe.job.rw}.get(kind) or kind


def _best(probes: Sequence[TierProbe], kernel: str) -> TierProbe | None:
    known = [p for p in probes if p.job.kernel == kernel and p.bandwidth_Bps]
    sure = [p for p in known if p.quality.status != "refused"]
    return max(sure or known, key=lambda p: _median(p) or 0, default=None)


def _median(probe: TierProbe | None) -> float | None:
    return probe.bandwidth_Bps.median if probe is not None and probe.bandwidth_Bps else None


def _memory() -> tuple[int | None, int | None]:
    """Bytes that this process may use at most, and that are free."""
    found = {}
    for line in read_lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            found[key] = 1024 * int(value.split()[0])
    total, limit = found.get("MemTotal"), read_limits().memory_bytes
    if total is not None and limit is not None:
        total = min(total, limit)
    total, free = total or limit, found.get("MemAvailable")
    return total, free if total is None or free is None else min(free, total)


def read_lines(path: str) -> list[str]:
    """Lines of a file of the kernel's; none where it is not there."""
    from pathlib import Path

    return read(Path(path)).splitlines()


def advice(tiers: Sequence[Tier]) -> Iterator[str]:
    """Sentences that stand on these figures."""
    storage = [
        t for t in tiers if t.kind == "storage" and t.read_Bps and t.quality.status != "refused"
    ]
    memory = next((t for t in tiers if t.name == "CPU memory" and t.read_Bps), None)
    slowest = min(storage, key=lambda t: t.read_Bps or 0, default=None)
    if memory is not None and slowest is not None:
        times = (memory.read_Bps or 0.0) / (slowest.read_Bps or 1.0)
        if times > 1 and memory.free_bytes:
            yield (
                f"memory reads {units.ratio(times)} as fast as {slowest.name}: what fits in "
                f"{units.capacity(memory.free_bytes)} is best kept there"
            )
    for source in storage:
        for goal in storage:
            if source is not goal and source.read_Bps and goal.read_Bps:
                line = _staging(source, goal)
                if line:
                    yield line


def _staging(source: Tier, goal: Tier) -> str:
    """Does copying a data set from one to the other pay, and after how many epochs?"""
    assert source.read_Bps is not None and goal.read_Bps is not None
    if goal.read_Bps < WORTH_MOVING * source.read_Bps or not goal.write_Bps:
        return ""
    if goal.free_bytes is not None and goal.free_bytes < DATA_SET_BYTES:
        return ""
    there_s, here_s = DATA_SET_BYTES / source.read_Bps, DATA_SET_BYTES / goal.read_Bps
    copy_s = DATA_SET_BYTES / min(source.read_Bps, goal.write_Bps)
    epochs = int(copy_s / (there_s - here_s)) + 1
    return (
        f"100 GB are read in {units.seconds(there_s)} from {source.name} and in "
        f"{units.seconds(here_s)} from {goal.name}; copying them there takes "
        f"{units.seconds(copy_s)} and pays from epoch {epochs} on"
    )
