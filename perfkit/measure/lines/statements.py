"""A code object's statements: which physical lines are one row, and which loop a row lies in."""

from __future__ import annotations

import ast
import linecache
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import NamedTuple

from perfkit.measure.lines.events import LOCAL
from perfkit.measure.lines.flow import Flow

__all__ = ["INLINE", "Layout", "Row", "Sources", "line_at"]

INLINE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
"""Names of code objects that belong to the statement they stand in."""


_Function = ast.FunctionDef | ast.AsyncFunctionDef


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


class _File(NamedTuple):
    """A source file: its lines, its functions by first line and name, its module; the functions'
    code as the text would give it now.
    """

    text: list[str]
    functions: dict[tuple[int, str], _Function]
    module: ast.Module
    codes: dict[tuple[int, str], CodeType]


class Sources:
    """Finds the layout of code objects; parses each file once."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._typed: dict[str, list[str]] = {}

    def layout(self, code: CodeType) -> Layout | None:
        """The statements of a function's code, None where it has none, its source is not to be
        found, or is not the one that the code was made from.
        """
        found = self._node(code)
        if found is None:
            return None
        file, node = found
        text = self._typed.get(code.co_filename, file.text)
        layout = Layout(code.co_qualname, code, node.body, text)
        return layout if layout.rows else None

    def is_empty(self, code: CodeType) -> bool:
        """Is its source there, and without a statement that runs?"""
        found = self._node(code)
        return found is not None and all(map(_has_no_code, found[1].body))

    def _node(self, code: CodeType) -> tuple[_File, _Function] | None:
        try:
            file = self._file(code.co_filename)
        except (SyntaxError, ValueError):
            return None
        key = code.co_firstlineno, code.co_name
        node, now = file.functions.get(key), file.codes.get(key)
        if node is None or now is None or not _is_made_of(code, now):
            return None
        return file, node

    def cell(
        self, name: str, code: CodeType, typed: list[str] | None, skip: int = 0
    ) -> Layout | None:
        """The statements of a cell's code, less the first `skip`; `typed`: its text as typed."""
        try:
            file = self._file(code.co_filename)
        except (SyntaxError, ValueError):
            return None
        text = file.text
        if typed is not None and len(typed) == len(text):
            text = self._typed[code.co_filename] = typed
        elif typed is not None and len(text) == 1:
            # Another magic owns the body: all of it is one statement.
            text = ["\n".join(typed)]
        body = [each for each in file.module.body[skip:] if not _is_future(each)]
        layout = Layout(name, code, body, text, is_function=False)
        return layout if layout.rows else None

    def _file(self, name: str) -> _File:
        if name not in self._files:
            linecache.checkcache(name)
            text = linecache.getlines(name)
            module = ast.parse("".join(text))
            functions = {
                (_header(node)[0], node.name): node
                for node in ast.walk(module)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                whole = compile(module, name, "exec", flags=flags, dont_inherit=True)
            codes = {(each.co_firstlineno, each.co_name): each for each in _codes(whole)}
            self._files[name] = _File(text, functions, module, codes)
        return self._files[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _is_made_of(code: CodeType, now: CodeType) -> bool:
    """Was `code` made from the text that gives `now`? A tool may have added to it since."""
    same = code.co_code == now.co_code and code.co_names == now.co_names
    known = {*code.co_names, *code.co_varnames}
    return (
        (same or {*now.co_names, *now.co_varnames} <= known)
        and _plain(now) <= _plain(code)
        and {line for _, _, line in now.co_lines()} == {line for _, _, line in code.co_lines()}
    )


def _plain(code: CodeType) -> set[tuple[type, object]]:
    kinds = (int, float, complex, str, bytes, bool)
    return {(type(each), each) for each in code.co_consts if isinstance(each, kinds)}


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def line_at(code: CodeType, offset: int) -> int:
    """The line of an instruction that has none of its own: the last line before it."""
    line = code.co_firstlineno
    for start, _, here in code.co_lines():
        if start > offset:
            break
        line = here or line
    return line
