"""Lesson 32: figures of three public traces, a training loop to be read from its trace, and the
lesson's questions.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit import units
from perfkit.errors import UsageError
from perfkit.intervals import covered_s
from perfkit.lessons.checks import Wrong, question
from perfkit.measure.annotations import annotate, step
from perfkit.optional import require
from perfkit.render import grid

if TYPE_CHECKING:
    from perfkit.timeline.trace import Timeline

__all__ = [
    "INPUT",
    "PUBLIC",
    "REPAIRS",
    "SOURCE",
    "STEPS",
    "Figures",
    "Table",
    "Training",
    "keep",
    "seconds_in",
    "table",
    "tick_by_tick",
]

# -- three traces of other people --------------------------------------------------------------

SOURCE = (
    "public traces of facebookresearch/HolisticTraceAnalysis (MIT licence), each from its first "
    "to its last piece of work on the device"
)


class Figures(NamedTuple):
    """What one device did in one trace: pieces of work, seconds of span, busy and computing."""

    trace: str
    device: str
    pieces: int
    span_s: float
    busy_s: float
    compute_s: float


PUBLIC = (
    Figures("alexnet", "A100", 98, 12.920_244, 0.066_141, 0.010_630),
    Figures("training-a100", "A100", 9_450, 0.464_594, 0.388_587, 0.281_336),
    Figures("training-v100", "V100", 6_095, 0.480_029, 0.472_454, 0.468_154),
)
"""Counted in whole nanoseconds as the union over all streams of the device."""


class Table:
    """A table that a notebook shows as HTML, with bars, and a terminal as text."""

    def __init__(self, rows: grid.Grid) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        return grid.as_text(self._rows)

    def _repr_html_(self) -> str:
        return grid.as_html(self._rows)


def table(figures: Iterable[Figures]) -> Table:
    """Shares of the span: computing; copies and collectives alone; idle."""
    return Table(
        grid.Grid(
            "where the time of the device went",
            ("trace", "device", " span", " busy", "computing", "copies, collectives", "idle"),
            [_row(one) for one in figures],
            [SOURCE],
        )
    )


def _row(one: Figures) -> list[grid.Cell | str]:
    shares = (one.compute_s, one.busy_s - one.compute_s, one.span_s - one.busy_s)
    head = (one.trace, one.device, units.seconds(one.span_s), units.share(one.busy_s / one.span_s))
    bars = (each / one.span_s for each in shares)
    return [*head, *(grid.Cell(units.share(bar), share=bar) for bar in bars)]


# -- exercise 32.1: busy, computing, idle ------------------------------------------------------

Work = tuple[float, float, str]
"""Start, end and kind: "kernel", "copy" or "collective"."""
TRIALS: tuple[tuple[str, tuple[Work, ...]], ...] = (
    ("one stream", ((0, 30, "kernel"), (50, 100, "copy"))),
    ("two kernels at once", ((0, 60, "kernel"), (40, 90, "kernel"), (95, 100, "kernel"))),
    ("a copy behind a kernel", ((0, 70, "kernel"), (20, 50, "copy"), (80, 100, "copy"))),
    ("a kernel during a copy", ((0, 80, "copy"), (20, 50, "kernel"), (90, 100, "kernel"))),
    (
        "short work inside long work",
        ((0, 80, "kernel"), (10, 20, "copy"), (30, 40, "kernel"), (60, 90, "collective")),
    ),
    ("a collective alone", ((0, 40, "collective"), (40, 60, "kernel"), (70, 90, "collective"))),
    ("out of order, and not from 0", ((160, 190, "copy"), (100, 140, "kernel"))),
    ("fractions of a second", ((0.25, 0.75, "kernel"), (0.5, 1.125, "copy"), (1.5, 2.0, "kernel"))),
)


def tick_by_tick(intervals: Iterable[Work]) -> tuple[int, int, int]:
    """Busy, computing and idle time of a device, for times in whole ticks: slow and obvious."""
    rows = [(int(start), int(end), kind) for start, end, kind in intervals]
    busy = computing = idle = 0
    for tick in range(min(row[0] for row in rows), max(row[1] for row in rows)):
        running = {kind for start, end, kind in rows if start <= tick < end}
        busy += bool(running)
        computing += "kernel" in running
        idle += not running
    return busy, computing, idle


@question("32.1")
def judge_duty(duty: Callable[[list[Work]], Sequence[float]]) -> str:
    """On given intervals: time with any work, time with a kernel, and the rest of the span."""
    for case, intervals in TRIALS:
        got = tuple(duty(list(intervals)))
        truth = _truth(intervals)
        if len(got) != 3 or any(
            abs(one - other) > 1e-9 for one, other in zip(got, truth, strict=True)
        ):
            said = ", ".join(f"{one:g}" for one in got)
            raise Wrong(
                f"{case}: of {_spelled(intervals)} you get ({said}); busy, computing and idle are "
                f"({', '.join(f'{one:g}' for one in truth)}){_slip(got, intervals)}"
            )
    return "Time counts once, however many streams work in it; only kernels compute."


def _truth(intervals: Sequence[Work]) -> tuple[float, float, float]:
    start, end = min(one[0] for one in intervals), max(one[1] for one in intervals)
    busy = covered_s([one[:2] for one in intervals], start, end)
    computing = covered_s([one[:2] for one in intervals if one[2] == "kernel"], start, end)
    return busy, computing, end - start - busy


def _spelled(intervals: Iterable[Work]) -> str:
    return ", ".join(f"{kind} {start:g} to {end:g}" for start, end, kind in intervals)


def _slip(got: Sequence[float], intervals: Sequence[Work]) -> str:
    busy, computing, _ = _truth(intervals)
    lasting = sum(end - start for start, end, _ in intervals)
    if len(got) != 3:
        return ": return three numbers"
    if got[0] == lasting != busy:
        return ". You added durations: where two streams work at once, the time counts twice"
    if got[0] == busy and got[1] != computing:
        return ". Computing is the time in which at least one kernel ran, whatever ran beside it"
    return ""


# -- a training loop to be read from its trace -------------------------------------------------

STEPS = 8
STALL_S = 0.015
INPUT = ("fetch", "decode", "augment")
WARM_UP, VALIDATIONS = 2, 40


class Training:
    """A small network that learns made-up pictures. What its steps do is to be read from a trace.

    `seed` fixes what is drawn by lot. Raises MissingDependency without torch.
    """

    def __init__(self, device: str = "cpu", seed: int | None = None) -> None:
        torch = self._torch = require("torch", "lesson 32")
        lot = random.Random(seed)
        self.stalled, self.slow_step = lot.choice(INPUT), lot.randrange(3, STEPS - 1)
        self._device, layers = device, torch.nn
        self._network = layers.Sequential(
            *(layers.Conv2d(1, 8, 3, padding=1), layers.ReLU()),
            *(layers.Conv2d(8, 16, 3, stride=2, padding=1), layers.ReLU()),
            *(layers.Flatten(), layers.Linear(16 * 14 * 14, 10)),
        ).to(device)
        self._adam = torch.optim.Adam(self._network.parameters())
        for _ in range(WARM_UP):
            self.step(0)

    def run(self) -> None:
        """All steps, each marked."""
        for number in range(STEPS):
            with step(number):
                self.step(number)

    def step(self, number: int) -> None:
        """One batch: input, forward, backward, update."""
        torch = self._torch
        with annotate("fetch"):
            pictures, digits = torch.randn(32, 1, 28, 28), torch.randint(10, (32,))
            self._maybe_stall("fetch")
        with annotate("decode"):
            pictures = pictures * 0.5 + 0.5
            self._maybe_stall("decode")
        with annotate("augment"):
            pictures = pictures.flip(-1)
            self._maybe_stall("augment")
        pictures, digits = pictures.to(self._device), digits.to(self._device)
        with annotate("forward"):
            loss = torch.nn.functional.cross_entropy(self._network(pictures), digits)
        with annotate("backward"):
            loss.backward()
        with annotate("update"):
            self._adam.step()
            self._adam.zero_grad()
        if number == self.slow_step:
            self._validate(pictures)

    def repaired(self, part: str) -> Training:
        """The same training, but `part` of its input waits for nothing. No other part changes.

        Raises UsageError for what is no part of the input.
        """
        if part not in INPUT:
            raise UsageError(f"{part!r} is no part of the input: there are {', '.join(INPUT)}")
        other = copy.copy(self)
        if part == self.stalled:
            other.stalled = ""
        return other

    def _maybe_stall(self, part: str) -> None:
        # Stands for Python that waits for a disk, or works without an operator of torch.
        if part == self.stalled:
            time.sleep(STALL_S)

    def _validate(self, pictures: Any) -> None:
        with annotate("validate"), self._torch.no_grad():
            for _ in range(VALIDATIONS):
                self._network(pictures)


def seconds_in(timeline: Timeline, name: str) -> float:
    """How long the host was in the stretches that are annotated with `name`, all together."""
    columns = timeline.columns
    if name not in columns.names:
        return 0.0
    mine = columns.of_kind("annotation") & (columns.name == columns.names.index(name))
    return 1e-9 * int((columns.end_ns - columns.start_ns)[mine].sum())


# -- exercise 32.2: what the trace tells -------------------------------------------------------


class _Kept(NamedTuple):
    """Seconds by operator, own and total, as torch's own table has them, and the trace."""

    own_s: dict[str, float]
    total_s: dict[str, float]
    trace: Timeline


