"""One probe at a time on a file system or the memory: two at once would measure each other."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfkit.errors import NotSupportedHere
from perfkit.records.tiers import Target

__all__ = ["FOLDER", "turn"]

FOLDER = "PERFKIT_LOCKS"
"""Where the locks lie: a folder that all who share the file system can write, so that people on
several machines take turns. Without it people on this machine do.
"""
LOOK_S = 0.2
MOST_S = 900.0


@contextmanager
def turn(
    target: Target,
    waiting: Callable[[float], None] = lambda _: None,
    most_s: float = MOST_S,
) -> Iterator[float]:
    """Hold the file system's lock. Gives the seconds that it took to get it.

    `waiting` is told the seconds so far, about five times a second. Raises NotSupportedHere after
    `most_s` seconds. The lock of a process that has died is free at once.
    """
    fd = _opened(target)
    if fd is None:
        # Nowhere to put a lock: probing alone cannot be promised, and is not worth failing for.
        yield 0.0
        return
    try:
        yield _taken(fd, waiting, most_s)
    finally:
        os.close(fd)


def _opened(target: Target) -> int | None:
    name = f"perfkit-{target.st_dev.replace(':', '-') or 'tier'}.lock"
    file = _folder() / name
    flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    # In a folder that all may write the kernel refuses O_CREAT on a file of somebody else's.
    with suppress(OSError):
        return os.open(file, flags)
    old = os.umask(0)
    try:
        return os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        with suppress(OSError):
            return os.open(file, flags)
        return None
    except OSError:
        return None
    finally:
        os.umask(old)


def _folder() -> Path:
    """Not TMPDIR, of which batch systems give each job its own."""
    named, usual = os.environ.get(FOLDER), Path("/tmp")
    return Path(named) if named else usual if usual.is_dir() else Path(tempfile.gettempdir())


def _taken(fd: int, waiting: Callable[[float], None], most_s: float) -> float:
    import fcntl

    start_s = time.monotonic()
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return time.monotonic() - start_s
        waited_s = time.monotonic() - start_s
        if waited_s > most_s:
            raise NotSupportedHere(
                f"another probe has been at work here for {waited_s:.0f} s: try again later"
            )
        waiting(waited_s)
        time.sleep(LOOK_S)
