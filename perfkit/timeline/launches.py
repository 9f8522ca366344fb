"""Which call of the host launched which work, how long that took, and how far ahead it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.records.timeline import Launches
from perfkit.timeline.columns import NO_LINK, Columns

if TYPE_CHECKING:
    import numpy as np

__all__ = ["is_waited_for", "launch_rows", "launches_of"]

CALLS = ("runtime", "wait")
SKEW_NS = 10_000
"""So far the clocks of host and device may be apart."""


def launch_rows(columns: Columns, work: np.ndarray) -> np.ndarray:
    """For each interval in `work`, the row of the call that launched it; -1 where none is known.

    Where a link stands on several calls, it is the last that began before the work did, since ids
    are used again; where all began later, the first.
    """
    import numpy as np

    rows = np.flatnonzero(work)
    calls = np.flatnonzero(columns.of_kind(*CALLS) & (columns.link != NO_LINK))
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    # One key for link and time (rows are in order of time), so that one search finds the call.
    _, code = np.unique(columns.link, return_inverse=True)
    calls = calls[np.argsort(code[calls] * len(columns) + calls)]
    keys = code[calls] * len(columns) + calls
    last = np.searchsorted(columns.start_ns, columns.start_ns[rows] + SKEW_NS, side="right") - 1
    before = np.searchsorted(keys, code[rows] * len(columns) + last, side="right") - 1
    behind = np.minimum(before + 1, len(calls) - 1)
    links = columns.link[rows]
    known = links != NO_LINK
    is_before = known & (before >= 0) & (columns.link[calls[np.maximum(before, 0)]] == links)
    is_behind = known & (columns.link[calls[behind]] == links)
    return np.where(is_before, calls[np.maximum(before, 0)], np.where(is_behind, calls[behind], -1))


def launches_of(columns: Columns, work: np.ndarray) -> Launches | None:
    """Launches of the work; None if the trace links none of it to a call."""
    import numpy as np

    by = launch_rows(columns, work)
    linked = by >= 0
    if not linked.any():
        return None
    launched_ns = columns.start_ns[by[linked]]
    started_ns = columns.start_ns[work][linked]
    # Two clocks may be apart by microseconds: work does not start before it is launched.
    latency_s = 1e-9 * np.maximum(started_ns - launched_ns, 0)
    launched_ns, started_ns = np.sort(launched_ns), np.sort(started_ns)
    ahead = np.arange(len(launched_ns)) - np.searchsorted(started_ns, launched_ns, side="right")
    depth = np.maximum(ahead, 0)
    return Launches(
        count=int(linked.sum()),
        latency_median_s=float(np.median(latency_s)),
        latency_p99_s=float(np.percentile(latency_s, 99)),
        depth_median=int(np.median(depth)),
        depth_max=int(depth.max()),
    )


def is_waited_for(columns: Columns, work: np.ndarray) -> np.ndarray:
    """For each interval in `work`: did the host wait for it?

    It did if the launching thread's next call of the runtime waits, if the launching call itself
    does, or if the copy's memory is pageable, for which a copy is never asynchronous (CUDA
    documentation, "API synchronization behavior").
    """
    import numpy as np

    by = launch_rows(columns, work)
    calls = np.flatnonzero(columns.of_kind(*CALLS))
    waits = columns.of_kind("wait")
    waited = np.zeros(len(by), dtype=bool)
    for lane in np.unique(columns.lane[calls]):
        own = calls[columns.lane[calls] == lane]
        at = np.flatnonzero((by >= 0) & (columns.lane[np.maximum(by, 0)] == lane))
        following = np.searchsorted(own, by[at], side="right")
        known = following < len(own)
        waited[at[known]] = waits[own[following[known]]]
        waited[at] |= waits[by[at]]
    pageable = np.array(["pageable" in name.lower() for name in columns.names], dtype=bool)
    result: np.ndarray = waited | pageable[columns.name[work]]
    return result
