"""Files and folders that are gone afterwards, whatever happens, and never fill a disk."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfkit.errors import NotSupportedHere
from perfkit.records.tiers import Target
from perfkit.system.files import read
from perfkit.system.limits import read_limits

__all__ = [
    "file_cap",
    "pages",
    "plain_errors",
    "scratch_file",
    "scratch_folder",
    "small_files_cap",
    "sweep",
]

PAGE = 4096
_MIB = 2**20
_NAMELESS_REFUSED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS}
_WHY = {
    errno.ENOSPC: "the file system is full; free some space or name another folder",
    errno.EDQUOT: "your quota is used up; delete something or name another folder",
    errno.EROFS: "the file system is read-only; name another folder",
    errno.EACCES: "writing is not allowed; name a folder of your own",
    errno.EPERM: "writing is not allowed; name a folder of your own",
    errno.EIO: "the device or server reports an error; ask who runs it",
    errno.ESTALE: "the file server has lost the folder; name another, or mount it again",
    errno.ENOENT: "the folder is gone; name another",
    errno.EMFILE: "too many files are open in this process; close some, or restart the kernel",
}


def file_cap(target: Target) -> int:
    """Bytes that a scratch file may have: 256 MiB, 5 % of what is free or 12.5 % of the memory.

    The least of them, in whole pages of 4 KiB.
    """
    memory = min(filter(None, (read_limits().memory_bytes, _total_memory())), default=2**30)
    least = min(256 * _MIB, (target.free_bytes or 0) // 20, memory // 8)
    return max(PAGE, least // PAGE * PAGE)


def small_files_cap(folder: str | Path) -> int:
    """How many small files there may be: 1000, or 1 % of the inodes that are free."""
    space = os.statvfs(folder)
    # A file system without a table of inodes, as btrfs, says 0 of both.
    return min(1000, space.f_favail // 100) if space.f_files else 1000


def _total_memory() -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", read(Path("/proc/meminfo")), re.MULTILINE)
    return 1024 * int(found[1]) if found else None


def pages(nbytes: int = _MIB) -> Iterator[bytearray]:
    """Blocks of `nbytes` that no file system can shrink: random, and no two pages are alike.

    The same buffer is given each time, with a new count in each page of 4 KiB.
    """
    block = bytearray(os.urandom(nbytes))
    count = 0
    while True:
        for start in range(0, nbytes, PAGE):
            count += 1
            block[start : start + 8] = count.to_bytes(8, "little")
        yield block


@contextmanager
def plain_errors(folder: str | Path) -> Iterator[None]:
    """Turn what a file system refuses in the middle into one line. Raises NotSupportedHere."""
    try:
        yield
    except OSError as error:
        why = _WHY.get(error.errno or 0)
        if why is None:
            raise
        name = errno.errorcode[error.errno or 0]
        text = f"{folder}: {why} ({name}). What perfkit wrote there is gone again"
        raise NotSupportedHere(text) from error


@contextmanager
def scratch_file(folder: str | Path) -> Iterator[int]:
    """An empty file without a name, open for reading and writing: its descriptor.

    The kernel frees it when it is closed, also after kill -9. Raises OSError.
    """
    fd = _nameless(Path(folder))
    try:
        yield fd
    finally:
        os.close(fd)


def _nameless(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NAMELESS_REFUSED:
            raise
    # In a folder with our own prefix: the sweeper finds it should we die before the name is gone.
    with scratch_folder(folder) as own:
        fd, name = tempfile.mkstemp(dir=own)
        Path(name).unlink()
        return fd


@contextmanager
def scratch_folder(folder: str | Path) -> Iterator[Path]:
    """A folder below `folder` for files that need names, removed with all that is in it."""
    own = Path(tempfile.mkdtemp(prefix=f".perfkit-{_here()}-{os.getpid()}-", dir=folder))
    try:
        yield own
    finally:
        # A KeyboardInterrupt in the middle of it must not leave the rest.
        try:
            shutil.rmtree(own)
        finally:
            shutil.rmtree(own, ignore_errors=True)


def sweep(folder: str | Path) -> list[Path]:
    """Remove what perfkit left in `folder` when it was killed; the folders that are gone.

    Only folders with perfkit's own name, made by this user on this host, whose process is dead.
    """
    found = re.compile(rf"\.perfkit-{re.escape(_here())}-(\d+)-[^-]*")
    gone = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            name = found.fullmatch(entry.name)
            if name and _is_ours(entry) and _is_dead(int(name[1])):
                shutil.rmtree(entry.path, ignore_errors=True)
                gone.append(Path(entry.path))
    return gone


def _here() -> str:
    """This host, and its table of processes: containers may share a host's name, not their pids."""
    try:
        table = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        table = 0
    return f"{re.sub('[^A-Za-z0-9.-]', '_', platform.node()) or 'host'}.{table}"


def _is_ours(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        is_folder = entry.is_dir(follow_symlinks=False)
        return is_folder and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    return False


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
