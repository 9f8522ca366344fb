"""Lesson 41: pictures as many files and as one, read cold and warm, and the lesson's questions."""

from __future__ import annotations

import io
import itertools
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit import units
from perfkit.lessons.checks import Wrong, question
from perfkit.measure.io import time_io
from perfkit.optional import require
from perfkit.records.tiers import IoTime
from perfkit.tiers.cache import drop
from perfkit.tiers.files import check_path
from perfkit.tiers.scratch import plain_errors, scratch_folder, small_files_cap, sweep

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CELLS",
    "PATTERNS",
    "SHAPE",
    "Cell",
    "DataSet",
    "Measured",
    "Run",
    "band",
    "chunks_read",
    "middle",
    "survey",
    "table",
    "targets",
    "touched_over_needed",
]

SIDE = 128
ITEM_BYTES = SIDE * SIDE
KINDS = ("raw", "JPEG")


class Cell(NamedTuple):
    """What is read (`kind`: raw or JPEG), how (`order`: in order or random), and `start`: cold or
    warm.
    """

    kind: str
    order: str
    start: str

    def __str__(self) -> str:
        return f"{self.start}, {self.kind}, {self.order}"


CELLS = (
    Cell("raw", "in order", "cold"),
    Cell("raw", "random", "cold"),
    Cell("raw", "in order", "warm"),
    Cell("raw", "random", "warm"),
    Cell("JPEG", "random", "cold"),
    Cell("JPEG", "random", "warm"),
)


class Measured(NamedTuple):
    """A cell with the fastest run over the files, and over the one file."""

    cell: Cell
    items: int
    many: IoTime
    one: IoTime

    @property
    def gain(self) -> float:
        """How many times as fast the one file is."""
        return self.many.wall_s / self.one.wall_s


