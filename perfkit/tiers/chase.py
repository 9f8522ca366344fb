"""Pointers walked one after the other, and the private memory that they lie in.

A hop of Python, or of NumPy, costs more than a hop to memory. So the walk is a few bytes of machine
code; where the system lets nobody make code, libc's `tfind` walks a tree that was laid out by hand.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from perfkit.system.native import tried

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LINE_BYTES", "CodeWalk", "TreeWalk", "Walk", "anonymous_memory", "page_size", "walker"]

LINE_BYTES = 64
UNROLLED = 16

# void *walk(void *at, long groups): sixteen dependent loads a turn, so that counting is hidden.
_X86_64 = bytes.fromhex(
    "f30f1efa"  # endbr64
    + UNROLLED * "488b3f"  # mov rdi, [rdi]
    + "48ffce"  # dec rsi
    + "75cb"  # jnz, 53 bytes back
    + "4889f8"  # mov rax, rdi
    + "c3"  # ret
)
_AARCH64 = b"".join(
    word.to_bytes(4, "little")
    for word in (
        0xD503245F,  # bti c
        *UNROLLED * (0xF9400000,),  # ldr x0, [x0]
        0xF1000421,  # subs x1, x1, #1
        0x54FFFDE1,  # b.ne, 17 instructions back
        0xD65F03C0,  # ret
    )
)
CODE = {"x86_64": _X86_64, "AMD64": _X86_64, "aarch64": _AARCH64}


class Walk(Protocol):
    """A place on a cycle of lines, laid out when it is made: `lines` are rows of eight 64-bit
    words, `order` is theirs on the cycle. `name` goes into the record.
    """

    name: ClassVar[str]
    resolves_caches: ClassVar[bool]

    def __init__(self, lines: Any, order: Any) -> None: ...

    def walk(self, hops: int) -> int:
        """Go on along the cycle for about `hops`; how many they were."""

    @classmethod
    def check(cls) -> None:
        """Raises OSError where this way does not work, before anything is trusted."""


class CodeWalk:
    """By machine code: nothing but the loads."""

    name: ClassVar[str] = "machine code"
    resolves_caches: ClassVar[bool] = True

    def __init__(self, lines: Any, order: Any) -> None:
        self._code = _checked_code()
        self._lines = lines  # what the code reads must live as long
        self._at = _chain(lines, order, word=0)

    def walk(self, hops: int) -> int:
        """As Walk has it; a multiple of sixteen."""
        groups = max(1, hops // UNROLLED)
        self._at = self._code(self._at, groups)
        return groups * UNROLLED

    @classmethod
    def check(cls) -> None:
        """As Walk has it."""
        _checked_code()


class TreeWalk:
    """By libc's search of a tree whose every node has the next as its left child. Each hop holds
    a comparison too.
    """

    name: ClassVar[str] = "libc tfind"
    resolves_caches: ClassVar[bool] = False
    _sought, _larger = ctypes.c_char_p(b"a"), ctypes.c_char_p(b"b")

    def __init__(self, lines: Any, order: Any) -> None:
        self._find, self._compare = _tfind()
        lines[:, 0] = _pointer(self._larger)
        lines[:, 2] = 0
        _chain(lines, order, word=1)
        self._lines, self._order, self._place = lines, order, 0

    def walk(self, hops: int) -> int:
        """As Walk has it; less than one round. Raises OSError if it ends elsewhere."""
        hops = min(hops, len(self._order) - 1)
        start = self._order[self._place]
        self._place = (self._place + hops) % len(self._order)
        end = self._order[self._place]
        # The search ends at the node that holds what is sought.
        self._lines[end, 0] = _pointer(self._sought)
        root = ctypes.c_void_p(self._address(start))
        found = self._find(self._sought, ctypes.byref(root), self._compare)
        self._lines[end, 0] = _pointer(self._larger)
        if found != self._address(end):
            raise OSError("libc lays out the nodes of a tree in another way")
        return hops

    def _address(self, line: int) -> int:
        return int(self._lines.ctypes.data) + LINE_BYTES * int(line)

    @classmethod
    def check(cls) -> None:
        """As Walk has it. Key, left and right child in three words: glibc, musl and the BSDs have
        it so, none promises it. Another order would meet a null and end early.
        """
        import numpy as np

        lines = np.zeros((7, LINE_BYTES // 8), np.uint64)
        walk = cls(lines, np.array([3, 0, 5, 1, 6, 2, 4]))
        for _ in range(4):
            walk.walk(5)


def walker() -> tuple[type[Walk] | None, tuple[str, ...]]:
    """The best way to walk that works here, if any, and why the better ones do not."""
    ways: tuple[type[Walk], ...] = (CodeWalk, TreeWalk)
    notes: list[str] = []
    for way in ways:
        try:
            way.check()
        except OSError as error:
            notes.append(f"no {way.name}: {error}")
        else:
            return way, tuple(notes)
    return None, tuple(notes)


def _tfind() -> tuple[Any, ctypes.c_void_p]:
    """The search and a comparison that it can call. Raises OSError."""
    try:
        libc = ctypes.CDLL(None)
        find, compare = libc.tfind, libc.strcmp
    except (AttributeError, TypeError) as error:
        raise OSError(f"the C library does not have it: {error}") from error
    find.argtypes = [ctypes.c_void_p] * 3
    find.restype = ctypes.c_void_p
    return find, ctypes.cast(compare, ctypes.c_void_p)


def _chain(lines: Any, order: Any, *, word: int) -> int:
    """Put the address of the next line into `word` of each; the address of the first."""
    start = lines.ctypes.data
    addresses = order.astype(lines.dtype)
    addresses *= LINE_BYTES
    addresses += start
    lines[order[:-1], word] = addresses[1:]
    lines[order[-1], word] = addresses[0]
    return int(addresses[0])


def _pointer(text: ctypes.c_char_p) -> int:
    return ctypes.cast(text, ctypes.c_void_p).value or 0


def _checked_code() -> Callable[[int, int], int]:
    """The code, walked over a cycle whose end is known. Raises OSError with the reason."""
    walk = tried(CODE.get(platform.machine()))
    places = [5, 2, 7, 0, 3, 6, 1, 4, 8]
    cells = (ctypes.c_uint64 * len(places))()
    start = ctypes.addressof(cells)
    for here, there in zip(places, places[1:] + places[:1], strict=True):
        cells[here] = start + 8 * there
    for groups in (1, 2, 1000):
        end = places[groups * UNROLLED % len(places)]
        if walk(start + 8 * places[0], groups) != start + 8 * end:
            raise OSError("the walk did not end where it must")
    return walk


def anonymous_memory(nbytes: int) -> mmap.mmap:
    """Private memory that asks for huge pages: a shared mapping, Python's default, gets none.
    Raises OSError or MemoryError.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def page_size(address: int, smaps: Path = Path("/proc/self/smaps")) -> str:
    """In words, of the touched part of the mapping that `address` lies in; empty if untold."""
    with suppress(OSError):
        for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps.read_text(), flags=re.MULTILINE):
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", entry)
            if span and int(span[1], 16) <= address < int(span[2], 16):
                return _page_words(entry)
    return ""


def _page_words(entry: str) -> str:
    """From one entry of smaps."""
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", entry, re.MULTILINE)}
    small = f"{kib.get('KernelPageSize', mmap.PAGESIZE // 1024)} KiB"
    share = kib.get("AnonHugePages", 0) / max(1, kib.get("Rss", 0))
    if share >= 0.9:
        return "huge pages"
    return small if share <= 0.1 else f"{100 * share:.0f} % huge pages, the rest {small}"
