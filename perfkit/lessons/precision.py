"""Lesson 21: products of several types in turns, mantissas cut short, switches, the guard lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from perfkit import units
from perfkit.lessons import sharing as _sharing  # noqa: F401  it registers exercise 21.2
from perfkit.lessons.bets import Line
from perfkit.lessons.checks import Wrong, question
from perfkit.lessons.traces import Table
from perfkit.optional import loaded, require
from perfkit.render import grid
from perfkit.render.theme import MASK, is_stable
from perfkit.system.frameworks import read_frameworks

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Turns", "error", "guard", "in_turns", "on_gpu", "rounded", "switches"]

MANTISSA = 23
"""Bits of a float32 behind the point."""

# -- products in turns ---------------------------------------------------------------------------


class Turns(dict[str, float]):
    """Seconds of each function, shown beside the first."""

    def _grid(self) -> grid.Grid:
        first = next(iter(self.values()))
        rows = [
            (name, *((MASK,) * 2 if is_stable() else (units.seconds(s), units.ratio(s / first))))
            for name, s in self.items()
        ]
        return grid.Grid("in turns, one thread", ("what", " one call", " to the first"), rows)

    def __repr__(self) -> str:
        return grid.as_text(self._grid())

    def _repr_html_(self) -> str:
        return grid.as_html(self._grid())


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int = 15) -> Turns:
    """Seconds of a call, the median of so many rounds in which each has a turn, on one thread. The
    first call of each is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    with _one_thread():
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return Turns({name: median(seconds) for name, seconds in times.items()})


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch has a count of its own beside what threadpoolctl sets."""
    torch = loaded("torch")
    before = torch.get_num_threads() if torch else 0
    try:
        with require("threadpoolctl", "lesson 21").threadpool_limits(1):
            if torch:
                torch.set_num_threads(1)
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


def error(product: np.ndarray, exact: np.ndarray) -> float:
    """Norm of the difference over the norm of the exact product."""
    import numpy as np

    return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))


# -- exercise 21.1: fewer bits -------------------------------------------------------------------


def rounded(x: np.ndarray, bits: int, *, ties: str = "even") -> np.ndarray:
    """float32 values on so many bits of mantissa, by whole numbers: to the nearest, half way to the
    even one, as IEEE 754 has it. `ties`: "away" from zero instead, or "cut", never up.
    """
    import numpy as np

    drop = MANTISSA - bits
    if drop == 0:
        return x.copy()
    whole = x.view(np.uint32).astype(np.int64)
    half, last = 1 << drop - 1, whole >> drop & 1
    up: Any = {"even": last + half - 1, "away": half, "cut": 0}[ties]
    short = (whole + up >> drop << drop).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), short, x)


def _values() -> np.ndarray:
    """10,000 float32 of all sizes but the smallest and of both signs, ties, and what is special."""
    import numpy as np

    random = np.random.default_rng(21)
    signs, exponents = random.integers(0, 2, 10_000), random.integers(1, 254, 10_000)
    whole = signs << 31 | exponents << MANTISSA | random.integers(0, 1 << MANTISSA, 10_000)
    ties = [1 + (2 * i + 1) * 2.0 ** -(bits + 1) for bits in (3, 7, 10) for i in range(8)]
    over = [2 - 2.0**-MANTISSA, 0.0, -0.0, float(np.finfo(np.float32).max), np.inf, -np.inf, np.nan]
    rest = np.array([*ties, *(-tie for tie in ties), *over], np.float32)
    return np.concatenate([whole.astype(np.uint32).view(np.float32), rest])


@question("21.1")
def judge_round_mantissa(round_mantissa: Callable[[Any, int], Any]) -> str:
    """Bit for bit on 10,000 values and on ties, with 7, 10, 3 and all 23 bits."""
    import numpy as np

    for bits in (7, 10, 3, MANTISSA):
        x = _values()
        before = x.copy()
        with np.errstate(all="ignore"):
            given = round_mantissa(x, bits)
        if not (x.view(np.uint32) == before.view(np.uint32)).all():
            raise Wrong("your function changed x: its caller still needs it. Give a new array")
        _compare(x, given, bits)
    return "Bit for bit: with 7 bits this is bfloat16, with 10 the factors of TF32"


def _compare(x: np.ndarray, given: Any, bits: int) -> None:
    import numpy as np

    if getattr(given, "dtype", None) != np.float32 or given.shape != x.shape:
        kind = f"{given.dtype} {given.shape}" if hasattr(given, "dtype") else type(given).__name__
        raise Wrong(f"you gave {kind}: give float32 of the shape of x, {x.shape}")
    right = rounded(x, bits)
    off = ~_same(given, right)
    if not off.any():
        return
    place = int(np.flatnonzero(off)[0])
    at = f"bits={bits}: {off.sum():,} of {len(x):,} are off, first {x[place]!r}: {right[place]!r}"
    raise Wrong(f"{at}, you say {given[place]!r}. {_why(x, given, bits)}".replace("np.float32", ""))


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Bit for bit; any NaN is as good as another."""
    import numpy as np

    same: np.ndarray = one.view(np.uint32) == other.view(np.uint32)
    same |= np.isnan(one) & np.isnan(other)
    return same


