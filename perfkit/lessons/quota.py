"""Lesson 13: one product on several thread counts, six recorded machines, and the questions."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from perfkit import units
from perfkit.lessons.checks import Wrong, question
from perfkit.lessons.machines import TREES, Listing, Tree, count, read, show, trees
from perfkit.optional import loaded, require
from perfkit.ranks import Rank, RankError, local
from perfkit.records.doctor import Diagnosis
from perfkit.records.machine import Limits
from perfkit.render import grid
from perfkit.render.theme import COLOURS, MASK, STYLE, is_stable
from perfkit.system.facts import machine
from perfkit.system.limits import read_throttling

__all__ = [
    "CAP",
    "TREES",
    "Run",
    "Starts",
    "Tree",
    "Trial",
    "count",
    "experiment",
    "export",
    "first",
    "read",
    "show",
    "starts",
    "trees",
]

CAP = 4
"""Threads for each usable CPU that an experiment asks for at most: a class shares the node."""
COUNTS = (1, 2, 4, 16)
N = 200
_EXPORTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# -- the product on several thread counts --------------------------------------------------------


class Run(NamedTuple):
    """A product on `asked` threads, of which the library took `got`: its seconds, and how many CPUs
    were busy meanwhile. `reason`: why there are no figures.
    """

    asked: int
    got: int | None = None
    seconds: float | None = None
    busy: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Trial:
    """Runs beside the one on a single thread. `notes` stand below the table."""

    runs: tuple[Run, ...]
    title: str
    notes: tuple[str, ...] = ()

    def __contains__(self, asked: int) -> bool:
        return self._ratio(self._run(asked)) is not None

    def __getitem__(self, asked: int) -> float:
        """How many times as long as on one thread. Raises KeyError where that was not measured."""
        ratio = self._ratio(self._run(asked))
        if ratio is None:
            raise KeyError(asked)
        return ratio

    def __iter__(self) -> Iterator[int]:
        """The counts that were measured."""
        return (run.asked for run in self.runs if run.asked in self)

    def why(self, asked: int) -> Listing:
        """A line for a count without a figure; the reason stands in the table."""
        return Listing([f"{asked} threads: {_missing(self._run(asked))}"])

    def _run(self, asked: int) -> Run:
        return next((run for run in self.runs if run.asked == asked), Run(asked))

    def _ratio(self, run: Run) -> float | None:
        single = self._run(1).seconds
        return run.seconds / single if run.seconds and single else None

    def _rows(self) -> Iterator[tuple[Sequence[str], float]]:
        """What the columns say, and the length of the bar as a part of the longest."""
        most = max((self[asked] for asked in self), default=1.0)
        for run in self.runs:
            if run.asked not in self:
                yield (str(run.asked), "", "n/a", "", _missing(run)), 0.0
                continue
            shown = (units.seconds(run.seconds), f"{run.busy or 0:.1f}", f"{self[run.asked]:.3g}")
            varies = (MASK,) * 3 if is_stable() else shown
            yield (str(run.asked), str(run.got or "n/a"), *varies), self[run.asked] / most

    def _notes(self) -> Sequence[str]:
        return [f"{run.asked} threads: {run.reason}" for run in self.runs if run.reason] + [
            *self.notes
        ]

    def __repr__(self) -> str:
        rows = [(*row, "█" * round(30 * part)) for row, part in self._rows()]
        return grid.as_text(grid.Grid(self.title, (*_HEAD, ""), rows, self._notes()))

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{STYLE["number"]}">{escape(word)}</th>' for word in _HEAD)
        notes = "".join(f'<div style="{STYLE["note"]}">{escape(n)}</div>' for n in self._notes())
        return (
            f'<div style="{STYLE["box"]}"><strong>{escape(self.title)}</strong>'
            f'<table style="{STYLE["table"]}"><tr style="background:none">{head}</tr>'
            f"{''.join(_bar_row(*row) for row in self._rows())}</table>{notes}</div>"
        )


_HEAD = (" threads", " got", " a product", " busy CPUs", " times as long")


def _missing(run: Run) -> str:
    return "n/a (capped)" if run.reason.startswith("capped") else "n/a"


def _bar_row(row: Sequence[str], part: float) -> str:
    cells = "".join(f'<td style="{STYLE["number"]}">{escape(word)}</td>' for word in row)
    bar = f"width:{max(1, round(300 * part))}px;height:13px;background:{COLOURS['kernel']}"
    return (
        f'<tr style="background:none">{cells}<td style="{STYLE["cell"]};vertical-align:middle">'
        f'<div style="{bar if part else ""}"></div></td></tr>'
    )


def experiment(
    counts: Sequence[int] = COUNTS, *, budget_s: float = 1.0, limits: Limits | None = None
) -> Trial:
    """A product of two 200 x 200 matrices on each count of threads, in turns, for about `budget_s`
    seconds in all. The counts of this process are as before when it ends.

    Counts above CAP for each usable CPU are left out, and say so.
    """
    limits = limits or machine().limits
    cpus = _cpus(limits)
    capped = {
        asked: f"capped: more than {CAP} for each usable CPU would stop your neighbours"
        for asked in counts
        if asked > max(1.0, CAP * cpus)
    }
    allowed = [asked for asked in counts if asked not in capped]
    before = _stops()
    # The stops of a quota come every 100 ms: shorter turns would pass between them.
    turn_s = budget_s / len(allowed) if _stopped_by(limits) else 0.005
    found = _measure(allowed, budget_s, turn_s)
    runs = (found.get(asked) or Run(asked, reason=capped.get(asked, "")) for asked in counts)
    title = f"One product, {N} x {N}, {cpus:g} usable CPU{'s' * (cpus != 1)}"
    stops = _stops() - before
    notes = (f"The quota stopped this pod or job {stops} times meanwhile.",) * (stops > 0)
    return Trial(tuple(runs), title, notes)


def _cpus(limits: Limits) -> float:
    return limits.cpus or os.cpu_count() or 1


def _stopped_by(limits: Limits) -> bool:
    """Is there a quota that is smaller than the mask?"""
    return limits.quota_cpus is not None and limits.quota_cpus < (limits.affinity_cpus or 1e9)


def _measure(counts: Sequence[int], budget_s: float, turn_s: float) -> dict[int, Run]:
    blas, product, turns = _blas(), _product(), _Turns(counts)
    ends = time.perf_counter() + budget_s
    while True:
        began = time.perf_counter()
        for asked in counts:
            # A machine so slow that one round is too much: what is left would be the dearest.
            if turns.began and time.perf_counter() > ends:
                break
            turns.add(asked, *_turn(blas, asked, product, turn_s))
        now = time.perf_counter()
        if 2 * now - began > ends:
            return turns.runs()


class _Turns:
    """What each count had in its turns: threads, seconds of a product, busy CPUs."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._of: dict[int, list[tuple[int, float, float]]] = {asked: [] for asked in counts}
        self.began = False

    def add(self, asked: int, *turn: Any) -> None:
        self._of[asked].append(turn)
        self.began = True

    def runs(self) -> dict[int, Run]:
        return {asked: self._run(asked, turns) for asked, turns in self._of.items()}

    @staticmethod
    def _run(asked: int, turns: list[tuple[int, float, float]]) -> Run:
        if not turns:
            return Run(asked, reason="capped: its time was used up")
        got, seconds, busy = zip(*turns, strict=True)
        if not got[0] and asked > 1:
            return Run(asked, reason="no BLAS is loaded whose threads can be set")
        return Run(asked, got[0] or None, statistics.median(seconds), statistics.median(busy))


