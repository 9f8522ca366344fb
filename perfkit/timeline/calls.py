"""The calls that ended a device's gaps: when they came, and whether their work was held up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perfkit.timeline.columns import Columns
from perfkit.timeline.doing import NOBODY, spread
from perfkit.timeline.launches import launch_rows

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CLOCKS_NS", "LAUNCH_NS", "Calls", "ending_calls"]

CLOCKS_NS = 10_000
"""Clocks of host and device differ by microseconds."""
LAUNCH_NS = 20_000
"""What a launch may take: on idle V100s and A100s, under a profiler, work begins 7 to 20 µs after
the call that launches it (median and 99th percentile of two training runs)."""
ENOUGH, SLOW, SLOWEST_NS = 10, 3, 200_000
"""Where even the fastest of ENOUGH launches take longer, as on a device that is a thread, up to
SLOW times as long is a launch still, but no more than SLOWEST_NS."""


class Calls(NamedTuple):
    """By gap: when it began and ended, and the row of the call that launched what ended it.

    `row`: NOBODY where it is not known. `late_ns`: up to then the host was late; the start of the
    call within the gap, or the end of the gap. `held_up`: the work began much later than launches
    take.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    row: np.ndarray
    late_ns: np.ndarray
    held_up: np.ndarray

    def at(self, which: np.ndarray) -> Calls:
        """Some of the gaps."""
        return Calls(*(column[which] for column in self))


def ending_calls(
    columns: Columns, work: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> Calls:
    """The calls that ended the gaps from `start_ns` to `end_ns` between the intervals in `work`."""
    import numpy as np

    row = _first_launches(columns, work, end_ns)
    known = row != NOBODY
    called_ns = np.where(known, columns.start_ns[row], end_ns)
    returned_ns = np.where(known, columns.end_ns[row], end_ns)
    late_ns = np.clip(called_ns, start_ns, end_ns)
    taken_ns = (end_ns - called_ns)[known & (called_ns > start_ns)]
    fastest_ns = np.percentile(taken_ns, 10) if len(taken_ns) >= ENOUGH else 0
    usual_ns = np.clip(SLOW * fastest_ns, LAUNCH_NS, SLOWEST_NS)
    held_up = end_ns - np.maximum(start_ns, returned_ns) > usual_ns
    return Calls(start_ns, end_ns, row, late_ns, held_up)


def _first_launches(columns: Columns, work: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Of what began at about the end of a gap it is the first call: what that launched can have
    waited for nothing that was launched later.
    """
    import numpy as np

    rows = np.flatnonzero(work)
    begins_ns = columns.start_ns[rows]
    first = np.searchsorted(begins_ns, end_ns)
    gap, at = spread(first, np.searchsorted(begins_ns, end_ns + CLOCKS_NS))
    began = np.zeros(len(columns), dtype=bool)
    began[rows[at]] = True
    launched = np.full(len(columns), NOBODY)
    launched[began] = launch_rows(columns, began)
    by = launched[rows[at]]
    gap, by = gap[by != NOBODY], by[by != NOBODY]
    # Rows are in order of time. Where an index repeats, the last value stays.
    order = np.argsort(-by)
    found = np.full(len(end_ns), NOBODY)
    found[gap[order]] = by[order]
    return found
