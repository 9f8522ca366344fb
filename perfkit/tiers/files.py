"""A folder that may be probed, and a file that is read by one thread or several."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import resource
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

from perfkit.errors import UsageError
from perfkit.records.tiers import Target
from perfkit.system.mounts import target_of
from perfkit.system.noise import RunQueueWait
from perfkit.tiers.cache import read_bytes
from perfkit.units import capacity

__all__ = ["LEAST_FREE", "Reading", "Reads", "asks_huge_pages", "check_path", "read_file"]

LEAST_FREE = 16 * 2**20
"""Bytes that must be free before anything is written."""
_HUGE = 2 * 2**20


def check_path(path: str | Path) -> Target:
    """The file system of a folder that can be probed; `Target.path` has symbolic links resolved.

    Raises UsageError in one line for a path that does not exist, leads nowhere, is a file, cannot
    be written or has less than 16 MiB free.
    """
    asked = Path(path)
    try:
        asked = asked.expanduser()
        if not str(path) or not asked.exists():
            raise UsageError(_missing(asked, str(path)))
        target = target_of(asked)
        is_folder = Path(target.path).is_dir()
        read_only = os.statvfs(target.path).f_flag & os.ST_RDONLY
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{path!s}: {said}; name a folder that you can write in") from None
    named = target.path if target.path == str(asked) else f"{asked} (which is {target.path})"
    if not is_folder:
        raise UsageError(f"{named} is a file; name its folder: {Path(target.path).parent}")
    if read_only:
        raise UsageError(f"{named} is on a read-only file system ({target.fstype}); name another")
    if not os.access(target.path, os.W_OK | os.X_OK):
        raise UsageError(f"{named} is not writable for you; name a folder of your own")
    if (target.free_bytes or 0) < LEAST_FREE:
        free, least = capacity(target.free_bytes), capacity(LEAST_FREE)
        raise UsageError(
            f"{named} has {free} free, a probe needs {least}; free some or name another"
        )
    return target


def _missing(asked: Path, text: str) -> str:
    if not text:
        return "an empty path; name a folder"
    if asked.is_symlink():
        return f"{asked} is a symbolic link to {asked.readlink()}, which does not exist"
    return f"{asked} does not exist; name a folder that does"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is to be read: blocks of `bs` bytes by `readers` threads that share one order.

    It ends after `seconds`; `once` ends it when each block was read, else it starts over. `flags`
    are preadv's; `length` keeps to the first bytes of the file.
    """

    bs: int
    readers: int = 1
    random: bool = False
    seconds: float = 1.0
    once: bool = False
    flags: int = 0
    length: int | None = None

    def offsets(self, size: int) -> Iterator[int]:
        """Where the blocks of a file of `size` bytes lie, the same order every time."""
        end = size if self.length is None else min(size, self.length)
        places: Iterable[int] = range(0, end - self.bs + 1, self.bs)
        if self.random:
            shuffled = list(places)
            random.Random(0).shuffle(shuffled)
            places = array("q", shuffled)
        # next() on either is one step under the interpreter's lock, so threads may share it.
        return iter(places) if self.once else cycle(places)


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What was read. `stamps_ns`: when each reader began, then the end of each of its reads.

    `device_bytes`: what the block layer read for these threads, None where it is not counted;
    `cpu_s`, `user_s`: of the whole process meanwhile; `wait_s`: how long the readers stood ready
    and had no core, added up.
    """

    bs: int
    stamps_ns: tuple[Sequence[int], ...]
    device_bytes: int | None
    cpu_s: float
    user_s: float
    wait_s: float | None

    @property
    def count(self) -> int:
        """Reads of `bs` bytes each."""
        return sum(len(stamps) - 1 for stamps in self.stamps_ns)

    @property
    def nbytes(self) -> int:
        """Bytes asked for and got."""
        return self.count * self.bs

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        begin = min(stamps[0] for stamps in self.stamps_ns)
        return max((max(stamps[-1] for stamps in self.stamps_ns) - begin) * 1e-9, 1e-9)

    @property
    def mean_Bps(self) -> float:
        """All bytes over all the time."""
        return self.nbytes / self.seconds

    def rates_Bps(self, most: int = 20) -> list[float]:
        """Bytes per second in up to `most` stretches of as many reads each, at least four a reader,
        in order of time.
        """
        ends = sorted(end for stamps in self.stamps_ns for end in stamps[1:])
        if not ends:
            return []
        times = [min(stamps[0] for stamps in self.stamps_ns), *ends]
        parts = min(most, max(1, len(ends) // (4 * len(self.stamps_ns))))
        cuts = [part * len(ends) // parts for part in range(parts + 1)]
        return [
            (high - low) * self.bs / (max(times[high] - times[low], 1) * 1e-9)
            for low, high in pairwise(cuts)
        ]

    def latencies_s(self) -> list[float]:
        """Of each read, sorted; what the loop itself takes (0.3 µs) is in it."""
        return sorted(
            (end - begin) * 1e-9 for stamps in self.stamps_ns for begin, end in pairwise(stamps)
        )


def asks_huge_pages(nbytes: int) -> bool:
    """Does a buffer for reads of this size ask for huge pages?"""
    return nbytes >= _HUGE // 2 and hasattr(mmap, "MADV_HUGEPAGE")


@contextmanager
def _buffer(nbytes: int) -> Iterator[memoryview]:
    """Memory for one read, touched and aligned: to a huge page if it is large.

    In small pages 1 MiB is 256 pieces for the device: on a virtual disk that halved deep reads.
    """
    large = asks_huge_pages(nbytes)
    length = nbytes + _HUGE if large else nbytes
    with mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        start = 0
        if large:
            with suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
            start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE
        with memoryview(memory) as whole, whole[start : start + nbytes] as part:
            part[:] = bytes(nbytes)
            yield part


class _Signals:
    """What the caller's thread tells all readers."""

    def __init__(self) -> None:
        self.go, self.stop = threading.Event(), threading.Event()