class DataSet:
    """1,000 pictures of 16 KiB (fewer where inodes are scarce) in a scratch folder below `folder`:
    as files and as one HDF5 file, raw and as JPEG. `close` removes all of it, as does the end of
    Python.

    Raises UsageError for a folder that cannot be written, NotSupportedHere where it is full.
    """

    def __init__(self, folder: str | Path = ".", items: int = 1000) -> None:
        target = check_path(folder)
        sweep(target.path)
        stack = ExitStack()
        self.close = weakref.finalize(self, stack.close)
        self.folder = stack.enter_context(scratch_folder(target.path))
        self.items = min(items, max(64, small_files_cap(target.path)))
        self.in_memory = target.memory_backed
        self.where = f"{self.items:,} pictures on {target.fstype} ({target.source})"
        if self.in_memory:
            self.where += "; it lies in memory, so nothing here is ever cold"
        with plain_errors(target.path):
            self._write()

    def _write(self) -> None:
        h5py = require("h5py", "lesson 41")
        numpy = require("numpy", "lesson 41")
        pictures = _pictures(self.items)
        jpegs = [_jpeg(picture) for picture in pictures]
        for kind, contents in zip(KINDS, ([*map(bytes, pictures)], jpegs), strict=True):
            (self.folder / kind).mkdir()
            for number, content in enumerate(contents):
                self._file(kind, number).write_bytes(content)
        with h5py.File(self._one("raw"), "w") as file:
            file["pictures"] = pictures.reshape(self.items, ITEM_BYTES)
        with h5py.File(self._one("JPEG"), "w") as file:
            kind = h5py.vlen_dtype(numpy.uint8)
            made = file.create_dataset("pictures", (self.items,), dtype=kind)
            for number, jpeg in enumerate(jpegs):
                made[number] = numpy.frombuffer(jpeg, numpy.uint8)
        self.jpeg_bytes = sum(map(len, jpegs))

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / kind / f"{number:04}"

    def _one(self, kind: str) -> Path:
        return self.folder / f"{kind}.h5"

    def numbers(self, order: str) -> list[int]:
        """The pictures' numbers, in order or in a random order that is always the same."""
        if order == "in order":
            return list(range(self.items))
        random = require("numpy", "lesson 41").random.default_rng(41)
        return [int(number) for number in random.permutation(self.items)]

    def read_many(self, kind: str, numbers: Iterable[int]) -> int:
        """Read pictures from their files, one after another; how many values they had."""
        return sum(_decoded(kind, _read(self._file(kind, number))) for number in numbers)

    def read_one(self, kind: str, numbers: Iterable[int]) -> int:
        """The same from the one file, which is opened once."""
        with self._opened(self._one(kind)) as file:
            pictures = file["pictures"]
            return sum(_decoded(kind, pictures[number]) for number in numbers)

    def cool(self, *kinds: str) -> None:
        """Take the pictures out of the page cache, all or those of some kinds. Names and inodes
        stay warm.
        """
        for kind in kinds or KINDS:
            for path in (self._one(kind), *(self._file(kind, n) for n in range(self.items))):
                _drop(path)

    def measure(self, cell: Cell, rounds: int = 3) -> Measured:
        """Both ways in turn, each from the start that the cell wants; the fastest of each."""
        numbers = self.numbers(cell.order)
        ways = (self.read_many, self.read_one)
        runs: list[list[IoTime]] = [[], []]
        for _ in range(rounds):
            for way, found in zip(ways, runs, strict=True):
                if cell.start == "cold":
                    self.cool(cell.kind)
                else:
                    way(cell.kind, numbers)
                found.append(time_io(lambda way=way: way(cell.kind, numbers)))  # type: ignore[misc]
        many, one = (min(found, key=lambda run: run.wall_s) for found in runs)
        return Measured(cell, self.items, many, one)

    def rechunk(self, rows: int) -> Path:
        """The raw pictures once more, in an HDF5 file with chunks of `rows` pictures, each with a
        checksum: so HDF5 must read it whole, as it must when it is compressed.
        """
        path = self.folder / f"chunks-{rows}.h5"
        with self._opened(self._one("raw")) as source, self._opened(path, "w") as file:
            pictures = source["pictures"][:]
            file.create_dataset(
                "pictures", data=pictures, chunks=(rows, ITEM_BYTES), fletcher32=True
            )
        return path

    def read_chunked(self, path: Path, numbers: Iterable[int]) -> int:
        """Read pictures one after another, without HDF5's own cache of chunks."""
        with self._opened(path, rdcc_nbytes=0) as file:
            pictures = file["pictures"]
            return sum(_decoded("raw", pictures[number]) for number in numbers)

    @staticmethod
    def _opened(path: Path, mode: str = "r", **options: int) -> Any:
        # Locks are refused on some network file systems, and nobody else knows this file.
        return require("h5py", "lesson 41").File(path, mode, locking="best-effort", **options)

    def run(self, nbytes: int, count: int) -> Run:
        """Read `count` files of `nbytes` each, cold; they are written when first asked for."""
        folder = self.folder / f"{count}-of-{nbytes}"
        paths = [folder / f"{number:04}" for number in range(count)]
        if not folder.exists():
            folder.mkdir()
            for path in paths:
                path.write_bytes(os.urandom(nbytes))
        return _cold_run(paths)

    def epoch(self) -> Run:
        """Read all raw pictures from their files, cold."""
        return _cold_run([self._file("raw", number) for number in self.numbers("in order")])


def _pictures(items: int) -> np.ndarray:
    """Waves with a little noise: what JPEG can shrink, but not to nothing."""
    numpy = require("numpy", "lesson 41")
    random = numpy.random.default_rng(41)
    pictures: np.ndarray = numpy.empty((items, SIDE, SIDE), "uint8")
    line = numpy.arange(SIDE) / SIDE
    for picture in pictures:
        across, down = random.uniform(3, 20, (2, 1))
        waves = numpy.sin(across * line)[:, None] + numpy.sin(down * line)[None, :]
        picture[:] = 128 + 50 * waves + random.normal(0, 5, (SIDE, SIDE))
    return pictures


