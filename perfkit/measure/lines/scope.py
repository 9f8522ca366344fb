"""What is profiled in one run: targets by name, the cell, and what they call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from perfkit.errors import UsageError
from perfkit.measure.lines import targets
from perfkit.measure.lines.events import LOCAL, LineEvents
from perfkit.measure.lines.profiled import Profiled, inner_code
from perfkit.measure.lines.statements import Sources

__all__ = ["Cell", "Scope"]


class Cell(NamedTuple):
    """A body that is profiled itself. `code`: None where it is the frame that runs the loop;
    `text`: its lines as typed; `skip`: statements at the front that are ours. `shown`: are its
    own lines rows too?
    """

    names: Mapping[str, Any]
    text: list[str] | None = None
    code: CodeType | None = None
    skip: int = 0
    shown: bool = True


class Scope:
    """The profiled code of one run. `find`: also the user's own functions that it calls."""

    def __init__(self, find: bool) -> None:
        self.profiled, self.events = Profiled(), LineEvents()
        self.notes: dict[str, None] = {}
        self.has_base = False
        """Is the first layout the body itself?"""
        self._find = find
        self._sources = Sources()
        self._functions: list[FunctionType] = []

    def note(self, text: str) -> None:
        """Say it once in the report."""
        self.notes[text] = None

    # -- what is named -------------------------------------------------------------------------

    def name(self, wanted: Sequence[tuple[str, Any]]) -> None:
        """Profile these (words for people, target) when the run is prepared.

        Raises UsageError in one line for one that has no lines to show.
        """
        for words, target in wanted:
            functions, notes = targets.unwrap(target, words)
            for note in notes:
                self.note(note)
            self._check(words, functions)
            self._functions += functions

    def _check(self, words: str, functions: Sequence[FunctionType]) -> None:
        if any(self._sources.layout(function.__code__) for function in functions):
            return
        if functions and functions[0].__name__ == "<lambda>":
            raise UsageError(
                f"{words}: a lambda is part of the statement that it stands in: profile the "
                "function around it, or write it with def"
            )
        if functions and all(self._sources.is_empty(each.__code__) for each in functions):
            raise UsageError(f"{words}: there is nothing to run in it: profile what has statements")
        raise UsageError(
            f"{words}: its source is not to be found (made by exec, or its file has changed): "
            "define it in a cell or a file"
        )

    def name_body(self, body: Callable[..., object]) -> None:
        """Profile the function that is run. A lambda or a method brings what it calls."""
        words = getattr(body, "__qualname__", None) or type(body).__name__
        if isinstance(body, FunctionType) and body.__name__ == "<lambda>":
            self._functions += targets.called_by(body.__code__, targets.scope_of(body))
            return
        wanted: list[tuple[str, Any]] = [(words, body)]
        if isinstance(body, MethodType):
            owner = body.__self__ if isinstance(body.__self__, type) else type(body.__self__)
            self._functions += targets.own_methods(owner)
        elif targets.is_object_with_call(body):
            wanted = [(type(body).__name__, type(body))]
        self.name(wanted)
        self.has_base = isinstance(body, FunctionType) and self._functions[0] is body

    # -- when the run begins -------------------------------------------------------------------

    def prepare(self, cell: Cell | None, frame: FrameType) -> None:
        """Number the statements of all that is profiled; the cell's come first."""
        if cell is not None:
            self._add_cell(cell, frame)
        for function in self._functions:
            self.add(function.__code__)
        if self._find:
            for function in self._functions:
                self._add_called(function.__code__, targets.scope_of(function))

    def _add_cell(self, cell: Cell, frame: FrameType) -> None:
        code = cell.code or frame.f_code
        if cell.shown:
            layout = self._sources.cell("<cell>", code, cell.text, cell.skip)
            if layout is None:
                self.note("the cell's own lines cannot be shown: its source is not to be found")
            else:
                self.profiled.add(layout)
                self._register(code)
                self.has_base = True
                if cell.code is None:
                    self.profiled.base = frame
        if self._find:
            # What the cell defines anew is not what bears that name now.
            anew = {each.co_name for each in code.co_consts if isinstance(each, CodeType)}
            names = {name: value for name, value in cell.names.items() if name not in anew}
            self._add_called(code, names)

    def _add_called(self, code: CodeType, names: Mapping[str, Any]) -> None:
        for each in targets.defined_in(code):
            self.add(each)
        for function in targets.called_by(code, names):
            self.add(function.__code__)
            for each in targets.defined_in(function.__code__):
                self.add(each)

    def add(self, code: CodeType) -> bool:
        """Profile a function's code. False if its source cannot be shown."""
        if self.profiled.knows(code):
            return True
        layout = self._sources.layout(code)
        if layout is None:
            return False
        self.profiled.add(layout)
        self._register(code)
        return True

    def discover(self, code: CodeType) -> bool:
        """A tick met code that is not known: the user's own is profiled from here on."""
        return self._find and targets.is_own(code) and self.add(code)

    def _register(self, code: CodeType) -> None:
        if not self.events.add(code):
            self.note(
                f"{code.co_qualname} has the same bytecode on the same lines as another function: "
                "its hits are not counted"
            )
        if not LOCAL:
            # A comprehension is a function there: unregistered, its events would not be counted.
            for inner in inner_code(code):
                self.events.add(inner)
