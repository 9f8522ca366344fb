"""Lesson 30: what a profile's lines are asked for, and the lesson's questions."""

from __future__ import annotations

import itertools
import linecache
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.errors import UsageError
from perfkit.lessons import em_gmm
from perfkit.lessons.checks import Wrong, question
from perfkit.measure.lines.profile import profile_lines
from perfkit.optional import require
from perfkit.records.lines import LineProfile, Statement

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DAYS", "FIXES", "Fix", "best_times", "days", "gain", "plain_share", "row"]


def row(profile: LineProfile, words: str) -> Statement:
    """The hottest statement of a profile with `words` in its source. Raises UsageError if there
    is none.
    """
    found = [statement for statement in profile.statements if words in statement.source]
    if not found:
        raise UsageError(f"no statement with {words!r} was profiled")
    return max(found, key=lambda statement: statement.time_s)


def plain_share(profiler: Any, words: str) -> float:
    """The share that line_profiler's LineProfiler gives to lines with `words` in their source."""
    watched = whole = 0
    for (file, _, _), timings in profiler.get_stats().timings.items():
        for line, _, ticks in timings:
            whole += ticks
            watched += ticks if words in linecache.getline(file, line) else 0
    return watched / whole


def best_times(*functions: Callable[[], object], rounds: int = 7) -> tuple[float, ...]:
    """Each function's fastest run in seconds of this thread's processor time, so that waiting for a
    core does not count. They run in turn: what else there is of noise meets all of them.
    """
    fine = time.get_clock_info("thread_time").resolution < 1e-4
    clock = time.thread_time if fine else time.perf_counter
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            start = clock()
            function()
            best[place] = min(best[place], clock() - start)
    return tuple(best)


# -- exercise 30.1: three days, five fixes -----------------------------------------------------


class Fix(NamedTuple):
    """A line's share of the run, how many times faster a fix makes it, and the days it takes."""

    share: float
    factor: float
    days: int


FIXES = {
    "contraction": Fix(0.38, 2, 3),
    "reading": Fix(0.28, 4, 2),
    "copies": Fix(0.18, 10, 2),
    "printing": Fix(0.12, 6, 1),
    "inverse": Fix(0.02, 100, 1),
}
DAYS = 3


def gain(names: Iterable[str]) -> float:
    """How many times faster the run is with these fixes (Amdahl's law, summed over them)."""
    fixes = [FIXES[name] for name in set(names)]
    return 1 / (1 - sum(fix.share - fix.share / fix.factor for fix in fixes))


def days(names: Iterable[str]) -> int:
    """How many days these fixes take."""
    return sum(FIXES[name].days for name in set(names))


def _affordable() -> Iterator[frozenset[str]]:
    for count in range(len(FIXES) + 1):
        for names in itertools.combinations(FIXES, count):
            if days(names) <= DAYS:
                yield frozenset(names)


def _first_come(order: Callable[[str], float]) -> frozenset[str]:
    """Fix after fix in this order, largest first, as long as days are left."""
    taken: set[str] = set()
    for name in sorted(FIXES, key=order, reverse=True):
        if days(taken | {name}) <= DAYS:
            taken.add(name)
    return frozenset(taken)


@question("30.1")
def judge_plan(plan: Callable[[], Iterable[str]]) -> str:
    """The set of fixes that gains most in three days, found by trying all."""
    given = frozenset(plan())
    if unknown := given - FIXES.keys():
        raise Wrong(f"{sorted(unknown)} are not among {', '.join(FIXES)}")
    if days(given) > DAYS:
        raise Wrong(f"that takes {days(given)} days, and you have {DAYS}")
    best = max(_affordable(), key=gain)
    if given == best:
        return f"The run is {gain(given):.2f} times as fast, and no other {DAYS} days gain more."
    why = ""
    if given == _first_come(lambda name: FIXES[name].factor):
        why = (
            ". You took the largest factors: a large factor on a small share gains next to nothing"
        )
    elif given == _first_come(lambda name: FIXES[name].share):
        why = ". You took the largest share: its factor is small, and it eats all of the days"
    raise Wrong(
        f"the run is {gain(given):.2f} times as fast; there are {DAYS} days that make it "
        f"{gain(best):.2f} times as fast{why}"
    )


# -- exercise 30.2: take the hot line out ------------------------------------------------------


class _Kept(dict[str, Any]):
    """The products of a step by their subscripts. Remembers which were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: set[str] = set()

    def compute(self, subscripts: str, *arrays: np.ndarray) -> np.ndarray:
        """Compute a product and keep it."""
        self[subscripts] = em_gmm.by_sums(subscripts, *arrays)
        return em_gmm.by_sums(subscripts, *arrays)

    def __getitem__(self, subscripts: str) -> Any:
        self.looked_up.add(subscripts)
        return super().__getitem__(subscripts)

    def get(self, subscripts: str, default: Any = None) -> Any:
        self.looked_up.add(subscripts)
        return super().get(subscripts, default)


@question("30.2")
def judge_ablation(without_hot_line: Callable[..., Any]) -> str:
    """Value first, then which product was left out, then the gain beside Amdahl's promise."""
    x, z = em_gmm.data(n=1000)
    kept = _Kept()
    expected = em_gmm.step(x, z, kept.compute)
    contract = partial(without_hot_line, kept=kept)
    got = em_gmm.step(x, z, contract)
    numpy = require("numpy", "lesson 30")
    if not numpy.allclose(got, expected, rtol=1e-6, atol=1e-9):
        raise Wrong("the other lines give another result now: the product must be the kept one")
    left_out = set(kept.looked_up)
    if not left_out:
        raise Wrong("no product was looked up in `kept`, so nothing is left out")
    full_s, short_s = best_times(
        lambda: em_gmm.step(x, z), lambda: em_gmm.step(x, z, contract), rounds=9
    )
    won = full_s / short_s
    if len(left_out) > 1:
        raise Wrong(f"{len(left_out)} products were left out, the hot line has one")
    if left_out != {em_gmm.HOT}:
        raise Wrong(
            f"that is the wrong line: without {left_out.pop()} the step is {won:.2f} times as fast"
        )
    promised = _promise(x, z)
    if not (promised - 1) / 3 < won - 1 < 3 * (promised - 1) + 1:
        raise Wrong(
            f"the step is {won:.2f} times as fast, Amdahl promised {promised:.1f}: "
            "is the product still computed, or more left out than the line?"
        )
    return f"Without it the step is {won:.1f} times as fast; Amdahl promised {promised:.1f}."


def _promise(x: np.ndarray, z: np.ndarray) -> float:
    """The bound of the hot line, from a profile that runs the steps twice: it is the steadiest."""

    def steps() -> None:
        for _ in range(8):
            em_gmm.step(x, z)

    hot = row(profile_lines(steps, mode="twice", functions=[em_gmm.step]), em_gmm.HOT)
    return 1 / (1 - min(hot.share, 0.95))