class _Reader(threading.Thread):
    """One thread that reads until the time is over, the blocks are or `stop` is set."""

    def __init__(self, fd: int, job: Reading, offsets: Iterator[int], signals: _Signals) -> None:
        super().__init__(name="perfkit-reader", daemon=True)
        self._fd, self._job, self._offsets, self._signals = fd, job, offsets, signals
        self.stamps_ns: list[int] = []
        self.device_bytes: float | None = None
        self.wait_s: float | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        queue = RunQueueWait()
        try:
            with _buffer(self._job.bs) as buffer:
                self._signals.go.wait()
                device, waited_s = read_bytes("thread-self"), queue.read_s()
                self._read(buffer)
                self.wait_s = _rise(waited_s, queue.read_s())
                self.device_bytes = _rise(device, read_bytes("thread-self"))
        except BaseException as error:
            self.error = error
            self._signals.stop.set()
        finally:
            queue.close()

    def _read(self, buffer: memoryview) -> None:
        clock, preadv, stopped = time.perf_counter_ns, os.preadv, self._signals.stop.is_set
        fd, bs, flags, buffers = self._fd, self._job.bs, self._job.flags, [buffer]
        now = clock()
        end = now + int(self._job.seconds * 1e9)
        self.stamps_ns = [now]
        keep = self.stamps_ns.append
        for offset in self._offsets:
            if now >= end or stopped():
                break
            if preadv(fd, buffers, offset, flags) != bs:
                raise OSError(errno.EIO, "a read came back short")
            now = clock()
            keep(now)


def read_file(fd: int, job: Reading) -> Reads:
    """Read an open file as `job` says; where it was opened with O_DIRECT the buffers are aligned.

    Raises what a read raised (OSError). The threads are joined on any error, KeyboardInterrupt
    among them.
    """
    signals, crew = _Signals(), list[_Reader]()
    offsets = job.offsets(os.fstat(fd).st_size)
    try:
        for _ in range(job.readers):
            reader = _Reader(fd, job, offsets, signals)
            reader.start()
            crew.append(reader)
        before = resource.getrusage(resource.RUSAGE_SELF)
        signals.go.set()
        for reader in crew:
            reader.join()
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        signals.stop.set()
        signals.go.set()
        for reader in crew:
            reader.join()
    for error in filter(None, (reader.error for reader in crew)):
        raise error
    return _reads(job, crew, before, after)


def _reads(
    job: Reading, crew: list[_Reader], before: resource.struct_rusage, after: resource.struct_rusage
) -> Reads:
    user_s = after.ru_utime - before.ru_utime
    device_bytes = _total(reader.device_bytes for reader in crew)
    return Reads(
        bs=job.bs,
        stamps_ns=tuple(reader.stamps_ns for reader in crew),
        device_bytes=None if device_bytes is None else int(device_bytes),
        cpu_s=user_s + after.ru_stime - before.ru_stime,
        user_s=user_s,
        wait_s=_total(reader.wait_s for reader in crew),
    )


def _rise(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0, after - before)


def _total(values: Iterable[float | None]) -> float | None:
    """None where one is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
