"""A few bytes of machine code as a function, for what Python and NumPy are too slow to ask.

Run as a program it tries one piece of code and nothing else, so that a fault ends only a child.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["tried"]

CHILD_TIMEOUT_S = 10.0
TURNS = 100


@lru_cache(maxsize=16)
def tried(code: bytes | None) -> Callable[[int, int], int]:
    """The function `long f(void *address, long turns)` that `code` is, run by a child process
    first: a wrong byte, or a system that kills for it, must not end this process. Whether it does
    what it should is for the caller to check. Raises OSError with the reason.
    """
    if code is None or sys.maxsize < 2**32:
        raise OSError(f"none is written for {platform.machine()}")
    command = [sys.executable, "-I", "-S", __file__, code.hex()]
    try:
        child = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=CHILD_TIMEOUT_S
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"its trial did not end: {error}") from error
    if child.returncode:
        words = child.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(words[-1] if words else f"its trial ended with {child.returncode}")
    return _load(code)


def _load(code: bytes) -> Callable[[int, int], int]:
    """Code in pages that are never writable and executable at once."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel brings the instruction cache up to date when the page becomes executable.
    how = mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), how):
        raise OSError(ctypes.get_errno(), "the system refuses executable memory")
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)(address)
    function.memory = memory  # type: ignore[attr-defined]  # lives as long as the function
    return function


def _try(code: bytes) -> None:
    """Run it on a page whose words all point to its beginning."""
    page = (ctypes.c_uint64 * (mmap.PAGESIZE // 8))()
    page[:] = [ctypes.addressof(page)] * len(page)
    _load(code)(ctypes.addressof(page), TURNS)


if __name__ == "__main__":
    _try(bytes.fromhex(sys.argv[1]))
