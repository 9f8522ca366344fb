"""Lesson 11: lines counted by following addresses, the latency staircase, and the questions."""

from __future__ import annotations

import math
import mmap
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from perfkit import units
from perfkit.lessons.checks import Wrong, question
from perfkit.optional import require
from perfkit.records.tiers import Plateau, TierProbe
from perfkit.render.theme import COLOURS, STYLE
from perfkit.system.caches import spare_memory_bytes
from perfkit.tiers.chase import LINE_BYTES, anonymous_memory, page_size, walker

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "KEEPS",
    "LOOPS",
    "Staircase",
    "describe",
    "fetched",
    "hop",
    "last_level",
    "level",
    "levels",
]

KEEPS = 512
"""Lines that the simulated cache keeps: 32 KiB, as many first levels have."""


def fetched(view: np.ndarray, of: np.ndarray, keeps: int = KEEPS) -> int:
    """How many lines a loop over `view`, last index fastest, brings into a cache that keeps the
    `keeps` lines used last. `of` is the array that the view shows; it begins with a line.
    """
    numpy = require("numpy", "lesson 11")
    places = numpy.array([view.ctypes.data - of.ctypes.data])
    for length, stride in zip(view.shape, view.strides, strict=True):
        places = numpy.add.outer(places, stride * numpy.arange(length))
    lines = places.ravel() // LINE_BYTES
    # The same line again at once is there for certain.
    lines = lines[numpy.append(True, lines[1:] != lines[:-1])]
    kept: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for line in lines.tolist():
        if line in kept:
            kept.move_to_end(line)
        else:
            misses += 1
            kept[line] = None
            if len(kept) > keeps:
                kept.popitem(last=False)
    return misses


def describe(array: np.ndarray) -> str:
    """Shape, strides and order of an array in a line."""
    order = {
        (True, True): "both orders",
        (True, False): "C order: the last index is next door",
        (False, True): "Fortran order: the first index is next door",
        (False, False): "not contiguous",
    }[array.flags.c_contiguous, array.flags.f_contiguous]
    return f"shape {array.shape}, strides {array.strides} bytes, {order}"


# -- the staircase -----------------------------------------------------------------------------


def level(probe: TierProbe, name: str) -> Plateau:
    """The plateau of that name, "L1" or "DRAM"; one without figures where there is none."""
    empty = Plateau(level=name, seconds=None)
    return next((plateau for plateau in probe.plateaus if plateau.level == name), empty)


def last_level(probe: TierProbe) -> Plateau:
    """The last cache before memory; one without figures where none is known."""
    cached = [plateau for plateau in probe.plateaus if plateau.level != "DRAM"]
    return cached[-1] if cached else level(probe, "none")


def levels(probe: TierProbe) -> str:
    """A line for each level: seconds of a hop, the size that was found, and the nominal one."""
    if not probe.plateaus:
        return f"no levels: {'; '.join(probe.quality.reasons) or 'nothing was measured'}"
    rows = (
        f"{p.level:6}{units.seconds(p.seconds):>9}"
        f"{_size(p, p.end_bytes):>12}{_size(p, p.nominal_bytes):>12}"
        for p in probe.plateaus
    )
    return "\n".join([f"{'level':6}{'one load':>9}{'effective':>12}{'nominal':>12}", *rows])


def _size(plateau: Plateau, nbytes: float | None) -> str:
    return "" if plateau.level == "DRAM" else units.capacity(nbytes)


@dataclass(frozen=True)
class Staircase:
    """A probe of latency as a picture: a row for each working set, bars on a logarithmic axis."""

    probe: TierProbe

    def _rows(self) -> list[tuple[str, str, float]]:
        """Working set, seconds of a hop, and the length of the bar as a part of the longest."""
        curve = [(size, hop_s) for size, hop_s in self.probe.curve if hop_s > 0]
        if not curve:
            return []
        low = math.log(min(hop_s for _, hop_s in curve) / 2)
        high = math.log(max(hop_s for _, hop_s in curve))
        return [
            (units.capacity(size), units.seconds(hop_s), (math.log(hop_s) - low) / (high - low))
            for size, hop_s in curve
        ]

    def _words(self) -> list[str]:
        quality = self.probe.quality
        said = [f"{quality.status}: {'; '.join(quality.reasons)}"] * (quality.status != "valid")
        return [*said, *self.probe.notes]

    def __repr__(self) -> str:
        rows = [
            f"{size:>9}  {hop:>8}  {'█' * max(1, round(40 * part))}"
            for size, hop, part in self._rows()
        ]
        return "\n".join([*(rows or ["no latency was measured here"]), *self._words()])

    def _repr_html_(self) -> str:
        rows = "".join(self._html_row(*row) for row in self._rows())
        rows = rows or "<tr><td>no latency was measured here</td></tr>"
        notes = "".join(
            f'<div style="{STYLE["note"]};font-size:12px">{escape(words)}</div>'
            for words in self._words()
        )
        return (
            f'<div style="{STYLE["box"]}"><table style="{STYLE["table"]};width:100%">'
            f"<tbody>{rows}</tbody></table>{notes}</div>"
        )

    @staticmethod
    def _html_row(size: str, hop: str, part: float) -> str:
        bar = f"width:{100 * part:.1f}%;height:12px;background:{COLOURS['host']}"
        return (
            f'<tr style="background:none"><td style="{STYLE["number"]}">{size}</td>'
            f'<td style="{STYLE["number"]}">{hop}</td>'
            f'<td style="{STYLE["cell"]};width:100%;vertical-align:middle">'
            f'<div style="{bar}"></div></td></tr>'
        )