def _jpeg(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    require("PIL.Image", "lesson 41").fromarray(picture).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _decoded(kind: str, content: Any) -> int:
    numpy = require("numpy", "lesson 41")
    if kind == "JPEG":
        opened = require("PIL.Image", "lesson 41").open(io.BytesIO(content))
        return int(numpy.asarray(opened).size)
    return int(numpy.frombuffer(content, numpy.uint8).size)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        drop(fd)
    finally:
        os.close(fd)


def _cold_run(paths: Sequence[Path]) -> Run:
    for path in paths:
        _drop(path)
    start_s = time.perf_counter()
    nbytes = sum(len(_read(path)) for path in paths)
    return Run(len(paths), nbytes, time.perf_counter() - start_s)


def table(measured: Iterable[Measured]) -> str:
    """Items per second both ways, what a device gave of it, and how many times as fast one is."""
    head = (
        f"{'':21}{'files/s':>9}{'off disk':>11}{'one file/s':>13}{'off disk':>11}{'one : many':>13}"
    )
    rows = (
        f"{m.cell!s:21}{m.items / m.many.wall_s:>9,.0f}{_off_device(m.many):>11}"
        f"{m.items / m.one.wall_s:>13,.0f}{_off_device(m.one):>11}{m.gain:>13.2f}"
        for m in measured
    )
    return "\n".join([head, *rows])


def _off_device(run: IoTime) -> str:
    nbytes = run.read_device_bytes
    return units.NOT_AVAILABLE if nbytes is None else f"{nbytes / 1e6:.1f} MB"


def survey(folder: str | Path, most: int = 100_000) -> tuple[int, float]:
    """How many files lie in `folder` and below (counted up to `most`), and their mean bytes."""
    sizes = list(itertools.islice(_sizes(folder), most))
    return len(sizes), sum(sizes) / max(1, len(sizes))


def _sizes(folder: str | Path) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file():
                yield path.stat().st_size


def targets(start: int, nbytes: int, *, stripe_bytes: int, count: int) -> set[int]:
    """The storage targets, from 0, that a read of `nbytes` from byte `start` of a file meets."""
    first, last = start // stripe_bytes, (start + nbytes - 1) // stripe_bytes
    return {stripe % count for stripe in range(first, min(last, first + count - 1) + 1)}


# -- exercise 41.1: two runs, and ten times as many files --------------------------------------


class Run(NamedTuple):
    """A run over files: how many were opened, bytes read, seconds."""

    opens: int
    nbytes: int
    seconds: float


Extrapolate = Callable[[Run, Run, int, int], float]
TRIALS = (
    # 120 µs an open and 500 MB/s; then 2 ms and 1 GB/s.
    (Run(1000, 4_000_000, 0.128), Run(1000, 64_000_000, 0.248), Run(10_000, 160_000_000, 1.52)),
    (Run(100, 10_000_000, 0.21), Run(50, 1_000_000_000, 1.1), Run(1000, 300_000_000, 2.3)),
)


def middle(runs: Iterable[Run]) -> list[Run]:
    """The half of the runs in the middle, by seconds: what neighbours did to the others is left
    out.
    """
    ordered = sorted(runs, key=lambda run: run.seconds)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def band(
    extrapolate: Extrapolate,
    firsts: Sequence[Run],
    seconds: Sequence[Run],
    *,
    opens: int,
    nbytes: int,
) -> tuple[float, float]:
    """The lowest and the highest time that any two of these runs give."""
    found = [extrapolate(a, b, opens, nbytes) for a in firsts for b in seconds]
    return min(found), max(found)


@question("41.1")
def judge_fit(extrapolate: Extrapolate) -> str:
    """On given numbers: two unknowns from two runs, then another count of files and bytes."""
    for first, second, large in TRIALS:
        got = extrapolate(first, second, large.opens, large.nbytes)
        if not math.isclose(got, large.seconds, rel_tol=1e-6):
            raise Wrong(
                f"from {_said(first)} and {_said(second)} you get {got:.3f} s for {large.opens:,} "
                f"files with {large.nbytes / 1e6:.0f} MB; it is {large.seconds:.3f} s"
                f"{_slip(got, first, second, large)}"
            )
    return "Two runs gave both unknowns: what an open costs, and the bandwidth."


def _said(run: Run) -> str:
    return f"{run.opens:,} files, {run.nbytes / 1e6:.0f} MB in {run.seconds:g} s"


def _slip(got: float, first: Run, second: Run, large: Run) -> str:
    both = Run(*map(sum, zip(first, second, strict=True)))  # type: ignore[arg-type]
    runs = (first, second, both)
    per_file = [run.seconds / run.opens for run in runs]
    per_byte = [run.seconds / run.nbytes for run in runs]
    per_file.append((per_file[0] + per_file[1]) / 2)
    per_byte.append((per_byte[0] + per_byte[1]) / 2)
    if any(math.isclose(got, large.opens * each, rel_tol=1e-6) for each in per_file):
        return ". You divided by the file count: a larger file takes longer, so that is no constant"
    if any(math.isclose(got, large.nbytes * each, rel_tol=1e-6) for each in per_byte):
        return ". You divided by the bytes: a small file still costs an open"
    return ""


# -- exercise 41.2: a chunk for each pattern ---------------------------------------------------

SHAPE = (10_000, 4_096)
VALUE_BYTES = 4
PATTERNS = {"rows": (1, 4_096), "clips": (8, 4_096), "columns": (10_000, 1)}
"""What is read at a time, in rows and columns; it begins at a multiple of its own size."""


def chunks_read(chunk: Sequence[int], pattern: str) -> Fraction:
    """How many chunks one item of the pattern lies in; the mean over all items."""
    item = PATTERNS[pattern]
    mean = Fraction(1)
    for length, width, size in zip(SHAPE, item, chunk, strict=True):
        starts = range(0, length, width)
        met = sum((start + width - 1) // size - start // size + 1 for start in starts)
        mean *= Fraction(met, len(starts))
    return mean


def touched_over_needed(chunk: Sequence[int], pattern: str) -> Fraction:
    """Bytes that HDF5 reads over bytes that are asked for: a chunk is read whole."""
    return chunks_read(chunk, pattern) * math.prod(chunk) / math.prod(PATTERNS[pattern])


@question("41.2")
def judge_chunks(chunks: Callable[[], Mapping[str, Sequence[int]]]) -> str:
    """For each pattern a chunk of which no byte is read in vain, in a single read."""
    given = dict(chunks())
    if set(given) != set(PATTERNS):
        raise Wrong(f"give a chunk for each of {', '.join(PATTERNS)}")
    for pattern, chunk in given.items():
        shape = tuple(int(size) for size in chunk)
        if len(shape) != 2 or not all(
            1 <= size <= most for size, most in zip(shape, SHAPE, strict=True)
        ):
            raise Wrong(f"{pattern}: {shape} is no chunk of a data set with the shape {SHAPE}")
        touched, reads = touched_over_needed(shape, pattern), chunks_read(shape, pattern)
        if touched != 1:
            raise Wrong(
                f"{pattern}: with chunks of {shape} {float(touched):.4g} bytes are read for each "
                "byte that is needed, since a chunk is read whole"
            )
        if reads != 1:
            raise Wrong(
                f"{pattern}: no byte is read in vain, but each item lies in {float(reads):.4g} "
                f"chunks of {shape}: so many reads where one would do"
            )
    sizes = ", ".join(
        f"{name} {units.capacity(VALUE_BYTES * math.prod(given[name]))}" for name in PATTERNS
    )
    return f"One read an item, and no byte in vain. The chunks: {sizes}."
