"""A code object's statements: which physical lines are one row, and which loop a row lies in."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import NamedTuple

from perfkit.measure.lines.events import LOCAL
from perfkit.measure.lines.flow import Flow

__all__ = ["INLINE", "Layout", "Row", "Sources", "line_at"]

INLINE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
"""Names of code objects that belong to the statement they stand in."""


class Row(NamedTuple):
    """One statement, a compound one without its body. `loop`: line of the innermost loop around
    it (a loop's header lies in its own loop), 0 outside; `once`: at the top level of the code,
    outside any branch; `whole`: it stands on its lines with all of its body.
    """

    line: int
    end_line: int
    loop: int
    once: bool
    column: int
    kind: type[ast.AST]
    whole: bool = False


class Layout:
    """The statements of one code object. `rows` are in source order; `loops` maps the line of a
    loop's header to its last line and to the line of the loop around it.
    """

    def __init__(
        self,
        name: str,
        code: CodeType,
        body: Sequence[ast.stmt],
        text: list[str],
        is_function: bool = True,
    ) -> None:
        self.name, self.code, self._text, self.is_function = name, code, text, is_function
        self.rows: list[Row] = []
        self.loops: dict[int, tuple[int, int]] = {}
        self._walk(body, 0, True)
        self.row_of_line = {
            line: number
            for number, row in enumerate(self.rows)
            for line in range(row.line, row.end_line + 1)
        }

    def _walk(self, body: Sequence[ast.stmt], loop: int, once: bool) -> None:
        for node in body:
            if _has_no_code(node):
                continue
            first, last = _header(node)
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                self.loops[first] = (node.end_lineno or last, loop)
                self._add(node, first, last, first, False)
                self._walk(node.body, first, False)
                self._walk(node.orelse, loop, False)
                continue
            self._add(node, first, last, loop, once)
            for inner in _bodies(node):
                if isinstance(inner, ast.ExceptHandler | ast.match_case):
                    self._add(inner, *_header(inner), loop, False)
                    self._walk(inner.body, loop, False)
                else:
                    self._walk([inner], loop, once and isinstance(node, ast.With | ast.AsyncWith))

    def _add(self, node: ast.AST, first: int, last: int, loop: int, once: bool) -> None:
        if self.rows and first <= self.rows[-1].end_line:
            # `if x: y = 1` and `a; b`: one line is one row, since events know lines alone.
            row = self.rows[-1]
            self.rows[-1] = row._replace(end_line=max(last, row.end_line), whole=True)
        else:
            self.rows.append(
                Row(first, last, loop, once, getattr(node, "col_offset", 0), type(node))
            )

    def source(self, row: Row) -> str:
        """The row's text, moved left as far as the whole code allows."""
        return "\n".join(self._shifted[row.line - self._first : row.end_line - self._first + 1])

    @cached_property
    def _first(self) -> int:
        return min((row.line for row in self.rows), default=1)

    @cached_property
    def _shifted(self) -> list[str]:
        last = max((row.end_line for row in self.rows), default=0)
        lines = [line.rstrip("\n") for line in self._text[self._first - 1 : last]]
        return textwrap.dedent("\n".join(lines).expandtabs(8)).split("\n")

    def loops_around(self, row: Row) -> Iterator[int]:
        """Header lines of the loops around a row, the innermost first."""
        loop = row.loop
        while loop:
            yield loop
            loop = self.loops[loop][1]

    def hits(self, row: Row, events: Mapping[int, int]) -> int:
        """How often a statement ran, from the line events on each of its physical lines."""
        seen = [events[line] for line in range(row.line, row.end_line + 1) if events.get(line)]
        if not seen:
            return 0
        is_with = row.kind in (ast.With, ast.AsyncWith) and not row.whole
        if row.line == row.end_line:
            return self._entered(row, events) if is_with else seen[0]
        runs = self._flow.runs(row.line, row.end_line, events, only_first=is_with)
        if runs is not None and runs >= 0:
            return runs
        if is_with:
            return (min(seen) + 1) // 2
        # An error left it in the middle, or the ways are too many: what control came to first.
        return events.get(self._flow.first_line(row.line, row.end_line), min(seen))

    def hides_turns(self, row: Row) -> bool:
        """Is it a loop on one line, whose turns make no events of their own?"""
        loops: tuple[type[ast.AST], ...] = (ast.For, ast.AsyncFor, ast.While)
        if not LOCAL:
            loops = (ast.While,)
        return row.whole and row.kind in loops

    def _entered(self, row: Row, events: Mapping[int, int]) -> int:
        """A `with` is passed on the way out as well, if its body was reached."""
        place = self.rows.index(row) + 1
        inside = self.rows[place] if place < len(self.rows) else row
        if inside.column > row.column and inside.loop == row.loop and inside.kind in _PLAIN:
            return max(1, events[row.line] - self.hits(inside, events))
        return (events[row.line] + 1) // 2

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.code)