def hop(nbytes: int = 2**27, *, page_local: bool, huge: bool) -> tuple[float, str] | None:
    """Seconds of a hop on a walk over `nbytes` (at most an eighth of the memory), and the pages
    that it walked on. `page_local`: all lines of one page of 4 KiB before the next page.

    None where nothing can walk, or there is no memory.
    """
    numpy = require("numpy", "lesson 11")
    way, _ = walker()
    nbytes = min(nbytes, (spare_memory_bytes() or nbytes) // 8) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        memory = anonymous_memory(nbytes)
    except (OSError, MemoryError, ValueError):
        return None
    if way is None:
        return None
    if not huge:
        with suppress(OSError, AttributeError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    lines = numpy.frombuffer(memory, numpy.uint64).reshape(-1, LINE_BYTES // 8)
    walk = way(lines, _order(len(lines), page_local))
    walk.walk(20_000)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        hops = walk.walk(20_000)
        times.append((time.perf_counter() - start) / hops)
    return min(times), page_size(lines.ctypes.data)


def _order(count: int, page_local: bool) -> Any:
    numpy = require("numpy", "lesson 11")
    random = numpy.random.default_rng(11)
    if not page_local:
        return random.permutation(count)
    per_page = 4096 // LINE_BYTES
    pages = per_page * random.permutation(count // per_page)
    inside = numpy.tile(numpy.arange(per_page), (len(pages), 1))
    return (pages[:, None] + random.permuted(inside, axis=1)).ravel()


# -- exercise 11.1: six loops ------------------------------------------------------------------


def _loop(
    shape: tuple[int, ...],
    dtype: str,
    walked: Callable[[np.ndarray], np.ndarray],
    order: str = "C",
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    def made() -> tuple[np.ndarray, np.ndarray]:
        array = require("numpy", "lesson 11").empty(shape, dtype, order=order)
        return walked(array), array

    return made


LOOPS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "x[::1]": _loop((400_000,), "float32", lambda x: x),
    "x[::8]": _loop((400_000,), "float32", lambda x: x[::8]),
    "x[::64]": _loop((400_000,), "float32", lambda x: x[::64]),
    "rows of a": _loop((600, 800), "float64", lambda a: a),
    "columns of a": _loop((600, 800), "float64", lambda a: a.T),
    "columns of f": _loop((600, 800), "float64", lambda f: f.T, order="F"),
}
"""Name of a loop, and what makes the view that it walks, last index fastest, and its array."""


@question("11.1")
def judge_lines(answer: Callable[[], Mapping[str, float]]) -> str:
    """Lines that each of six loops brings into the cache, counted by following the addresses."""
    given = dict(answer())
    if set(given) != set(LOOPS):
        raise Wrong(f"give a number for each of {', '.join(LOOPS)}")
    for name, made in LOOPS.items():
        view, of = made()
        truth = fetched(view, of)
        if given[name] != truth:
            raise Wrong(f"{name}: {given[name]:,} is not it. {_why(given[name], view, of)}")
    return "Each agrees with the simulator, which follows every address."


def _why(given: float, view: np.ndarray, of: np.ndarray) -> str:
    crowded = view.ndim == 2 and view.strides[-1] > LINE_BYTES
    distinct = fetched(view, of, keeps=of.nbytes // LINE_BYTES + 1)
    if given == distinct and crowded:
        return (
            f"You counted each line once: a column needs {view.shape[1]} lines and the cache keeps "
            f"{KEEPS}, so what the next column needs is gone by then"
        )
    if given == view.size:
        per_line = LINE_BYTES // view.itemsize
        return f"You counted elements: a line brings {per_line} of them, and neighbours are used"
    if round(given) in (view.nbytes // LINE_BYTES, -(-view.nbytes // LINE_BYTES)):
        return "You counted only the bytes that are used: a line comes whole"
    return "How many bytes lie between two elements that follow each other, and are there repeats?"


# -- exercise 11.2: pieces of an array ---------------------------------------------------------


@question("11.2")
def judge_pieces(pieces: Callable[[Any], Iterable[Any]]) -> str:
    """Values first; then that nothing was copied; then that each piece lies in one stretch."""
    numpy = require("numpy", "lesson 11")
    c_order = numpy.arange(256 * 384, dtype=float).reshape(256, 384)
    for name, array in (
        ("C", c_order),
        ("Fortran", numpy.asfortranarray(c_order)),
    ):
        copied, found = _allocated(lambda array=array: list(pieces(array)))  # type: ignore[misc]
        found = [numpy.asarray(piece) for piece in found]
        values = numpy.concatenate([piece.ravel() for piece in found]) if found else []
        if not numpy.array_equal(numpy.sort(values), c_order.ravel()):
            raise Wrong(
                f"in {name} order the pieces do not hold each of the {array.size:,} elements once"
            )
        copied = max(copied, sum(p.nbytes for p in found if not numpy.may_share_memory(p, array)))
        if copied > array.nbytes // 4:
            raise Wrong(
                f"in {name} order {copied:,} bytes were allocated, so there is a copy: the walk "
                "against the grain is inside it now"
            )
        far = [piece for piece in found if not piece.flags.c_contiguous]
        if far:
            raise Wrong(
                f"in {name} order a piece has strides of {far[0].strides} bytes for elements of "
                f"{array.itemsize}: each element lies on another line than the one before"
            )
    return "Every piece lies in one stretch, in both orders, and no bytes were copied."


def _allocated(fn: Callable[[], list[Any]]) -> tuple[int, list[Any]]:
    """What `fn` had allocated at most while it ran, in bytes, and its result."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = fn()
        _, peak = tracemalloc.get_traced_memory()
        return max(0, peak - before), result
    finally:
        if not was_tracing:
            tracemalloc.stop()
