"""Lesson 00: rounds a day, from an idea to its answer, and the learner's own loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

from perfkit import ledger, units
from perfkit.errors import PerfkitError, UsageError
from perfkit.lessons.bets import Line
from perfkit.lessons.checks import Wrong, question
from perfkit.lessons.traces import Table
from perfkit.records.lesson import Loop
from perfkit.render import grid

__all__ = ["bars", "own_loop"]

DAY_S = 8 * 3600
DAYS = ((10, 5, 8), (5, 5, 8), (0, 5, 8), (20, 10, 4), (7, 0, 8), (600, 0, 8), (30, 15, 10))
"""Minutes to run, minutes to think, hours."""


def bars(count: Callable[..., float], runs: Iterable[float], think: float = 10) -> Table:
    """Rounds of a day by the minutes of a run, as bars; the thinking takes `think` minutes."""
    found = [(run, float(count(run, think))) for run in runs]
    most = max((rounds for _, rounds in found), default=0) or 1
    rows = [
        (f"{run:g}", f"{think:g}", f"{rounds:g}", grid.Cell("\N{NO-BREAK SPACE}" * 40, "", part))
        for run, rounds in found
        for part in [rounds / most]
    ]
    head = (" minutes a run", " minutes to think", " rounds in 8 hours", "")
    return Table(grid.Grid("rounds a day", head, rows))


# -- exercise 00.2: how many rounds? -------------------------------------------------------------


@question("00.2")
def judge_rounds(count: Callable[..., float]) -> str:
    """Whole rounds that fit in a day, on cases that tell the tempting formulas apart."""
    for run, think, hours in DAYS:
        truth = _rounds(run, think, hours)
        given = count(run, think) if hours == 8 else count(run, think, hours)
        if not _is_number(given):
            raise Wrong(f"rounds({run}, {think}) gave {given!r}: give a number")
        if given != truth:
            case = f"{run} minutes to run, {think} to think, {hours} hours"
            said = f"{units.count(truth, 'round')}, you say {given:g}"
            raise Wrong(f"{case}: {said}. {_why(given, run, think, hours)}")
    return "A shorter run leaves the thinking as long as it was: that is the ceiling"


def _rounds(run: int, think: int, hours: int) -> int:
    return hours * 60 // (run + think)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    return math.isfinite(float(value))


def _why(given: float, run: int, think: int, hours: int) -> str:
    first = _rounds(*DAYS[0])
    if run and think and int(given) == hours * 60 // run:
        return "The thinking is part of every round"
    if (run, think, hours) == DAYS[1] and int(given) == 2 * first:
        return "Half the run time does not double the rounds: the thinking stays as long as it was"
    if hours != 8 and int(given) == _rounds(run, think, 8):
        return "The day has as many hours as `hours` says"
    if abs(given - hours * 60 / (run + think)) < 1:
        return "A round that does not end is none: count whole ones"
    return "How long is one round, from one idea to the next?"


# -- the learner's own loop ----------------------------------------------------------------------


def own_loop(
    minutes: float | None = None, runs_per_day: float | None = None, forgot: str = ""
) -> Line:
    """Keep the learner's last experiment as `own.loop` in the ledger: minutes of a run, runs a day,
    and what was forgotten by the time it ended. Without both numbers nothing is kept.

    Raises UsageError for what is not a number above 0.
    """
    if minutes is None or runs_per_day is None:
        return Line("nothing is kept yet: put your numbers in place of None, and run it again")
    for name, value in (("minutes", minutes), ("runs_per_day", runs_per_day)):
        if not _is_number(value) or value <= 0:
            raise UsageError(f"own_loop: {name} is {value!r}: give a number above 0")
    loop = Loop.of(run_s=60.0 * minutes, runs_per_day=float(runs_per_day), forgot=forgot)
    try:
        ledger.add(loop, "own.loop")
    except PerfkitError as error:
        warnings.warn(str(error), stacklevel=2)
    return Line(_could(60.0 * minutes, float(runs_per_day)))


def _could(run_s: float, runs: float) -> str:
    """What waiting takes of a day, and what half of it would give back."""
    waited_s = run_s * runs
    head = f"you wait {waited_s / 3600:.1f} hours a day"
    if waited_s >= DAY_S:
        return f"{head}, which is more than a working day of 8: it runs while you sleep"
    think_s = (DAY_S - waited_s) / runs
    half = DAY_S / (think_s + run_s / 2)
    return f"{head}. With a run half as long, {half:.1f} rounds fit in 8 hours, not {runs:g}"