_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass, ast.Return)


def _header(node: ast.AST) -> tuple[int, int]:
    """First and last line of a statement, of a compound one without its body."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return first, max(first, node.body[0].lineno - 1 if _apart(node) else node.lineno)
        case ast.If() | ast.While():
            return node.lineno, node.test.end_lineno or node.lineno
        case ast.For() | ast.AsyncFor():
            return node.lineno, node.iter.end_lineno or node.lineno
        case ast.With() | ast.AsyncWith():
            last = node.items[-1]
            end = last.optional_vars or last.context_expr
            return node.lineno, end.end_lineno or node.lineno
        case ast.Match():
            return node.lineno, node.subject.end_lineno or node.lineno
        case ast.Try() | ast.TryStar():
            return node.lineno, node.lineno
        case ast.ExceptHandler():
            end_line = node.type.end_lineno if node.type else None
            return node.lineno, end_line or node.lineno
        case ast.match_case():
            return node.pattern.lineno, (node.guard or node.pattern).end_lineno or 0
        case ast.stmt():
            return node.lineno, node.end_lineno or node.lineno
    raise TypeError(node)


def _has_no_code(node: ast.stmt) -> bool:
    """Docstrings and declarations leave nothing to run."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Global() | ast.Nonlocal():
            return True
        case ast.AnnAssign(value=None):
            return True
    return False


def _apart(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return node.body[0].lineno > node.lineno


def _bodies(node: ast.stmt) -> Iterator[ast.stmt | ast.ExceptHandler | ast.match_case]:
    """What stands inside a compound statement and runs in the same code object."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        yield from getattr(node, part, [])


class Sources:
    """Finds the layout of code objects; parses each file once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[str], dict[tuple[int, str], ast.AST], ast.Module]] = {}

    def layout(self, code: CodeType) -> Layout | None:
        """The statements of a function's code, None where its source is not to be found, or is
        not the one that the code was made from.
        """
        try:
            text, functions, _ = self._file(code.co_filename)
        except (SyntaxError, ValueError):
            return None
        node = functions.get((code.co_firstlineno, code.co_name))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        layout = Layout(code.co_qualname, code, node.body, text)
        lines = {line for _, _, line in code.co_lines() if line}
        own = lines - {code.co_firstlineno, node.lineno}
        return layout if layout.rows and own <= set(layout.row_of_line) | _signature(node) else None

    def cell(
        self, name: str, code: CodeType, shown: list[str] | None, skip: int = 0
    ) -> Layout | None:
        """The statements of a cell's code, less the first `skip`; `shown` is its text as typed."""
        try:
            text, _, module = self._file(code.co_filename)
        except (SyntaxError, ValueError):
            return None
        if shown is None or len(shown) != len(text):
            shown = text
        layout = Layout(name, code, module.body[skip:], shown, is_function=False)
        return layout if layout.rows else None

    def _file(self, name: str) -> tuple[list[str], dict[tuple[int, str], ast.AST], ast.Module]:
        if name not in self._files:
            linecache.checkcache(name)
            text = linecache.getlines(name)
            module = ast.parse("".join(text))
            functions = {
                (_header(node)[0], node.name): node
                for node in ast.walk(module)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            self._files[name] = text, dict(functions), module
        return self._files[name]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    return set(range(_header(node)[0], node.body[0].end_lineno or node.lineno))


def line_at(code: CodeType, offset: int) -> int:
    """The line of an instruction that has none of its own: the last line before it."""
    line = code.co_firstlineno
    for start, _, here in code.co_lines():
        if start > offset:
            break
        line = here or line
    return line
