"""The events of an .xplane.pb's planes, decoded many at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from perfkit.timeline.wire import PART, VARINT, Damaged, Wire
from perfkit.timeline.xspace import Plane

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Events", "Stat", "events_of"]

BATCH = 1 << 16
"""Events that are decoded at once, so that what is needed for it stays in the cache."""
MOST_PS = 4 * 10**18
"""46 days: more is no offset or duration of a trace, and two of them fit into an int64."""
MOST_NS = 4 * 10**18
"""The year 2096."""


class Stat(NamedTuple):
    """One stat of some events. `row`: of which. `value`: int64. `begin`, `stop`: where its text is;
    equal where it has none of its own. `refers`: `value` is the number of a name.
    """

    row: np.ndarray
    value: np.ndarray
    begin: np.ndarray
    stop: np.ndarray
    refers: np.ndarray


class Events(NamedTuple):
    """The events of a plane in the order of the file. `line`: index into its lines. `metadata`: the
    number of its metadata. `good`: which have times that can be; `whole`: which are one occurrence
    each, and no sum of them. `stats`: by name, those that were asked for.
    """

    line: np.ndarray
    metadata: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    good: np.ndarray
    whole: np.ndarray
    stats: dict[str, Stat]


def events_of(wire: Wire, plane: Plane, wanted: frozenset[str]) -> Events:
    """Decode the events of a plane, with the stats named `wanted`. Raises Damaged."""
    import numpy as np

    begin = _joined([line.begin for line in plane.lines])
    stop = _joined([line.stop for line in plane.lines])
    count = len(begin)
    line = np.repeat(np.arange(len(plane.lines)), [len(one.begin) for one in plane.lines])
    columns = np.zeros((4, count), dtype=np.int64)  # metadata, offset, duration, occurrences
    ids = {number: name for number, name in plane.stat_names.items() if name in wanted}
    stats: dict[str, list[Stat]] = {name: [] for name in wanted}
    for at in range(0, count, BATCH):
        behind = min(at + BATCH, count)
        parts = _decode(wire, begin[at:behind], stop[at:behind], columns[:, at:behind])
        for number, stat in _stats(wire, *parts, np.array(list(ids), dtype=np.int64)):
            stats[ids[number]].append(stat._replace(row=stat.row + at))
    metadata, offset_ps, duration_ps, occurrences = columns
    base_ns = np.array([one.timestamp_ns for one in plane.lines], dtype=np.int64)[line]
    good = (offset_ps >= 0) & (offset_ps <= MOST_PS) & (duration_ps >= 0)
    good &= (duration_ps <= MOST_PS) & (np.abs(base_ns) <= MOST_NS)
    base_ns[~good] = offset_ps[~good] = duration_ps[~good] = 0
    return Events(
        line=line,
        metadata=metadata,
        start_ns=base_ns + offset_ps // 1000,
        end_ns=base_ns + (offset_ps + duration_ps) // 1000,
        good=good,
        whole=occurrences == 0,
        stats={
            name: Stat(*map(_join, zip(*own, strict=True))) for name, own in stats.items() if own
        },
    )


def _decode(
    wire: Wire, begin: np.ndarray, stop: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fill in the columns of some events; of which events the stats are, and where they lie."""
    import numpy as np

    rows, begins, stops = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0, int)]
    for found in wire.fields(begin, stop):
        for number, column in zip((1, 2, 3, 5), columns, strict=True):
            which = found.number == number
            if which.any():
                _expect(found.wire[which], VARINT)
                column[found.message[which]] = found.value[which].view(np.int64)
        which = found.number == 4
        if which.any():
            _expect(found.wire[which], PART)
            rows.append(found.message[which])
            begins.append(found.begin[which])
            stops.append(found.stop[which])
    return np.concatenate(rows), np.concatenate(begins), np.concatenate(stops)


def _stats(
    wire: Wire, row: np.ndarray, begin: np.ndarray, stop: np.ndarray, wanted: np.ndarray
) -> Iterator[tuple[int, Stat]]:
    """The stats of these numbers, decoded."""
    import numpy as np

    if not len(wanted):
        return
    name, value, first, behind = np.zeros((4, len(row)), dtype=np.int64)
    refers = np.zeros(len(row), dtype=bool)
    for found in wire.fields(begin, stop):
        at = found.message
        which = found.number == 1
        name[at[which]] = found.value[which].view(np.int64)
        which = ~which & (found.wire == VARINT)
        value[at[which]] = found.value[which].view(np.int64)
        refers[at[which]] = found.number[which] == 7
        which = found.wire == PART
        first[at[which]], behind[at[which]] = found.begin[which], found.stop[which]
    kept = np.isin(name, wanted)
    for number in np.unique(name[kept]):
        which = name == number
        columns = (column[which] for column in (row, value, first, behind, refers))
        yield int(number), Stat(*columns)


def _expect(wire: np.ndarray, wanted: int) -> None:
    if (wire != wanted).any():
        raise Damaged("an event has a field of the wrong type")


def _joined(arrays: list[array[int]]) -> np.ndarray:
    import numpy as np

    return np.concatenate([np.zeros(0, np.int64), *map(np.asarray, arrays)])


def _join(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    import numpy as np

    joined: np.ndarray = np.concatenate(arrays)
    return joined
