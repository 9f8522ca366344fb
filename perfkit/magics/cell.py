"""The cell engine: a cell's body, compiled once, as the body of one loop.

IPython compiles each top-level statement of a cell as it goes, so a clock read before and after
would time the compiler. The engine rewrites the cell

    %%gpu_time -r 5                    for __perfkit_run__ in ENGINE.begin("gpu_time", "-r 5"):
    y = f(x)                   to          y = f(x)
    y.sum()                                __perfkit_value__0 = y.sum()
                                       ENGINE.value("__perfkit_value__0")

in two steps. A text step turns line 1 into a call, which leaves every other line where it was; a
step on the syntax tree (`rewrite`) builds the loop. The generator that `begin` returns holds the
clock and decides how often the body runs; if the body raises, the generator is closed on the way
out, which is how a report is shown before the error arrives.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from perfkit import errors
from perfkit.magics.rewrite import BEGIN, RUN, VALUE, Loop

if TYPE_CHECKING:
    from perfkit.measure.timing import Runs

__all__ = ["Begin", "Body", "CellEngine", "compile_text"]

_FIRST_LINE = re.compile(r"%%(?P<magic>\w+)(?P<line>(?:[ \t].*)?)\n?$")


class Body(NamedTuple):
    """What is run. `label`: the magic as it was typed; `lines`: the whole cell as it was typed;
    `code` and `names`: the body's own, `code` None where the frame that iterates is the body.
    """

    label: str
    lines: list[str]
    names: dict[str, Any]
    code: CodeType | None = None


class Begin(Protocol):
    """What a cell magic gives the engine."""

    def __call__(
        self, shell: InteractiveShell, line: str, end: Callable[[], None], body: Body
    ) -> Runs:
        """Parse `line`; return a generator that yields once for each run of the body and calls
        `end` when it is over, whichever way.
        """


class CellEngine:
    """Installs itself into a shell, and runs the cells of the magics that are added to it."""

    # IPython asks for this by name. While a cell is being typed only its own text can say
    # whether it is complete, so it must not see ours.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.running = ""
        self._begins: dict[str, Begin] = {}
        self._lines: list[str] = []
        self._cell_magics: dict[str, Any] = {}
        self._loop = Loop(self, shell)

    def add(self, magic: str, begin: Begin) -> None:
        """Run what the magic is given through `begin`."""
        self._begins[magic] = begin

    def rewrite_cells_of(self, magic: str, function: Any) -> None:
        """Rewrite cells that start with `%%magic`, as long as `function` is what it stands for."""
        self._cell_magics[magic] = function

    def install(self) -> None:
        """Put the two steps into the shell."""
        steps = self.shell.input_transformers_cleanup
        names = [getattr(step, "__name__", "") for step in steps]
        steps.insert(names.index("cell_magic") if "cell_magic" in names else len(steps), self)
        self.shell.ast_transformers.append(self._loop)
        self.shell.events.register("post_run_cell", self._after_cell)

    def uninstall(self) -> None:
        """Take both steps out again. Raises IPython's UsageError while a body runs."""
        if self.running:
            raise UsageError(
                f"%%{self.running} is running: unload the extension in a cell of its own"
            )
        if self in self.shell.input_transformers_cleanup:
            self.shell.input_transformers_cleanup.remove(self)
        if self._loop in self.shell.ast_transformers:
            self.shell.ast_transformers.remove(self._loop)
        self.shell.events.unregister("post_run_cell", self._after_cell)
        self._loop.forget()
        self._forget_names()

    def __call__(self, lines: list[str]) -> list[str]:
        """The text step: turn the first line of one of our cells into a call."""
        found = _FIRST_LINE.match(lines[0]) if lines else None
        if found is None or not self._owns_cells_of(found["magic"]):
            return lines
        code = [line for line in lines[1:] if line.strip()]
        if code and code[0].startswith("%%"):
            # Another cell magic owns the body: IPython hands all of it to `run_text`.
            return lines
        self._lines = list(lines)
        call = f"{BEGIN}({found['magic']!r}, {found['line'].strip()!r})\n"
        return [call, *lines[1:]]

    def _owns_cells_of(self, magic: str) -> bool:
        ours = self._cell_magics.get(magic)
        return ours is not None and self.shell.magics_manager.magics["cell"].get(magic) is ours

    # -- what the rewritten cell calls ---------------------------------------------------------

    def begin(self, magic: str, line: str, sign: str = "%%", body: Body | None = None) -> Runs:
        """The generator that runs the body. Raises IPython's UsageError: one line."""
        __tracebackhide__ = True
        if body is None:
            body = Body(sign + magic, self._lines, self.shell.user_ns)
        if self.running:
            raise UsageError(f"{sign}{magic} inside %%{self.running}: one measurement at a time")
        self.shell.user_ns_hidden[RUN] = None
        try:
            runs = self._begins[magic](self.shell, line, self._end, body)
        except (errors.UsageError, errors.NotSupportedHere) as error:
            raise UsageError(str(error)) from None
        self.running = magic
        return runs

    def value(self, name: str) -> Any:
        """A value of the body's, given away: the engine keeps no reference to it."""
        return self.shell.user_ns.pop(name, None)

    def refuse_empty(self, magic: str, sign: str = "%%") -> None:
        """The body of a cell without code."""
        __tracebackhide__ = True
        where = "below the first line" if sign == "%%" else "behind the options"
        raise UsageError(f"{sign}{magic}: there is no code: write it {where}")

    # -- text that cannot be rewritten ---------------------------------------------------------

    def run_text(
        self, magic: str, line: str, text: str, scope: dict[str, Any], sign: str = "%%"
    ) -> None:
        """Run `text` as the body: the line form, and bodies that another cell magic owns.

        It is compiled once; names that it assigns land in `scope`.
        """
        __tracebackhide__ = True
        inner = re.match(r"\s*%%(\w+)", text)
        if inner and inner[1] in self._begins:
            raise UsageError(f"%%{inner[1]} inside %%{magic}: one measurement at a time")
        code = self._compile(magic, text, sign)
        body = Body(sign + magic, text.splitlines(keepends=True), scope, code)
        runs = self.begin(magic, line, sign, body)
        try:
            for _ in runs:
                exec(code, scope)
        finally:
            runs.close()

    def _compile(self, magic: str, text: str, sign: str) -> Any:
        __tracebackhide__ = True
        try:
            if not ast.parse(self.shell.transform_cell(text)).body:
                self.refuse_empty(magic, sign)
            return compile_text(self.shell, text)
        except SyntaxError as error:
            raise UsageError(
                f"{sign}{magic}: {text.strip()!r} cannot be timed ({error.msg}): give an "
                "expression or a statement, or put the code into a cell below %%" + magic
            ) from None

    # -- names ---------------------------------------------------------------------------------

    def _end(self) -> None:
        self.running = ""

    def _after_cell(self, result: object) -> None:
        # A cell that our body runs itself, as %%capture does, ends before ours.
        if not self.running:
            self._forget_names()

    def _forget_names(self) -> None:
        for names in (self.shell.user_ns, self.shell.user_ns_hidden):
            for name in [n for n in names if n == RUN or str(n).startswith(VALUE)]:
                del names[name]


def compile_text(shell: InteractiveShell, text: str) -> Any:
    """The code of a piece of text, with its source where tracebacks look for it.

    Raises SyntaxError.
    """
    source = shell.transform_cell(text)
    number = shell.displayhook.prompt_count  # execution_count is one ahead from IPython 9.18 on
    name = shell.compile.cache(source, number, raw_code=text)
    return compile(source, name, "exec", flags=shell.compile.flags)
