"""The code objects that are profiled, with a number for each of their statements."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.measure.lines.statements import INLINE, Layout, Row, line_at

__all__ = ["Profiled", "Stack"]


class Stack(NamedTuple):
    """Statements under way, by number: `outer` those that wait for a call, each once, the
    innermost first; `top` the innermost, -1 if none of the profiled code runs. `called`: `top`
    waits for a call too, so that its line is certain. `foreign`: Python code that is not profiled
    runs on top. `late`: the tick waited for a long call in C to end, and came at the next call:
    `top` may be the statement behind the one that took the time.
    """

    outer: tuple[int, ...]
    top: int
    called: bool
    foreign: bool = False
    late: bool = False


class Profiled:
    """Numbers the statements of code objects, and reads them off running frames."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.starts: list[int] = []
        self.owners: list[int] = []
        self.base: FrameType | None = None
        """The cell's own frame: it is under way for the whole run, also while it awaits."""
        self.stop_at: CodeType | None = None
        """Where stacks end: perfkit's own call of the measured function."""
        self._lines: dict[int, dict[int, int]] = {}
        self._codes: list[CodeType] = []

    def add(self, layout: Layout) -> None:
        """Number a code's statements, and those of the comprehensions and lambdas in it."""
        if id(layout.code) in self._lines:
            return
        start = len(self.owners)
        self.layouts.append(layout)
        self.starts.append(start)
        self.owners += [len(self.layouts) - 1] * len(layout.rows)
        lines = {line: start + row for line, row in layout.row_of_line.items()}
        if layout.is_function:
            # It is entered on the line of its `def`.
            for line in range(layout.code.co_firstlineno, layout.rows[0].line):
                lines.setdefault(line, start)
        self._know(layout.code, lines)
        for code in inner_code(layout.code):
            self._know(code, {})

    def _know(self, code: CodeType, lines: dict[int, int]) -> None:
        self._lines[id(code)] = lines
        self._codes.append(code)

    def knows(self, code: CodeType) -> bool:
        """Is this code profiled, or part of a statement that is?"""
        return id(code) in self._lines

    def lines_of(self, code: CodeType) -> dict[int, int]:
        """Statement numbers by line; empty for code that is part of a statement, or not known."""
        return self._lines.get(id(code), {})

    def row(self, number: int) -> tuple[Layout, int]:
        """A statement's layout and place in it."""
        owner = self.owners[number]
        return self.layouts[owner], number - self.starts[owner]

    def statement(self, number: int) -> Row:
        """The statement of that number."""
        layout, place = self.row(number)
        return layout.rows[place]

    def numbers(self, owner: int) -> range:
        """All statements of a layout."""
        return range(self.starts[owner], self.starts[owner] + len(self.layouts[owner].rows))

    def last_number(self) -> int | None:
        """The last statement, outside loops, of the code that was added first."""
        if not self.layouts:
            return None
        rows = self.layouts[0].rows
        return next((n for n in reversed(range(len(rows))) if not rows[n].loop), None)

    def read(self, frame: FrameType | None, unknown: Callable[[CodeType], bool]) -> Stack:
        """The statements under way in a frame and those that called it. `unknown` is asked about
        code that is not profiled; it may add it and return True.
        """
        found: list[int] = []
        called = foreign = False
        at_base = self.base is None
        while frame is not None and frame.f_code is not self.stop_at:
            code = frame.f_code
            lines = self._lines.get(id(code))
            if lines is None and unknown(code):
                lines = self._lines.get(id(code))
            if lines:
                number = lines.get(frame.f_lineno or line_at(code, frame.f_lasti), -1)
                if number >= 0:
                    found.append(number)
                if frame is self.base:
                    at_base = True
                    break
            elif not found:
                called = True
                foreign = foreign or lines is None
            frame = frame.f_back
        # Where the event loop is idle, coroutines wait that stand on no stack.
        chain = [*self._waiting(), *found] if called or not found else found
        if not at_base and self.base is not None:
            number = self.lines_of(self.base.f_code).get(self.base.f_lineno or 0, -1)
            chain += [number] if number >= 0 else []
        if not chain:
            return Stack((), -1, True)
        top, *outer = chain
        certain = called or len(chain) > len(found)
        return Stack(tuple(dict.fromkeys(outer)), top, certain, foreign)

    def _waiting(self) -> Iterator[int]:
        """The `await` statements of suspended coroutines, where the event loop is idle."""
        if "asyncio" not in sys.modules:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if asyncio.current_task(loop) is not None:
            return
        for task in asyncio.all_tasks(loop):
            chain = []
            coroutine: Any = task.get_coro()
            while coroutine is not None:
                frame = getattr(coroutine, "cr_frame", None)
                lines = self._lines.get(id(frame.f_code)) if frame is not None else None
                if frame is not None and lines and frame.f_lineno in lines:
                    chain.append(lines[frame.f_lineno])
                coroutine = getattr(coroutine, "cr_await", None)
            yield from reversed(chain)


def inner_code(code: CodeType) -> Iterator[CodeType]:
    """Code objects that are part of this code's statements."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name in INLINE:
            yield constant
            yield from inner_code(constant)
