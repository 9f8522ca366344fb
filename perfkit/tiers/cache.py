"""Where the bytes of a read came from, and what the page cache holds of a file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from perfkit.records.tiers import CacheState, Target
from perfkit.system.files import read
from perfkit.system.mounts import backing, dio_alignment

__all__ = ["Bypass", "bypass", "cache_state", "drop", "read_bytes", "resident_share"]

UNCACHED_SHARE = 0.95
CACHED_SHARE = 0.05
RWF_DONTCACHE = 0x80
_REFUSED = {errno.EINVAL, errno.EOPNOTSUPP}
_BLOCK_BACKED = re.compile(
    r"ext[234]|xfs|btrfs|f2fs|overlay|jfs|reiserfs|v?fat|msdos|exfat|ntfs3?|nilfs2|bcachefs"
    r"|hfs(plus)?|udf|iso9660|squashfs|erofs"
)
# ZFS adds up every read for the process, also those that its own cache in memory has served.
_COUNTS_ALL = {"zfs"}


def read_bytes(of: str = "self") -> int | None:
    """Bytes that the block layer has read for this process (`self`) or thread (`thread-self`).

    None where the kernel does not count. Reads ahead count, writes do not.
    """
    found = re.search(r"^read_bytes: (\d+)", read(Path(f"/proc/{of}/io")), re.MULTILINE)
    return int(found[1]) if found else None


def resident_share(fd: int, nbytes: int | None = None) -> float | None:
    """Part of the first `nbytes` of a file (all of it by default) that is in the page cache.

    None where the kernel does not tell: it does only to those who own the file or may write it.
    """
    state = os.fstat(fd)
    length = min(state.st_size, nbytes) if nbytes else state.st_size
    if not length or not (
        state.st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)
    ):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t], *[ctypes.c_int] * 3, ctypes.c_long]
    place = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if place == ctypes.c_void_p(-1).value:
        return None
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(length), pages) != 0:
            return None
        return sum(byte & 1 for byte in pages.raw[:-1]) / len(pages.raw[:-1])
    finally:
        libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(length))


def drop(fd: int) -> None:
    """Write this file's changes out and take it from the page cache: this file alone.

    The kernel may keep pages, those that any process has mapped among them: see `resident_share`.
    """
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def cache_state(
    target: Target,
    *,
    asked: int,
    from_device: int | None,
    resident_before: float | None = None,
    dio_align: int | None = None,
    second_pass_ratio: float | None = None,
) -> CacheState:
    """What `asked` bytes and those that the block layer read prove. uncached needs 95 %."""
    share = None if from_device is None or not asked else from_device / asked
    return CacheState(
        device_share=share,
        resident_before=resident_before,
        dio_align=dio_align,
        second_pass_ratio=second_pass_ratio,
        state=_judged(target, share, resident_before),  # type: ignore[arg-type]
    )


def _judged(target: Target, share: float | None, resident: float | None) -> str:
    if target.memory_backed:
        return "memory"
    if share is not None and _is_counted(target):
        if share >= UNCACHED_SHARE:
            return "uncached"
        if _BLOCK_BACKED.fullmatch(target.fstype):
            return "page cache" if share <= CACHED_SHARE else "mixed"
    # Elsewhere no bytes from a device may mean that the kernel does not count them.
    in_cache = resident is not None and resident >= UNCACHED_SHARE
    return "page cache" if in_cache and not (share or 0) > CACHED_SHARE else "unknown"


def _is_counted(target: Target) -> bool:
    """Do bytes that were counted come from a device, and not from a cache below the counter?"""
    if target.fstype in _COUNTS_ALL:
        return False
    name = target.source.rpartition("/")[2]
    return not backing(target.source) or read(Path(f"/sys/block/{name}/loop/dio")) == "1"


@dataclass(frozen=True, kw_only=True)
class Bypass:
    """How a file is read past the page cache. `fd` has O_DIRECT where the file system takes it.

    Where it does not, `flags` are preadv's, and each pass begins with `prepare`. `resident`: part
    of the file that was in the page cache when this was made.
    """

    fd: int
    buffered: int
    flags: int
    dio_align: int | None
    resident: float | None

    @property
    def direct(self) -> bool:
        """Was O_DIRECT taken? That alone proves nothing: some file systems ignore it."""
        return self.fd != self.buffered

    @property
    def notes(self) -> tuple[str, ...]:
        """How the file is read where O_DIRECT is refused."""
        if self.direct:
            return ()
        way = "RWF_DONTCACHE" if self.flags else "DONTNEED before each pass"
        return (f"O_DIRECT is refused here: buffered reads with {way}",)

    def prepare(self, *, random: bool) -> float | None:
        """Before a pass: empty the page cache of the file, if need be. The part still in it."""
        if self.direct:
            return self.resident
        drop(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)
        return resident_share(self.fd)


def bypass(fd: int, stack: ExitStack) -> Bypass:
    """The best way past the page cache for a file that is open as `fd`. `stack` closes it."""
    drop(fd)
    direct = _open_direct(fd, stack)
    takes_flag = direct is None and _reads_a_page(fd, RWF_DONTCACHE)
    drop(fd)
    return Bypass(
        fd=fd if direct is None else direct,
        buffered=fd,
        flags=RWF_DONTCACHE if takes_flag else 0,
        dio_align=dio_alignment(fd),
        resident=resident_share(fd),
    )


def _open_direct(fd: int, stack: ExitStack) -> int | None:
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _REFUSED:
            return None
        raise
    stack.callback(os.close, again)
    return again if _reads_a_page(again, 0) else None


def _reads_a_page(fd: int, flags: int) -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            return os.preadv(fd, [page], 0, flags) > 0
        except OSError as error:
            if error.errno in _REFUSED:
                return False
            raise
