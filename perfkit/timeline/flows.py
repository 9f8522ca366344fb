"""What belongs together on XLA's host plane: launches and their programs, both ends of a wait.

An event that begins something for another thread has a producer's number, the one that goes on with
it a consumer's. A pool of threads records when it is given a task, and when a thread runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.timeline.columns import NO_LINK
from perfkit.timeline.xevents import Events

if TYPE_CHECKING:
    import numpy as np

__all__ = ["GIVEN", "RUN", "STATS", "STOPPED", "launched", "numbers", "tasks", "waits"]

GIVEN, RUN, STOPPED = (
    f"ThreadpoolListener::{name}" for name in ("Record", "StartRegion", "StopRegion")
)
STATS = frozenset(("_p", "_c", "run_id", "program_id"))
NOT_ONE = -1


def numbers(events: Events, stat: str, otherwise: int = NOT_ONE) -> np.ndarray:
    """A stat that is a number, for all events."""
    import numpy as np

    found = np.full(len(events.line), otherwise, dtype=np.int64)
    if stat in events.stats:
        found[events.stats[stat].row] = events.stats[stat].value
    return found


def launched(
    events: Events, work: np.ndarray, calls: np.ndarray, given: np.ndarray, run: np.ndarray
) -> np.ndarray:
    """Links between calls and the first work of the programs that they launched.

    All are masks: `work` of a device, `calls` that launch, tasks that were `given` to a pool or
    `run` by it. The call is the one around that work, on its own thread, or the one around the
    giving of the task in which it ran. Programs that had to wait for their input are started by
    other work, and linked to nothing.
    """
    import numpy as np

    link = np.full(len(events.line), NO_LINK, dtype=np.int64)
    work_rows = np.flatnonzero(work)
    by = _around(events, calls, events.line[work_rows], events.start_ns[work_rows])
    task = _last(events, np.flatnonzero(run), events.line[work_rows], events.start_ns[work_rows])
    giver = _match(numbers(events, "_c")[task], numbers(events, "_p"), np.flatnonzero(given))
    giver[task == NOT_ONE] = NOT_ONE
    known = (by == NOT_ONE) & (giver != NOT_ONE)
    source = giver[known]
    by[known] = _around(events, calls, events.line[source], events.start_ns[source])
    run_id = numbers(events, "run_id")[work_rows]
    alone = -2 - np.arange(len(run_id))
    _, run_of = np.unique(np.where(run_id == NOT_ONE, alone, run_id), return_inverse=True)
    _, program = np.unique(numbers(events, "program_id")[work_rows], return_inverse=True)
    distinct, which = np.unique(program * (len(run_id) + 1) + run_of, return_inverse=True)
    order = np.argsort(-events.start_ns[work_rows], kind="stable")
    first = np.full(len(distinct), NOT_ONE)
    first[which[order]] = order  # where an index repeats, the last value stays
    linked = first[by[first] != NOT_ONE]
    link[work_rows[linked]] = by[linked] + 1
    link[by[linked]] = by[linked] + 1
    return link


def waits(events: Events, ends: np.ndarray) -> np.ndarray:
    """Make whole waits of their two ends, which are in the mask: those that are left, with a new
    `end_ns`. An end without the other one is not left.
    """
    import numpy as np

    rows = np.flatnonzero(ends)
    found = np.zeros(len(ends), dtype=bool)
    other = _match(numbers(events, "_p")[rows], numbers(events, "_c"), rows)
    both = (other != NOT_ONE) & (events.line[rows] == events.line[other])
    both &= events.start_ns[rows] <= events.start_ns[other]
    events.end_ns[rows[both]] = events.end_ns[other[both]]
    found[rows[both]] = True
    return found


def tasks(events: Events, run: np.ndarray, stopped: np.ndarray) -> np.ndarray:
    """Make whole tasks of their two ends: those that are left, with a new `end_ns`."""
    import numpy as np

    rows = np.flatnonzero(run | stopped)
    rows = rows[np.lexsort((events.start_ns[rows], events.line[rows]))]
    begin, end = rows[:-1], rows[1:]
    pair = run[begin] & stopped[end] & (events.line[begin] == events.line[end])
    events.end_ns[begin[pair]] = events.start_ns[end[pair]]
    found = np.zeros(len(run), dtype=bool)
    found[begin[pair]] = True
    return found


def _match(wanted: np.ndarray, numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of `rows`, the one that has each of the wanted numbers; NOT_ONE where none has."""
    import numpy as np

    rows = rows[np.argsort(numbers[rows], kind="stable")]
    if not len(rows):
        return np.full(len(wanted), NOT_ONE)
    at = np.minimum(np.searchsorted(numbers[rows], wanted), len(rows) - 1)
    found: np.ndarray = np.where(
        (numbers[rows[at]] == wanted) & (wanted != NOT_ONE), rows[at], NOT_ONE
    )
    return found


def _last(events: Events, rows: np.ndarray, line: np.ndarray, when_ns: np.ndarray) -> np.ndarray:
    """Of `rows`, the last one on each line that began by then; NOT_ONE where none did."""
    import numpy as np

    found = np.full(len(line), NOT_ONE)
    for one in np.unique(line):
        own = rows[events.line[rows] == one]
        own = own[np.argsort(events.start_ns[own], kind="stable")]
        here = line == one
        at = np.searchsorted(events.start_ns[own], when_ns[here], side="right") - 1
        found[here] = np.where(at < 0, NOT_ONE, own[at] if len(own) else NOT_ONE)
    return found


def _around(events: Events, calls: np.ndarray, line: np.ndarray, when_ns: np.ndarray) -> np.ndarray:
    """The call on each line in which that time lies; NOT_ONE where there is none."""
    import numpy as np

    found = _last(events, np.flatnonzero(calls), line, when_ns)
    found[events.end_ns[found] < when_ns] = NOT_ONE
    return found
