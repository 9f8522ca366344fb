"""The gaps of a device: when none of its lanes worked, why, and what the host was doing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from perfkit.records.timeline import CAUSES, Cause, CauseShare, Gap
from perfkit.timeline.busy import union_of
from perfkit.timeline.causes import Verdicts, verdicts
from perfkit.timeline.columns import Columns
from perfkit.timeline.steps import steps_in

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Gaps", "find_gaps"]

MOST_SHARES = 12
"""Rows of the table of causes, besides one a cause for all its smaller ones."""
_CAUSES = tuple(CAUSES)
_NUMBER = re.compile(r"#\d+$")


class Gaps(NamedTuple):
    """Gaps of one device. `largest`: longest first. `causes`: of all gaps, by idle time; together
    they are the device's idle time.
    """

    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    largest: tuple[Gap, ...]
    causes: tuple[CauseShare, ...]


def find_gaps(columns: Columns, work: np.ndarray, *, most: int = 50) -> Gaps:
    """The gaps between the intervals in the mask `work`, judged: `most` of them one by one."""
    import numpy as np

    union = union_of(columns, work)
    start_ns, end_ns = union.end_ns[:-1], union.start_ns[1:]
    if not len(start_ns):
        return Gaps(0, (), ())
    found = verdicts(columns, work, start_ns, end_ns)
    longest = np.argsort(start_ns - end_ns, kind="stable")[:most]
    return Gaps(
        count=len(start_ns),
        largest=_records(columns, work, start_ns, end_ns, found, longest),
        causes=_shares(columns, end_ns - start_ns, found),
    )


def _records(
    columns: Columns,
    work: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    found: Verdicts,
    which: np.ndarray,
) -> tuple[Gap, ...]:
    import numpy as np

    rows = np.flatnonzero(work)
    reach_ns = np.maximum.accumulate(columns.end_ns[rows])
    before = rows[np.searchsorted(reach_ns, start_ns[which])]
    after = rows[np.searchsorted(columns.start_ns[rows], end_ns[which])]
    marks = steps_in(columns)
    step = marks.at((start_ns[which] + end_ns[which]) // 2)
    idle_ns = int((end_ns - start_ns).sum())
    return tuple(
        Gap(
            start_s=1e-9 * int(start_ns[gap]),
            duration_s=1e-9 * int(end_ns[gap] - start_ns[gap]),
            cause=_cause(found, gap),
            host=_host(columns, found.host[gap]),
            before=columns.names[columns.name[before[i]]],
            after=columns.names[columns.name[after[i]]],
            share=int(end_ns[gap] - start_ns[gap]) / idle_ns,
            step=marks.numbers[step[i]] if step[i] >= 0 else None,
        )
        for i, gap in enumerate(which)
    )


def _shares(columns: Columns, idle_ns: np.ndarray, found: Verdicts) -> tuple[CauseShare, ...]:
    import numpy as np

    key = found.cause.astype(np.int64) * (len(columns.names) + 1) + found.host + 1
    _, first, index, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    total_ns = np.zeros(len(first), dtype=np.int64)
    np.add.at(total_ns, index, idle_ns)
    table: dict[tuple[Cause, str], tuple[int, int]] = {}
    for gap, ns, count in zip(first, total_ns.tolist(), counts.tolist(), strict=True):
        _add(table, (_cause(found, gap), _host(columns, found.host[gap])), ns, count)
    for small in sorted(table, key=lambda pair: -table[pair][0])[MOST_SHARES:]:
        _add(table, (small[0], ""), *table.pop(small))
    whole_ns = sum(ns for ns, _ in table.values())
    return tuple(
        CauseShare(cause=cause, host=host, idle_s=1e-9 * ns, count=count, share=ns / whole_ns)
        for (cause, host), (ns, count) in sorted(table.items(), key=lambda item: -item[1][0])
    )


def _add(
    table: dict[tuple[Cause, str], tuple[int, int]], key: tuple[Cause, str], ns: int, count: int
) -> None:
    idle_ns, gaps = table.get(key, (0, 0))
    table[key] = idle_ns + ns, gaps + count


def _cause(found: Verdicts, gap: int) -> Cause:
    return _CAUSES[int(found.cause[gap])]


def _host(columns: Columns, code: int) -> str:
    """The name, without the number of the turn: what one does each turn is one doing."""
    return _NUMBER.sub("", columns.names[code]) if code >= 0 else ""
