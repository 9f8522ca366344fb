"""The place: quota, memory, neighbours, file systems."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.records.doctor import Diagnosis, FileSystem, Finding
from perfkit.units import capacity, count, seconds, share

__all__ = ["RULES"]

GiB = 2**30
THROTTLED = 0.01
QUIET = 0.02
PRESSED = 0.1


def throttled(seen: Diagnosis) -> Iterator[Finding]:
    """The quota has stopped this group."""
    weather = seen.weather
    if (weather.throttled_share or 0) > THROTTLED:
        yield Finding(
            id="throttled",
            severity="warning",
            title="The CPU quota stops you",
            evidence=f"in {share(weather.throttled_share)} of "
            f"{count(weather.periods or 0, 'period')} since the group was made; "
            f"{seconds(weather.throttled_s)} of stops, over all CPUs",
            fix="fewer threads and workers than the quota has CPUs, or ask for a larger quota",
            gain="even timings: a stop lasts up to a whole period, 100 ms as a rule",
            lesson="13",
        )


def memory_short(seen: Diagnosis) -> Iterator[Finding]:
    """Near the limit a process is killed without a word."""
    left = seen.weather.memory_available_bytes
    limits = (seen.limits.memory_bytes, seen.processor.memory_bytes)
    total = min((size for size in limits if size), default=None)
    if left is None or not total or left > 0.1 * total:
        return
    limited = seen.limits.memory_bytes == total
    yield Finding(
        id="memory-short",
        severity="problem" if left < 0.05 * total else "warning",
        title="Memory is nearly full",
        evidence=f"{capacity(left)} left of {capacity(total)}"
        + (", the limit of the control group" if limited else ""),
        fix="restart other kernels; %whos shows what this one holds",
        gain="a process that goes over the limit is killed" if limited else "no swapping, no kill",
        lesson="10",
    )


def noisy(seen: Diagnosis) -> Iterator[Finding]:
    """Somebody else runs on these CPUs."""
    weather = seen.weather
    if (weather.lost_share or 0) > QUIET:
        yield Finding(
            id="noisy",
            severity="warning",
            title="Something else runs on this CPU",
            evidence=f"a spin of {seconds(weather.spin_s)} lost {share(weather.lost_share)}, "
            f"{seconds(weather.longest_gap_s)} at once",
            fix="%gpu_time -r auto ...",
            gain="single timings are worth little here: repeat, and believe medians with a spread",
            lesson="31",
        )


def pressed(seen: Diagnosis) -> Iterator[Finding]:
    """Tasks of this machine wait."""
    weather = seen.weather
    for name, part, lesson in (
        ("CPU", weather.cpu_pressure, "13"),
        ("memory", weather.memory_pressure, "10"),
        ("storage", weather.io_pressure, "10"),
    ):
        if (part or 0) > PRESSED:
            yield Finding(
                id=f"pressure-{name.lower()}",
                severity="note",
                title=f"Tasks wait for {name}",
                evidence=f"some task waited in {share(part)} of the last 10 s (/proc/pressure)",
                fix="time again when it is quiet",
                lesson=lesson,
            )


# -- file systems ----------------------------------------------------------------------------------


def small_shared_memory(seen: Diagnosis) -> Iterator[Finding]:
    """Loader workers hand batches over in /dev/shm; containers have 64 MB of it by default."""
    row = _of(seen, "shared memory")
    if row and row.total_bytes is not None and row.total_bytes < GiB:
        yield Finding(
            id="small-shared-memory",
            severity="note",
            title="/dev/shm is small",
            evidence=f"{capacity(row.total_bytes)}; worker processes hand batches over in it",
            fix="docker run --shm-size=8g ...",
            gain='no "bus error" in a DataLoader with workers',
            lesson="10",
        )


def full(seen: Diagnosis) -> Iterator[Finding]:
    """A file system without room."""
    for row in seen.file_systems:
        if row.use == "shared memory" or row.free_bytes is None or not row.total_bytes:
            continue
        if row.free_bytes < min(GiB, 0.02 * row.total_bytes):
            yield Finding(
                id="disk-full",
                severity="warning",
                title="A file system is nearly full",
                evidence=f"{row.path} ({row.use}): {capacity(row.free_bytes)} left of "
                f"{capacity(row.total_bytes)}",
                fix=f"du -xh --max-depth=1 {row.path} | sort -h",
                lesson="10",
            )


def temporary_in_memory(seen: Diagnosis) -> Iterator[Finding]:
    """Files in memory are no test of a disk, and count against the limit."""
    row = _of(seen, "temporary files")
    if row and row.memory_backed:
        yield Finding(
            id="temporary-in-memory",
            severity="note",
            title="Temporary files lie in memory",
            evidence=f"{row.path} is {row.fstype}",
            fix="import tempfile; tempfile.tempdir = '.'",
            gain="files there use up memory, and timings of them tell nothing of a disk",
            lesson="10",
        )


def python_afar(seen: Diagnosis) -> Iterator[Finding]:
    """Each import is many small files, and each of them a question to a server."""
    row = _of(seen, "Python")
    if row and row.network:
        yield Finding(
            id="python-on-network",
            severity="note",
            title="Python's packages lie on a network file system",
            evidence=f"{row.path} is {row.fstype}",
            fix="install the environment on a local disk, or start from a container image",
            gain="imports of seconds instead of minutes, when many processes start at once",
            lesson="41",
        )


def _of(seen: Diagnosis, use: str) -> FileSystem | None:
    return next((row for row in seen.file_systems if use in row.use.split(", ")), None)


RULES = (
    throttled,
    memory_short,
    noisy,
    pressed,
    small_shared_memory,
    full,
    temporary_in_memory,
    python_afar,
)
