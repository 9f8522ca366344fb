"""How often a statement over several lines ran, from the line events on each of its lines.

Control may come to a line many times in one run of a statement: a call returns to its first line,
a comprehension turns between two. What holds for every run is that control leaves each piece of
bytecode as often as it comes to it, and that an event happens wherever it crosses to another line.
These are linear equations for how often it took each way; they are solved for the ways in.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import CodeType

__all__ = ["Flow"]

_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ENDS = {
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_FORWARD",
    "RAISE_VARARGS",
    "RERAISE",
    "RETURN_CONST",
    "RETURN_VALUE",
}
_LOOPS_TELL = sys.version_info < (3, 12)
"""Before Python 3.12 a jump back is an event, even on one line."""
Way = tuple[int, int]
"""From a piece of bytecode to another, by number; -1 is outside the statement."""


class Flow:
    """The ways that control can take through one code object without an error."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    @cached_property
    def _instructions(self) -> list[dis.Instruction]:
        return list(dis.get_instructions(self._code))

    @cached_property
    def _lines(self) -> list[int]:
        """The line of each instruction; one without a line has that of the one before."""
        lines, line = [], self._code.co_firstlineno
        for each in self._instructions:
            line = (each.positions.lineno if each.positions else None) or line
            lines.append(line)
        return lines

    @cached_property
    def _loop_ends(self) -> list[int]:
        return [p for p, each in enumerate(self._instructions) if each.opname == "END_ASYNC_FOR"]

    @cached_property
    def _next(self) -> dict[int, tuple[int, ...]]:
        """Where control can go from each instruction that it can come to, by place."""
        places = {each.offset: place for place, each in enumerate(self._instructions)}
        found: dict[int, tuple[int, ...]] = {}
        # What an error leads to is code as well; how often is not known, and mostly never.
        handlers = getattr(dis.Bytecode(self._code), "exception_entries", ())
        waiting = [0, *(places[each.target] for each in handlers if each.target in places)]
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            each = self._instructions[place]
            ways = []
            if each.opname not in _ENDS and place + 1 < len(self._instructions):
                ways.append(place + 1)
            if each.opcode in _JUMPS and each.argval in places:
                ways.append(places[each.argval])
            if each.opname == "GET_ANEXT":
                # An asynchronous loop ends by an error that it catches itself.
                ways += [p for p in self._loop_ends if p > place][:1]
            found[place] = tuple(ways)
            waiting += ways
        return found

    def runs(
        self, first: int, last: int, events: Mapping[int, int], only_first: bool = False
    ) -> int | None:
        """How often control came into lines `first` to `last`; None if the events do not say, or
        contradict the ways (an error left the statement in the middle). `only_first`: count the
        way to its first instruction alone.
        """
        inside = [p for p in sorted(self._next) if first <= self._lines[p] <= last]
        if not inside:
            return None
        piece_of = self._pieces(inside)
        ways = self._ways(piece_of)
        begin = piece_of[inside[0]]
        wanted = [float(a == -1 and (b == begin or not only_first)) for a, b in ways]
        equations, values = [], []
        for number in set(piece_of.values()):
            equations.append([float(b == number) - float(a == number) for a, b in ways])
            values.append(0.0)
        for line in range(first, last + 1):
            equations.append([float(line in told) for told in ways.values()])
            values.append(float(events.get(line, 0)))
        return _solve(equations, values, wanted)

    def first_line(self, first: int, last: int) -> int:
        """The first line that is entered once in each run, as far as can be told."""
        inside = [p for p in sorted(self._next) if first <= self._lines[p] <= last]
        starts = [
            self._lines[p]
            for p in inside
            if p - 1 not in self._next or self._lines[p] != self._lines[p - 1]
        ]
        return next((line for line in starts if starts.count(line) == 1), first)

    def _pieces(self, inside: Sequence[int]) -> dict[int, int]:
        """Numbers stretches of instructions on one line that control takes whole."""
        targets = {way for place, ways in self._next.items() for way in ways if way != place + 1}
        pieces: dict[int, int] = {}
        number = -1
        before = -2
        for place in inside:
            new = (
                place != before + 1
                or place in targets
                or self._lines[place] != self._lines[before]
                or self._next[before] != (place,)
            )
            number += new
            pieces[place] = number
            before = place
        return pieces

    def _ways(self, piece_of: Mapping[int, int]) -> dict[Way, set[int]]:
        """All ways in, through and out, each with the line that it makes an event on."""
        found: dict[Way, set[int]] = {}
        if 0 in piece_of:
            found[-1, piece_of[0]] = {self._lines[0]}
        for place, following in self._next.items():
            if not following and place in piece_of:
                found.setdefault((piece_of[place], -1), set())
            for way in following:
                a, b = piece_of.get(place, -1), piece_of.get(way, -1)
                if a == b == -1 or (a == b and way == place + 1):
                    continue
                told = found.setdefault((a, b), set())
                crosses = self._lines[place] != self._lines[way]
                if b >= 0 and (crosses or (_LOOPS_TELL and way <= place)):
                    told.add(self._lines[way])
        return found


def _solve(equations: list[list[float]], values: list[float], wanted: list[float]) -> int | None:
    import numpy as np

    matrix, right, want = np.array(equations), np.array(values), np.array(wanted)
    solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
    if np.abs(matrix @ solution - right).max() > 1e-6 * (1 + np.abs(right).max()):
        return None
    mix = np.linalg.lstsq(matrix.T, want, rcond=None)[0]
    if np.abs(matrix.T @ mix - want).max() > 1e-6:
        return None
    return round(float(want @ solution))