_kept: list[_Kept] = []
CLOSE = 0.05


def keep(profiler: Any, path: str | Path) -> None:
    """Keep the table of the operators that torch made itself of the run in the trace `path`."""
    from perfkit.timeline.trace import read_timeline

    trace = read_timeline(path)
    columns = trace.columns
    operators = {columns.names[code] for code in columns.name[columns.of_kind("op")]}
    rows = [row for row in profiler.key_averages() if row.key in operators]
    own_s = {row.key: 1e-6 * row.self_cpu_time_total for row in rows}
    total_s = {row.key: 1e-6 * row.cpu_time_total for row in rows}
    _kept[:] = [_Kept(own_s, total_s, trace)]


@question("32.2")
def judge_findings(findings: Callable[[], Mapping[str, Any]]) -> str:
    """Top operator by own time, its own time in ms, the host in the largest gap, slowest step."""
    given = dict(findings())
    if not _kept:
        raise Wrong("there is no trace yet: run the cell that records one")
    wanted = ("operator", "own_ms", "gap", "step")
    if set(given) != set(wanted):
        raise Wrong(f"give these four: {', '.join(wanted)}")
    own_s, total_s, trace = _kept[0]
    _judge_operator(given["operator"], float(given["own_ms"]), own_s, total_s)
    gap = trace.gaps[0]
    if given["gap"] != gap.host:
        raise Wrong(
            f"gap: in the longest one, {units.seconds(gap.duration_s)} of step {gap.step}, the "
            f"host was not in {given['gap']!r}: see the first row of the stretches"
        )
    slowest = max(trace.steps, key=lambda one: one.duration_s)
    if given["step"] != slowest.number:
        raise Wrong(f"step: {given['step']!r} did not take longest; see the marks in the steps")
    return (
        f"Torch's own table has {units.seconds(own_s[given['operator']])} too, the host waits in "
        f"{gap.host}, and step {slowest.number} is slow for another reason: it works more."
    )