def _turn(
    blas: Any, asked: int, product: Callable[[], object], turn_s: float
) -> tuple[int, float, float]:
    """Threads that were got, seconds of a product, and CPUs that were busy."""
    _wait_until_idle()
    with blas.limit(limits=asked):
        got = _threads(blas)
        product()
        done, wall, cpu = 0, time.perf_counter(), time.process_time()
        while not done or time.perf_counter() - wall < turn_s:
            product()
            done += 1
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return got, wall / done, cpu / wall


def _blas() -> Any:
    """The libraries whose threads can be set; NumPy's is loaded if it was not."""
    require("numpy", "lesson 13")
    return require("threadpoolctl", "lesson 13").ThreadpoolController().select(user_api="blas")


def _threads(blas: Any) -> int:
    return max((int(found["num_threads"] or 0) for found in blas.info()), default=0)


def _product() -> Callable[[], object]:
    a = require("numpy", "lesson 13").random.default_rng(13).random((N, N))
    return lambda: a @ a


def _wait_until_idle(most_s: float = 0.2) -> None:
    """Threads without work go on spinning for some 100 ms, at the cost of who comes next."""
    until = time.perf_counter() + most_s
    while time.perf_counter() < until:
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.0005:
            return


def _stops() -> int:
    """How often a quota has stopped this process's groups, as far as the kernel tells."""
    seen = read_throttling()
    return seen.throttled if seen else 0


