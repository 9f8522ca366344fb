"""Why a device was idle, for many gaps at once.

A gap is cut where the call that launched its next work begins. Before that the host was late, and
what its thread did there says why; behind it nothing was late, but the work had not begun. The
longest part names the cause.

A wait is a cause if the thread stood in it when the device ran dry. Nothing was queued then, so all
that was done up to the next launch is its consequence, compiling and fetching input apart, which
are causes by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from perfkit.records.timeline import CAUSES, Cause
from perfkit.timeline.calls import CLOCKS_NS, LAUNCH_NS, Calls, ending_calls
from perfkit.timeline.columns import Columns
from perfkit.timeline.doing import NOBODY, Host, Level, covered_ns, named, tell
from perfkit.timeline.launches import launch_rows
from perfkit.timeline.tables import outermost
from perfkit.timeline.words import is_read, is_wait

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Verdicts", "verdicts"]

_PARTS: tuple[Cause, ...] = ("compile", "data loading", "blocking copy", "host late", "launch gap")
"""The parts of a gap. Of equal ones the first is taken."""
_CODES: dict[Cause, int] = {cause: code for code, cause in enumerate(CAUSES)}


class Verdicts(NamedTuple):
    """By gap. `cause`: codes into CAUSES. `host`: codes into `names`, or NOBODY."""

    cause: np.ndarray
    host: np.ndarray


def verdicts(
    columns: Columns, work: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> Verdicts:
    """Judge all gaps from `start_ns` to `end_ns` between the intervals in `work`. The host of a gap
    in which it was not late is what it did when it launched the next work.
    """
    import numpy as np

    calls = ending_calls(columns, work, start_ns, end_ns)
    host = Host(columns, work)
    waits = _waits(columns) & host.all
    cause = np.full(len(start_ns), _CODES["unknown"])
    doing = np.full(len(start_ns), NOBODY)
    for lane, which in _threads(host, calls):
        cause[which], doing[which] = _judged(host, waits, lane, calls.at(which))
    return Verdicts(cause, doing)


def _waits(columns: Columns) -> np.ndarray:
    """Calls and operators that wait for the device, and launches of copies to the host that
    returned after the copy had ended. What brings input waits for no result.
    """
    waits = columns.of_kind("wait")
    waits |= named(columns, columns.of_kind("op"), is_read)
    waits |= named(columns, columns.of_kind("runtime"), is_wait)
    for kind in ("d2h", "h2d"):
        copies = columns.of_kind(kind)
        by = launch_rows(columns, copies)
        held = (by >= 0) & (columns.end_ns[by] >= columns.end_ns[copies] - CLOCKS_NS)
        waits[by[held]] = kind == "d2h"
    return waits


def _threads(host: Host, calls: Calls) -> Iterator[tuple[int, np.ndarray]]:
    """The threads to ask, each with its gaps: the launching ones. One that did nothing most of the
    time had to wait for its turn, as that of a backward pass does: then it is the main thread.
    """
    import numpy as np

    known = calls.row != NOBODY
    lane = np.where(known, host.columns.lane[calls.row], host.main)
    for code in np.unique(lane[known & (lane != host.main)]):
        which = np.flatnonzero(known & (lane == code))
        start_ns, late_ns = calls.start_ns[which], calls.late_ns[which]
        rows = host.on(code, host.all & ~host.steps)
        done_ns = covered_ns(host.columns, rows, start_ns, late_ns)
        lane[which[2 * done_ns < late_ns - start_ns]] = host.main
    for code in np.unique(lane[lane != NOBODY]):
        for kind in (known, ~known):
            which = np.flatnonzero((lane == code) & kind)
            if len(which):
                yield int(code), which


def _judged(
    host: Host, waits: np.ndarray, lane: int, calls: Calls
) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the causes and of what the thread did, for gaps whose calls are all known, or none
    of them.
    """
    import numpy as np

    known = calls.row[0] != NOBODY
    stood = _stood(host, waits, lane, calls)
    parts_ns = _parts_ns(host, waits, lane, calls, stood != NOBODY)
    cause = np.array([_CODES[part] for part in _PARTS])[np.argmax(parts_ns, axis=0)]
    launching = known & (cause == _CODES["launch gap"])
    doing = _doing(host, lane, calls, cause, stood, launching)
    late = cause == _CODES["host late"]
    short = (calls.end_ns - calls.start_ns <= LAUNCH_NS) & host.for_device
    cause[late & short] = _CODES["launch gap"]
    cause[launching & calls.held_up] = _CODES["waiting on a stream"]
    if not known:
        # A thread that waits all the time has launched before, whatever the device waits for.
        waiting = host.on(lane, waits)
        waited_ns = covered_ns(host.columns, waiting, calls.start_ns, calls.end_ns)
        unseen = (doing == NOBODY) | (2 * waited_ns >= calls.end_ns - calls.start_ns)
        cause[late & ~short & unseen] = _CODES["unknown"]
    return cause, doing