def _why(x: np.ndarray, given: np.ndarray, bits: int) -> str:
    import numpy as np

    usual = np.isfinite(x)
    if _same(given, rounded(x, bits, ties="cut"))[usual].all():
        return "That cuts bits off: errors are twice as large, and all to one side"
    if _same(given, rounded(x, bits, ties="away"))[usual].all():
        return "Half way counts as up: to the even neighbour, else sums drift"
    if _same(given, rounded(x, bits))[usual].all():
        return "Infinity and NaN stay what they are"
    if not given[usual & (abs(x) < 1e-12)].any():
        return "Decimals are no bits: the step between neighbours grows with the number"
    return "Which multiple of the last bit is nearest? The last bit depends on the exponent"


# -- what is switched on here --------------------------------------------------------------------


def switches() -> Table:
    """What decides on the bits of float32 products, of the packages in this process."""
    words = ("fp32_precision", "matmul_precision", "tf32", "TF32", "tensor_float_32", "x64")
    found = [each for each in read_frameworks()[1] if any(word in each.name for word in words)]
    rows = [(each.name, each.value, each.means) for each in found]
    note = [] if rows else ["no package with such a switch is loaded"]
    return Table(grid.Grid("switches", ("switch", "now", "means"), rows, note, most=60))


def on_gpu(a: np.ndarray, b: np.ndarray, exact: np.ndarray) -> Table | Line:
    """Torch's float32 product on a CUDA GPU without and with TF32: time and error. The switch is as
    before afterwards. A line where there is no such GPU.
    """
    torch = require("torch", "lesson 21")
    if not torch.cuda.is_available():
        return Line("no GPU that torch can use here: the emulation above stands alone")
    import perfkit

    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    matmul, rows = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision
    try:
        for precision in ("ieee", "tf32"):
            matmul.fp32_precision = precision
            timing = perfkit.time_call(lambda: x @ y, repeat=5)
            wrong = error((x @ y).cpu().numpy(), exact)
            rows.append((precision, units.seconds(timing.device_busy_s), f"{wrong:.1e}"))
    finally:
        matmul.fp32_precision = before
    return Table(grid.Grid("on the GPU", ("float32 products in", " device time", " error"), rows))


# -- for the learner's own script ----------------------------------------------------------------


def guard(**arrays: np.ndarray) -> str:
    """Lines for the head of a script: they fail where library, threads or types are not as here."""
    pools = {
        pool["internal_api"]: pool["num_threads"]
        for pool in require("threadpoolctl", "lesson 21").threadpool_info()
        if pool["user_api"] == "blas"
    }
    read = '{p["internal_api"]: p["num_threads"] for p in pools if p["user_api"] == "blas"}'
    lines = [
        "from threadpoolctl import threadpool_info",
        "pools = threadpool_info()",
        f"threads = {read}",
        f"assert threads == {pools}, threads",
        *(f'assert {name}.dtype == "{array.dtype}"' for name, array in arrays.items()),
    ]
    return "\n".join(lines)