# -- what the library takes as it starts -----------------------------------------------------------


ASKED = 8
"""Threads that the pinned process asks for."""


@dataclass(frozen=True)
class Starts:
    """How many threads `library` took: on its own, pinned before its start and asked for more, told
    at run time, and pinned after its start, where a product was timed too. None: not known.

    `mask`: CPUs that this process may run on.
    """

    library: str = "NumPy's library"
    mask: int | None = None
    plain: int | None = None
    bound: int | None = None
    told: int | None = None
    kept: int | None = None
    pinned: Trial = field(default_factory=lambda: Trial((), "One product on one CPU"))
    reason: str = ""

    def _grid(self) -> grid.Grid:
        def row(words: str, mask: object, threads: int | None) -> Sequence[str]:
            return (words, str(mask), "n/a" if threads is None else str(threads))

        mask = "n/a" if self.mask is None else self.mask
        rows = [
            row("started", mask, self.plain),
            row(f"pinned to one CPU, then started; {_EXPORTS[1]}={ASKED}", 1, self.bound),
            row(f"the same, threadpool_limits({ASKED}) at run time", 1, self.told),
            row("started, then pinned to one CPU", 1, self.kept),
        ]
        head = ("a process that was", " CPUs in its mask", " threads")
        return grid.Grid(
            f"Threads that {self.library} takes", head, rows, (self.reason,) * bool(self.reason)
        )

    def __repr__(self) -> str:
        return grid.as_text(self._grid())

    def _repr_html_(self) -> str:
        head = f"<strong>{escape(self._grid().title)}</strong>"
        return f'<div style="{STYLE["box"]}">{head}{grid.as_html(self._grid())}</div>'


def starts(*, limits: Limits | None = None) -> Starts:
    """Two processes of their own, which are pinned to one CPU: this one is left alone."""
    if not hasattr(os, "sched_setaffinity"):
        return Starts(reason="this system pins no process: Linux does")
    limits = limits or machine().limits
    # Pinned, a process has one CPU at most.
    own = min(1.0, _cpus(limits))
    try:
        kept = local(1).run(_started_then_pinned, own, timeout_s=60)[0]
        bound, told = local(1).run(_pinned_then_started, timeout_s=60)[0]
    except RankError as error:
        return Starts(reason=str(error).splitlines()[0])
    return replace(kept, bound=bound, told=told)


def _started_then_pinned(_: Rank, cpus: float) -> Starts:
    for name in _EXPORTS:
        os.environ.pop(name, None)
    mask = len(os.sched_getaffinity(0))
    blas = _started()
    plain = _threads(blas) or None
    _pin()
    kept = _threads(blas) or None
    trial = experiment((1, 2), budget_s=0.6, limits=Limits(cpus=cpus))
    return Starts(
        library=next((f"{b['internal_api']} {b['version']}" for b in blas.info()), "this NumPy"),
        mask=mask,
        plain=plain,
        kept=kept,
        pinned=replace(trial, title=f"One product, {N} x {N}, on one CPU"),
    )


def _pinned_then_started(_: Rank) -> tuple[int | None, int | None]:
    _pin()
    os.environ.update(dict.fromkeys(_EXPORTS, str(ASKED)))
    blas = _started()
    bound = _threads(blas)
    with blas.limit(limits=ASKED):
        return bound or None, _threads(blas) or None


def _started() -> Any:
    assert loaded("numpy") is None, "NumPy's library had started already"
    return _blas()


def _pin() -> None:
    """Let all threads of this process run on one CPU only."""
    one = {min(os.sched_getaffinity(0))}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), one)


# -- exercise 13.1: how many CPUs may I use? -------------------------------------------------------


@question("13.1")
def judge_usable(usable_cpus: Callable[[Path], float]) -> str:
    """CPUs that the process of each tree may use, exactly."""
    with tempfile.TemporaryDirectory(prefix="perfkit-trees-") as folder:
        given = {name: _given(usable_cpus, name, root) for name, root in trees(folder).items()}
    wrong = {name: cpus for name, cpus in given.items() if cpus != TREES[name].cpus}
    if not wrong:
        return (
            "All six: mask and quota, both versions, and the strictest of a group and its parents."
        )
    if all(cpus == TREES[name].machine for name, cpus in given.items()):
        raise Wrong(
            f"that is what os.cpu_count() says on each machine: it is right on {_right(wrong)}, "
            "where nothing is limited"
        )
    name, cpus = next(iter(wrong.items()))
    if cpus is not None and len(set(given.values())) == 1:
        raise Wrong(_constant(cpus))
    raise Wrong(f"{name}: {cpus} is not it. {_why(name, cpus)} You have {_right(wrong)} right")