def _parts_ns(
    host: Host, waits: np.ndarray, lane: int, calls: Calls, stood: np.ndarray
) -> np.ndarray:
    """How long each of _PARTS is, by gap. Compilations of other threads count if they lie inside
    the gap, since the thread went on when they had ended, and all if no launch is known.
    """
    import numpy as np

    columns = host.columns
    own = columns.lane == lane
    compiles = host.all & columns.of_kind("compile")
    compiles &= own | _inside(columns, compiles, calls) | (calls.row[0] == NOBODY)
    inputs = compiles | (host.inputs & own)
    waited = inputs | _inside(columns, waits & own, calls)
    named_ns = [
        covered_ns(columns, mask, calls.start_ns, calls.late_ns)
        for mask in (compiles, inputs, waited)
    ]
    rest_ns = calls.late_ns - calls.start_ns - named_ns[1]
    waited_ns = np.where(stood, rest_ns, named_ns[2] - named_ns[1])
    begun_ns = calls.end_ns - calls.late_ns
    return np.stack(
        (named_ns[0], named_ns[1] - named_ns[0], waited_ns, rest_ns - waited_ns, begun_ns)
    )


def _inside(columns: Columns, mask: np.ndarray, calls: Calls) -> np.ndarray:
    """Those of the intervals that lie in one gap while the host was late."""
    import numpy as np

    rows = np.flatnonzero(mask)
    gap = np.searchsorted(calls.start_ns, columns.start_ns[rows] + CLOCKS_NS, side="right") - 1
    inside = np.zeros(len(columns), dtype=bool)
    inside[rows] = (gap >= 0) & (columns.end_ns[rows] <= calls.late_ns[gap] + CLOCKS_NS)
    return inside


def _stood(host: Host, waits: np.ndarray, lane: int, calls: Calls) -> np.ndarray:
    """By gap, the row of the wait in which the thread stood when it began, or NOBODY. One that goes
    on when the host was late no more is not why it was.
    """
    import numpy as np

    columns = host.columns
    found = np.full(len(calls.start_ns), NOBODY)
    rows = host.on(lane, waits & (columns.end_ns - columns.start_ns >= CLOCKS_NS))
    if len(rows):
        reach_ns = np.maximum.accumulate(columns.end_ns[rows])
        starts_ns = columns.start_ns[rows]
        last = np.searchsorted(starts_ns, calls.start_ns + CLOCKS_NS, side="right") - 1
        until_ns = np.where(last < 0, -CLOCKS_NS - 1, reach_ns[last])
        stood = (until_ns >= calls.start_ns - CLOCKS_NS) & (until_ns <= calls.late_ns + CLOCKS_NS)
        found[stood] = rows[np.searchsorted(reach_ns, until_ns[stood])]
    return found


def _doing(
    host: Host,
    lane: int,
    calls: Calls,
    cause: np.ndarray,
    stood: np.ndarray,
    launching: np.ndarray,
) -> np.ndarray:
    """Codes of what the thread did while it was late, or, if it was not, when it launched."""
    import numpy as np

    columns = host.columns
    doing = np.full(len(cause), NOBODY)
    moment_ns, index = np.unique(columns.start_ns[calls.row[launching]], return_inverse=True)
    launcher = np.full(len(moment_ns), NOBODY)
    levels = host.levels(lane, moment_ns, moment_ns + 1, host.all)
    tell(columns, levels + host.calls_of(lane), moment_ns, moment_ns + 1, launcher)
    doing[launching] = launcher[index]
    late = ~launching
    doing[late] = _late_doing(host, lane, calls.at(late), cause[late], stood[late])
    return doing


def _late_doing(
    host: Host, lane: int, calls: Calls, cause: np.ndarray, stood: np.ndarray
) -> np.ndarray:
    import numpy as np

    columns, start_ns, late_ns = host.columns, calls.start_ns, calls.late_ns
    doing = np.full(len(cause), NOBODY)
    inputs, loading = host.on(lane, host.inputs), cause == _CODES["data loading"]
    levels = [
        Level(outermost(columns, "compile"), cause == _CODES["compile"], anyway=True),
        Level(inputs[host.annotations[inputs]], loading),
        Level(inputs, loading, anyway=True),
        *host.levels(lane, start_ns, late_ns, ~host.inputs),
    ]
    tell(columns, levels, start_ns, late_ns, doing)
    waited = (doing == NOBODY) & (stood != NOBODY) & (cause == _CODES["blocking copy"])
    doing[waited] = columns.name[stood[waited]]
    steps = [Level(host.on(lane, host.steps), calls.row != NOBODY, anyway=True)]
    tell(columns, host.calls_of(lane) + steps, start_ns, late_ns, doing)
    return doing