def _judge_operator(
    name: str, own_ms: float, own_s: dict[str, float], total_s: dict[str, float]
) -> None:
    top = max(own_s, key=lambda one: own_s[one])
    if name not in own_s:
        raise Wrong(f"operator: {name!r} is no operator of this trace (annotations are none)")
    if name != top:
        raise Wrong(
            f"operator: {name} took {units.seconds(total_s[name])} in all, but its own time is "
            f"{units.seconds(own_s[name])}: the rest is that of operators that it calls"
        )
    if abs(1e-3 * own_ms - own_s[top]) > CLOSE * own_s[top]:
        total = abs(1e-3 * own_ms - total_s[top]) <= CLOSE * total_s[top]
        more = ": that is its total" if total else ""
        raise Wrong(
            f"own_ms: {own_ms:g} ms is not within 5 % of the own time of {top} in torch's "
            f"table{more}"
        )


# -- exercise 32.3: which trace gains ----------------------------------------------------------

REPAIRS: dict[str, Callable[[Figures], float]] = {
    "kernels twice as fast": lambda one: one.compute_s / 2,
    "copies and collectives behind kernels": lambda one: one.busy_s - one.compute_s,
    "a host that is never late": lambda one: one.span_s - one.busy_s,
}
"""Seconds that a repair takes from a trace, at most."""


@question("32.3")
def judge_gains(gains: Callable[[], Mapping[str, str]]) -> str:
    """For each repair the trace that gains most of its own span."""
    given = dict(gains())
    if set(given) != set(REPAIRS):
        raise Wrong(f"give a trace for each of: {'; '.join(REPAIRS)}")
    for repair, saved_s in REPAIRS.items():
        shares = {one.trace: saved_s(one) / one.span_s for one in PUBLIC}
        if given[repair] not in shares:
            raise Wrong(f"{repair}: {given[repair]!r} is none of {', '.join(shares)}")
        best = max(shares, key=lambda trace: shares[trace])
        if given[repair] != best:
            raise Wrong(
                f"{repair}: {given[repair]} gains at most {units.share(shares[given[repair]])} of "
                "its time, and another one more"
            )
    return "Each trace needs another repair, and busy time alone told none of them."
