"""Is the fast library in use? Matrix products against what the processor does in registers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from perfkit.measure.peak import PeakLoop, peak_loop
from perfkit.optional import loaded, require
from perfkit.records.base import Quality
from perfkit.records.doctor import Product
from perfkit.system.caches import spare_memory_bytes

__all__ = ["measure_products", "thread_gain", "threads_now", "with_threads"]

BUDGET_S = 5.0
DTYPES = ("float64", "float32")
LEAST_SAMPLES = 3
MOST_SAMPLES = 30
MOST_SPREAD = 0.2
Tick = Callable[[str, float], None]


@dataclass
class _Case:
    """One product that is measured in turns with the others."""

    library: str
    dtype: str
    threads: int
    n: int
    multiply: Callable[[], Any]
    times_s: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)


def measure_products(
    threads: int, *, budget_s: float = BUDGET_S, tick: Tick = lambda *_: None
) -> tuple[Product, ...]:
    """Products in float64 and float32 on one thread and on `threads`, with NumPy and, if something
    has imported it, torch. In turns, for about `budget_s`; thread counts are put back.
    """
    cases = list(_cases(threads, _size(threads)))
    loops = {dtype: _loop(dtype) for dtype in DTYPES}
    pause_s = _pause_s()
    start_s = time.perf_counter()
    for case in cases:
        with with_threads(case.threads):
            case.multiply()
    turn, spinning = 0, True
    while turn < LEAST_SAMPLES or time.perf_counter() - start_s < budget_s:
        if turn == MOST_SAMPLES or time.perf_counter() - start_s > 2 * budget_s:
            break
        for case in cases:
            tick(f"{case.library}, {case.dtype}", (time.perf_counter() - start_s) / budget_s)
            _sample(case, loops[case.dtype][0], pause_s if spinning else 0)
            spinning = case.threads > 1
        turn += 1
    return tuple(_product(case, loops[case.dtype][1]) for case in cases)


def _sample(case: _Case, loop: PeakLoop | None, pause_s: float) -> None:
    """What the registers do, and the product: the second, since threads wake up in the first."""
    time.sleep(pause_s)
    if loop is not None:
        case.peaks.append(loop.flops(case.threads))
    with with_threads(case.threads):
        case.multiply()
        start_s = time.perf_counter()
        case.multiply()
        case.times_s.append(time.perf_counter() - start_s)


def _pause_s() -> float:
    """Threads that have done their part spin on for the next one, and would be in the way of other
    libraries': 2^28 cycles in OpenBLAS, 200 ms in Intel's and LLVM's OpenMP (KMP_BLOCKTIME).
    """
    pools = require("threadpoolctl", "%doctor --bench").threadpool_info()
    return 0.25 if any(pool["prefix"] in ("libiomp", "libomp") for pool in pools) else 0.15


def _loop(dtype: str) -> tuple[PeakLoop | None, str]:
    """The peak's loop, or None and why there is none."""
    try:
        return peak_loop(dtype), ""
    except OSError as error:
        return None, f"no peak: no machine code: {error}"


def _size(threads: int) -> int:
    """Rows of a product that one thread needs some 20 ms for, times the threads; never more than a
    tenth of the memory that may be taken for all of it.
    """
    numpy = require("numpy", "%doctor --bench")
    small = numpy.ones((256, 256))
    with with_threads(1):
        numpy.matmul(small, small)
        start_s = time.perf_counter()
        numpy.matmul(small, small)
        flops = 2 * 256**3 / (time.perf_counter() - start_s)
    wanted_s = min(0.3, 0.02 * max(2, threads))
    n = (flops * wanted_s / 2) ** (1 / 3)
    # Three matrices of each kind, for NumPy and for torch.
    most = ((spare_memory_bytes() or 2**30) / 10 / (6 * 12)) ** 0.5
    return max(256, min(int(n), int(most), 8192) // 64 * 64)


def _cases(threads: int, n: int) -> Iterator[_Case]:
    numpy, torch = require("numpy", "%doctor --bench"), loaded("torch")
    rng = numpy.random.default_rng(0)
    for dtype in DTYPES:
        a, b, c = (rng.random((n, n), dtype) for _ in range(3))
        for count in sorted({1, threads}):
            yield _Case("NumPy", dtype, count, n, _numpy(numpy, a, b, c))
            if torch is not None:
                yield _Case("torch", dtype, count, n, _torch(torch, a, b, c))


def _numpy(numpy: Any, a: Any, b: Any, c: Any) -> Callable[[], Any]:
    return lambda: numpy.matmul(a, b, out=c)


def _torch(torch: Any, a: Any, b: Any, c: Any) -> Callable[[], Any]:
    a, b, c = map(torch.from_numpy, (a, b, c))
    return lambda: torch.mm(a, b, out=c)


def _product(case: _Case, why_no_peak: str) -> Product:
    seconds = median(case.times_s)
    spread = None
    if len(case.times_s) >= 4:
        low, _, high = quantiles(case.times_s, n=4)
        spread = (high - low) / seconds
    peak = max(case.peaks, default=None)
    reasons = [why_no_peak] if why_no_peak else []
    if peak and 2 * case.n**3 / seconds > 1.05 * peak:
        reasons.append("no peak: the library beats the register loop, so it has wider units")
        peak = None
    noisy = spread is not None and spread > MOST_SPREAD
    if noisy:
        reasons.append(f"busy machine: the samples' spread is {100 * (spread or 0):.0f} %")
    return Product(
        library=case.library,
        dtype=case.dtype,
        n=case.n,
        threads=case.threads,
        seconds=seconds,
        samples=len(case.times_s),
        peak_flops=peak,
        quality=Quality(
            status="suspect" if noisy else "valid", reasons=tuple(reasons), spread=spread
        ),
    )


def thread_gain(now: int, wanted: int, *, budget_s: float = 0.4) -> float | None:
    """How many times as fast a product of 200 by 200 is on `wanted` threads as on `now`, in turns.
    Stops after `budget_s`, and a product on far too many threads is only begun four times.
    """
    numpy = require("numpy", "%doctor")
    a = numpy.ones((200, 200))
    times_s: dict[int, list[float]] = {now: [], wanted: []}
    start_s = time.perf_counter()
    for _ in range(4):
        for count, own_s in times_s.items():
            with with_threads(count):
                before_s = time.perf_counter()
                numpy.matmul(a, a)
                own_s.append(time.perf_counter() - before_s)
        if time.perf_counter() - start_s > budget_s:
            break
    return median(times_s[now]) / median(times_s[wanted]) if now != wanted else None


# -- thread counts --------------------------------------------------------------------------------


def threads_now() -> int | None:
    """The largest number of threads that a BLAS or OpenMP library or torch uses in this process."""
    counts: Sequence[int] = [
        pool["num_threads"] for pool in require("threadpoolctl", "%doctor").threadpool_info()
    ]
    torch = loaded("torch")
    return max([*counts, *([torch.get_num_threads()] if torch is not None else [])], default=None)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """All pools at `count`, and back to what they were."""
    torch = loaded("torch")
    before = None if torch is None else torch.get_num_threads()
    # The OpenMP pools first: torch's own number is theirs as well.
    with require("threadpoolctl", "%doctor").threadpool_limits(count):
        if torch is not None:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)
