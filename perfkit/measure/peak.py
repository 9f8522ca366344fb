"""The most operations a second that the processor does: multiply-adds on registers alone.

A data sheet's peak holds for a clock that a shared or warm machine does not run at. So the peak is
measured, beside what is held against it.
"""

from __future__ import annotations

import ctypes
import platform
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from perfkit.system.files import read
from perfkit.system.native import tried

__all__ = ["PeakLoop", "peak_loop"]

BURST_S = 0.01
_FACTORS = (1.5, 2.0)
_CHECKED_TURNS = 1000


class PeakLoop(NamedTuple):
    """A loop of independent multiply-adds. `operations`: of one turn; `vectors`: their kind."""

    vectors: str
    operations: int
    run: Callable[[int], float]

    def flops(self, threads: int, seconds: float = BURST_S) -> float:
        """Operations a second of so many threads at once, each for about `seconds`."""
        turns = self._turns(seconds)
        if threads == 1:
            return self._rate(turns)
        with ThreadPoolExecutor(threads, "peak") as team:
            return sum(team.map(self._rate, [turns] * threads))

    def _turns(self, seconds: float) -> int:
        turns = 1000
        while (rate := self._rate(turns)) * seconds / self.operations > 4 * turns:
            turns *= 4
        return max(1, int(rate * seconds / self.operations))

    def _rate(self, turns: int) -> float:
        start_s = time.perf_counter()
        self.run(turns)
        return turns * self.operations / (time.perf_counter() - start_s)


@lru_cache(maxsize=2)
def peak_loop(dtype: str) -> PeakLoop:
    """The loop for "float64" or "float32" with the widest vectors of this processor.
    Raises OSError where none is written, or where the system lets nobody run one.
    """
    double = dtype == "float64"
    name, width_bytes, accumulators, code = _code(double, _flags())
    function = tried(code)
    kind = ctypes.c_double if double else ctypes.c_float
    cells = (kind * 3)(*_FACTORS, 0.0)

    def run(turns: int) -> float:
        mine = type(cells)(*cells)
        function(ctypes.addressof(mine), turns)
        return float(mine[2])

    expected = accumulators * _CHECKED_TURNS * _FACTORS[0] * _FACTORS[1]
    if run(_CHECKED_TURNS) != expected:
        raise OSError("the loop did not reckon what it must")
    lanes = width_bytes // ctypes.sizeof(kind)
    return PeakLoop(name, 2 * lanes * accumulators, run)


def _flags() -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _code(double: bool, flags: set[str]) -> tuple[str, int, int, bytes | None]:
    """Name of the vectors, their bytes, how many sums are kept, and the code."""
    if platform.machine() == "aarch64":
        return "NEON", 16, len(_ARM_SUMS), b"".join(w.to_bytes(4, "little") for w in _arm(double))
    if "avx512f" in flags:
        return "AVX-512", 64, _SUMS, _x86(double, wide=True)
    if {"avx2", "fma"} <= flags:
        return "AVX2", 32, _SUMS, _x86(double, wide=False)
    return "", 0, 0, None


# -- x86-64: registers 14 and 15 hold the factors, 0 to 11 the sums --------------------------------

_SUMS = 12
"""Two pipes times a latency of four or five need ten."""


def _x86(double: bool, *, wide: bool) -> bytes:
    body = b"".join(_three(0xB8, 2, reg, 14, 15, double, wide) for reg in range(_SUMS))
    back = len(body) + 3 + 6
    adds = b"".join(_three(0x58, 1, 0, 0, reg, double, wide) for reg in range(1, _SUMS))
    if wide:
        size = "fd" if double else "7d"
        opcode = "19" if double else "18"
        loads = f"6272{size}48{opcode}37 6272{size}48{opcode}7f01"  # vbroadcast zmm14, zmm15
    else:
        opcode, next_ = ("19", "08") if double else ("18", "04")
        loads = f"c4627d{opcode}37 c4627d{opcode}7f{next_}"  # vbroadcast ymm14, ymm15
    store = "c5fb114710" if double else "c5fa114708"  # vmovs [rdi + 2 numbers], xmm0
    return (
        bytes.fromhex("f30f1efa c5fc77" + loads)  # endbr64; vzeroall; vbroadcast
        + body
        + bytes.fromhex("48ffce 0f85")  # dec rsi; jnz
        + (-back).to_bytes(4, "little", signed=True)
        + adds
        + bytes.fromhex(store + "31c0 c5f877 c3")  # xor eax, eax; vzeroupper; ret
    )


def _three(
    opcode: int, opmap: int, to: int, first: int, second: int, double: bool, wide: bool
) -> bytes:
    """An instruction of three vector registers below 16, packed, in VEX or EVEX form."""
    high = ((to < 8) << 7) | 1 << 6 | ((second < 8) << 5) | opmap
    # The add has its width in the prefix alone, but in EVEX form in W as well.
    packed_double = double and (opmap == 2 or wide)
    prefix = 1 if double or opmap == 2 else 0
    middle = packed_double << 7 | (~first & 15) << 3 | prefix
    last = [opcode, 0xC0 | (to & 7) << 3 | (second & 7)]
    if wide:
        return bytes([0x62, high | 1 << 4, middle | 1 << 2, 0x48, *last])
    return bytes([0xC4, high, middle | 1 << 2, *last])


# -- aarch64: registers 30 and 31 hold the factors; 8 to 15 belong to the caller -------------------

_ARM_SUMS = (*range(8), *range(16, 24))


def _arm(double: bool) -> Iterator[int]:
    size = 1 << 22 if double else 0
    yield 0xD503245F  # bti c
    for reg in (30, 31):
        yield 0x4DDFC000 | (3 if double else 2) << 10 | reg  # ld1r {reg}, [x0], #8 or #4
    yield from (0x6F00E400 | reg for reg in _ARM_SUMS)  # movi reg, #0
    yield from (0x4E20CC00 | size | 31 << 16 | 30 << 5 | reg for reg in _ARM_SUMS)  # fmla
    yield 0xF1000421  # subs x1, x1, #1
    yield 0x54000001 | (-(len(_ARM_SUMS) + 1) & 0x7FFFF) << 5  # b.ne
    yield from (0x4E20D400 | size | reg << 16 for reg in _ARM_SUMS[1:])  # fadd v0, v0, reg
    yield 0xFD000000 if double else 0xBD000000  # str d0 or s0, [x0]
    yield 0xD65F03C0  # ret
