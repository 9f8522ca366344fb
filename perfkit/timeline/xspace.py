"""XSpace, the message in an .xplane.pb: planes of lines of events, with their stats.

The format is public (tsl/profiler/protobuf/xplane.proto); only what a timeline needs is decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from perfkit.timeline.wire import PART, VARINT, Damaged, Part, Wire, fields, varint

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Events", "Line", "Plane", "Stat", "events_of", "planes_of"]

BATCH = 1 << 16
"""Events that are decoded at once, so that what is needed for it stays in the cache."""
MOST_PS = 4 * 10**18
"""46 days: more is no offset or duration of a trace, and two of them fit into an int64."""
MOST_NS = 4 * 10**18
"""The year 2096."""
_EVENT = 4 << 3 | PART

Value = int | str | Part


class Line(NamedTuple):
    """A timeline: `begin` and `stop` say where its events lie."""

    number: int
    name: str
    timestamp_ns: int
    begin: array[int]
    stop: array[int]


class Plane:
    """A device, or the host. `names`: of events, by the number of their metadata. `stat_names`: by
    number, also texts that stats refer to. `constants`: stats that all events of a number have.
    """

    def __init__(self, data: bytes, part: Part) -> None:
        self._data = data
        self.name = ""
        self.lines: list[Line] = []
        self.names: dict[int, str] = {}
        self.stat_names: dict[int, str] = {}
        self._constants: dict[int, list[Part]] = {}
        self._stats: list[Part] = []
        for number, value in fields(data, part):
            if number == 2:
                self.name = self._text(value)
            elif number == 3:
                self.lines.append(self._line(_part(value)))
            elif number == 4:
                self._add_metadata(_part(value))
            elif number == 5:
                self._add_stat_metadata(_part(value))
            elif number == 6:
                self._stats.append(_part(value))

    @property
    def stats(self) -> dict[str, Value]:
        """The plane's own stats by name."""
        return self._values(self._stats)

    def constants(self, metadata: int) -> dict[str, Value]:
        """The stats of all events whose metadata have this number."""
        return self._values(self._constants.get(metadata, []))

    def _values(self, parts: list[Part]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for part in parts:
            name: str = ""
            content: Value | None = None
            for number, value in fields(self._data, part):
                if number == 1:
                    name = self.stat_names.get(_number(value), "")
                elif number == 5:
                    content = self._text(value)
                elif number == 7:
                    content = self.stat_names.get(_number(value), "")
                elif number in (3, 4, 6):
                    content = value
            if name and content is not None:
                found[name] = content
        return found

    def _add_metadata(self, entry: Part) -> None:
        key, content = self._entry(entry)
        name = shown = ""
        constants = []
        for number, value in fields(self._data, content):
            if number == 2:
                name = self._text(value)
            elif number == 4:
                shown = self._text(value)
            elif number == 5:
                constants.append(_part(value))
        self.names[key] = shown or name
        if constants:
            self._constants[key] = constants

    def _add_stat_metadata(self, entry: Part) -> None:
        key, content = self._entry(entry)
        for number, value in fields(self._data, content):
            if number == 2:
                self.stat_names[key] = self._text(value)

    def _entry(self, entry: Part) -> tuple[int, Part]:
        """Key and value of an entry of a map."""
        key, content = 0, Part(0, 0)
        for number, value in fields(self._data, entry):
            if number == 1:
                key = _signed(_number(value))
            elif number == 2:
                content = _part(value)
        return key, content

    def _line(self, part: Part) -> Line:
        data, (at, stop) = self._data, part
        begins, stops = array("q"), array("q")
        begun, ended = begins.append, stops.append
        other: list[Part] = []
        try:
            while at < stop:
                if data[at] != _EVENT:
                    begin, at = at, _behind(data, at)
                    other.append(Part(begin, at))
                    continue
                size = data[at + 1]
                at += 2
                if size >= 0x80:
                    size, at = varint(data, at - 1)
                begun(at)
                at += size
                ended(at)
        except IndexError:
            at = stop + 1
        if at > stop:
            raise Damaged(f"a line ends in the middle of an event at byte {stop}")
        number, name, timestamp_ns = 0, "", 0
        for one in other:
            for field, value in fields(data, one):
                if field == 1:
                    number = _number(value)
                elif (field == 2 and not name) or field == 11:
                    name = self._text(value) or name
                elif field == 3:
                    timestamp_ns = _signed(_number(value))
        return Line(number, name, timestamp_ns, begins, stops)

    def text(self, begin: int, stop: int) -> str:
        """The text that lies there."""
        return self._data[begin:stop].decode(errors="replace")

    def _text(self, value: int | Part) -> str:
        return self.text(*_part(value))


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


def planes_of(data: bytes) -> Iterator[Plane]:
    """The planes. Raises Damaged where the data are none."""
    for number, value in fields(data, Part(0, len(data))):
        if number == 1:
            yield Plane(data, _part(value))


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


def _behind(data: bytes, at: int) -> int:
    """The position behind the field at `at`."""
    tag, at = varint(data, at)
    if tag & 7 == VARINT:
        return varint(data, at)[1]
    if tag & 7 == PART:
        size, at = varint(data, at)
        return at + size
    if tag & 7 in (1, 5):
        return at + (8 if tag & 7 == 1 else 4)
    raise Damaged(f"there is no wire type {tag & 7}, as at byte {at}")


def _expect(wire: np.ndarray, wanted: int) -> None:
    if (wire != wanted).any():
        raise Damaged("an event has a field of the wrong type")


def _part(value: int | Part) -> Part:
    if isinstance(value, int):
        raise Damaged(f"{value} stands where a text or a message should")
    return value


def _number(value: int | Part) -> int:
    if isinstance(value, Part):
        raise Damaged(f"a text stands where a number should, at byte {value.begin}")
    return value


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _joined(arrays: list[array[int]]) -> np.ndarray:
    import numpy as np

    return np.concatenate([np.zeros(0, np.int64), *map(np.asarray, arrays)])


def _join(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    import numpy as np

    joined: np.ndarray = np.concatenate(arrays)
    return joined
