"""XSpace, the message in an .xplane.pb: planes with lines, and what names their events have.

The format is public (tsl/profiler/protobuf/xplane.proto); only what a timeline needs is decoded,
and the events, of which there may be millions, in `xevents`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from perfkit.timeline.wire import FIXED32, FIXED64, PART, VARINT, Damaged, Part, fields, varint

__all__ = ["Line", "Plane", "planes_of"]

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


def planes_of(data: bytes) -> Iterator[Plane]:
    """The planes. Raises Damaged where the data are none."""
    for number, value in fields(data, Part(0, len(data))):
        if number == 1:
            yield Plane(data, _part(value))


def _behind(data: bytes, at: int) -> int:
    """The position behind the field at `at`."""
    tag, at = varint(data, at)
    if tag & 7 == VARINT:
        return varint(data, at)[1]
    if tag & 7 == PART:
        size, at = varint(data, at)
        return at + size
    if tag & 7 in (FIXED64, FIXED32):
        return at + (8 if tag & 7 == FIXED64 else 4)
    raise Damaged(f"there is no wire type {tag & 7}, as at byte {at}")


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