def _given(usable_cpus: Callable[[Path], float], name: str, root: Path) -> float:
    try:
        return usable_cpus(root)
    except NotImplementedError:
        raise
    except Exception as error:
        said = str(error).replace(str(root), "root")
        missing = "; quota.read gives an empty text for a file that a machine does not have"
        raise Wrong(
            f"{name}: your code raised {type(error).__name__}: {said}"
            f"{missing if isinstance(error, OSError) else ''}"
        ) from error


def _right(wrong: Mapping[str, object]) -> str:
    return f"{len(TREES) - len(wrong)} of {len(TREES)}"


def _constant(cpus: object) -> str:
    if cpus == os.cpu_count():
        return (
            f"{cpus} for every machine: os.cpu_count() counts the CPUs of the one that runs it, "
            "whatever this process may use of them. Read the files below root"
        )
    return f"{cpus} for every machine: read the files below root, not below /"


def _why(name: str, cpus: Any) -> str:
    tree = TREES[name]
    if cpus is None or isinstance(cpus, str):
        return "Give a number of CPUs: without a quota the mask is what counts."
    if cpus == tree.leaf:
        return f"Its own group allows {cpus:g}, a group above it less: the strictest counts."
    if tree.leaf is None and cpus != tree.mask:
        return f"There is no quota, but a mask of {tree.mask} CPUs: Cpus_allowed_list."
    if cpus == tree.mask:
        return f"That is the mask. {_where(name)}"
    if abs(cpus - tree.cpus) < 1:
        return "A part of a CPU counts: keep the fraction."
    return f"Look at quota.show(roots[{name!r}])."


def _where(name: str) -> str:
    """In which files the quota of a tree stands."""
    files = [f.removeprefix("sys/fs/cgroup/") for f in TREES[name].files if "cpu." in f]
    version = "version 1, in two files" if "cfs" in files[0] else "version 2"
    return f"There is a quota too, of {version}: {files[0]}."


# -- exercise 13.2: workers and their threads ------------------------------------------------------


TEAMS = ((8, 4), (8, 3), (2.5, 1), (2.5, 2), (2.5, 4), (0.5, 1), (6, 4), (64, 16))
"""CPUs and workers."""


@question("13.2")
def judge_threads(threads_each: Callable[[float, int], int]) -> str:
    """Threads for each worker: as many as there are CPUs for all, and one at least."""
    for cpus, workers in TEAMS:
        given: Any = threads_each(cpus, workers)
        if given != max(1, int(cpus // workers)) or not _is_whole(given):
            team = f"{cpus:g} CPUs for {workers} worker{'s' * (workers > 1)}"
            why = _surplus(given, cpus, workers)
            raise Wrong(f"{team}: {given!r} threads each is not it. {why}")
    return "No team has more threads than CPUs, unless it has more workers than CPUs."


def _is_whole(given: Any) -> bool:
    return hasattr(given, "__index__") and not isinstance(given, bool)


def _surplus(given: Any, cpus: float, workers: int) -> str:
    if not hasattr(given, "__float__"):
        return "Give a number"
    if given < 1:
        return "A worker has one thread at least: itself"
    if not _is_whole(given):
        return "Threads are whole: OMP_NUM_THREADS takes no fraction and no point"
    if given > 1 and given * workers > cpus:
        return f"Together they are {given * workers} threads, more than there are CPUs: round down"
    return f"Together they are {given * workers} threads, and CPUs are left over"


# -- the learner's own notebook or job -------------------------------------------------------------


def export(cpus: float | None = None, workers: int = 1) -> str:
    """A line for the shell or the job script, before Python starts: threads for each worker."""
    cpus = _cpus(machine().limits) if cpus is None else cpus
    threads = max(1, int(cpus // workers))
    return "export " + " ".join(f"{name}={threads}" for name in _EXPORTS)


def first(diagnosis: Diagnosis) -> Listing:
    """What %doctor found that matters most, its fix where there is one, and the export line."""
    found = next(iter(diagnosis.findings), None)
    said = f"{found.title} ({found.evidence})" if found else "nothing to put right"
    fix = [found.fix] if found and found.fix else []
    return Listing([said, *fix, export(_cpus(diagnosis.limits))])
