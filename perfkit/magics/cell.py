"""The cell engine: a cell's body, compiled once, as the body of one loop.

IPython compiles each top-level statement of a cell as it goes, so a clock read before and after
would time the compiler. The engine rewrites the cell

    %%gpu_time -r 5                    for __perfkit_run__ in __perfkit__.begin(...):
    y = f(x)                   to          y = f(x)
    y.sum()                                __perfkit_value__ = y.sum()
                                       __perfkit__.value()

in two steps. A text step turns line 1 into a call, which leaves every other line where it was; a
step on the syntax tree builds the loop. The generator that `begin` returns holds the clock and
decides how often the body runs; if the body raises, the generator is closed on the way out, which
is how a report is shown before the error arrives.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from perfkit import errors

if TYPE_CHECKING:
    from perfkit.measure.timing import Runs

__all__ = ["Body", "CellEngine", "Muted"]

HANDLE, RUN, VALUE = "__perfkit__", "__perfkit_run__", "__perfkit_value__"
_HIDDEN = (HANDLE, RUN, VALUE)
_FIRST_LINE = re.compile(r"%%(?P<magic>\w+)(?P<line>(?:[ \t].*)?)\n?$")


class Body(Protocol):
    """What a cell magic gives the engine."""

    def __call__(
        self, shell: InteractiveShell, line: str, end: Callable[[], None], label: str
    ) -> Runs:
        """Parse `line`; return a generator that yields once for each run of the body and calls
        `end` when it is over, whichever way. `label` is the magic as it was typed.
        """


class CellEngine:
    """Installs itself into a shell, and runs the cells of the magics that are added to it."""

    # IPython asks for this by name. While a cell is being typed only its own text can say
    # whether it is complete, so it must not see ours.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self._bodies: dict[str, Body] = {}
        self._loop = _Loop(self)
        self._running = ""

    def add(self, magic: str, body: Body) -> None:
        """Run cells that start with `%%magic` through `body`."""
        self._bodies[magic] = body

    def install(self) -> None:
        """Put the two steps into the shell."""
        steps = self.shell.input_transformers_cleanup
        names = [getattr(step, "__name__", "") for step in steps]
        steps.insert(names.index("cell_magic") if "cell_magic" in names else len(steps), self)
        self.shell.ast_transformers.append(self._loop)
        self.shell.events.register("post_run_cell", self._after_cell)

    def uninstall(self) -> None:
        """Take both steps out again."""
        self.shell.input_transformers_cleanup.remove(self)
        if self._loop in self.shell.ast_transformers:
            self.shell.ast_transformers.remove(self._loop)
        self.shell.events.unregister("post_run_cell", self._after_cell)
        self._forget_names()

    # -- the text step -------------------------------------------------------------------------

    def __call__(self, lines: list[str]) -> list[str]:
        """Turn the first line of one of our cells into a call of `begin`."""
        found = _FIRST_LINE.match(lines[0]) if lines else None
        if found is None or found["magic"] not in self._bodies:
            return lines
        code = [line for line in lines[1:] if line.strip()]
        if code and code[0].startswith("%%"):
            # Another cell magic owns the body: IPython hands all of it to `run_text`.
            return lines
        call = f"{HANDLE}.begin({found['magic']!r}, {found['line'].strip()!r})\n"
        return [call, *lines[1:]]

    # -- what the rewritten cell calls ---------------------------------------------------------

    def begin(self, magic: str, line: str, sign: str = "%%") -> Runs:
        """The generator that runs the body. Raises IPython's UsageError: one line."""
        __tracebackhide__ = True
        if self._running:
            raise UsageError(f"{sign}{magic} inside %%{self._running}: one measurement at a time")
        try:
            runs = self._bodies[magic](self.shell, line, self._end, sign + magic)
        except (errors.UsageError, errors.NotSupportedHere) as error:
            raise UsageError(str(error)) from None
        self._running = magic
        return runs

    def value(self) -> Any:
        """The last expression's value, given away: the engine keeps no reference to it."""
        return self.shell.user_ns.pop(VALUE, None)

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
        shell = self.shell
        inner = re.match(r"\s*%%(\w+)", text)
        if inner and inner[1] in self._bodies:
            raise UsageError(f"%%{inner[1]} inside %%{magic}: one measurement at a time")
        source = shell.transform_cell(text)
        if not ast.parse(source).body:
            self.refuse_empty(magic, sign)
        name = shell.compile.cache(source, shell.execution_count, raw_code=text)
        code = compile(source, name, "exec", flags=shell.compile.flags)
        runs = self.begin(magic, line, sign)
        try:
            for _ in runs:
                exec(code, shell.user_ns, scope)
        finally:
            runs.close()

    # -- names ---------------------------------------------------------------------------------

    def remember_names(self) -> None:
        """Give a rewritten cell its handle; done for each, since %reset takes all names away."""
        self.shell.user_ns[HANDLE] = self
        self.shell.user_ns_hidden.update(dict.fromkeys(_HIDDEN))

    def _end(self) -> None:
        self._running = ""

    def _after_cell(self, result: object) -> None:
        # A cell that our body runs itself, as %%capture does, ends before ours.
        if not self._running:
            self._forget_names()

    def _forget_names(self) -> None:
        for name in _HIDDEN:
            self.shell.user_ns.pop(name, None)
            self.shell.user_ns_hidden.pop(name, None)


class _Loop(ast.NodeTransformer):
    """The step on the syntax tree. It must not raise: IPython would drop it for the session."""

    def __init__(self, engine: CellEngine) -> None:
        self._engine = engine

    def visit_Module(self, module: ast.Module) -> ast.Module:
        """Build the loop if the first statement is our call; leave other cells alone."""
        call = _begin_call(module)
        if call is None:
            return module
        self._engine.remember_names()
        body = module.body[1:]
        if not body:
            assert isinstance(call.func, ast.Attribute)
            call.func.attr, call.args = "refuse_empty", call.args[:1]
            return module
        wrong = self._wrong_statement(body)
        if wrong is not None:
            # Inside the loop a stray `break` would be legal. Alone it raises as it always did.
            return ast.Module(body=[wrong], type_ignores=[])
        return self._loop_around(call, body)

    def _wrong_statement(self, body: list[ast.stmt]) -> ast.stmt | None:
        return next((node for node in body if not self._compiles([node])), None)

    def _compiles(self, body: list[ast.stmt]) -> bool:
        flags = self._engine.shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compile(ast.Module(body=body, type_ignores=[]), "<cell>", "exec", flags=flags)
            except (SyntaxError, ValueError):
                return False
        return True

    def _loop_around(self, call: ast.Call, body: list[ast.stmt]) -> ast.Module:
        ahead = [node for node in body if _is_future_import(node)]
        body = [node for node in body if not _is_future_import(node)]
        shown = _take_value(body, self._engine.shell.ast_node_interactivity)
        # Drop the last value before the next one is made, so that only one is ever alive.
        release = _assign(VALUE, ast.Constant(None))
        loop = ast.For(
            target=ast.Name(RUN, ast.Store()), iter=call, body=[release, *body], orelse=[]
        )
        module = ast.Module(body=[*ahead, loop, shown], type_ignores=[])
        ast.copy_location(loop, call)
        return ast.fix_missing_locations(module)


def _begin_call(module: ast.Module) -> ast.Call | None:
    match module.body:
        case [
            ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="begin")) as c
            ),
            *_,
        ] if name == HANDLE:
            return c
    return None


def _is_future_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _take_value(body: list[ast.stmt], interactivity: str) -> ast.Expr:
    """Save the last expression's value in the body; the statement that shows it afterwards."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr):
        body[-1] = ast.copy_location(_assign(VALUE, last.value), last)
    elif interactivity == "last_expr_or_assign" and isinstance(last, ast.Assign | ast.AnnAssign):
        target = last.targets[0] if isinstance(last, ast.Assign) else last.target
        if isinstance(target, ast.Name):
            body.append(ast.copy_location(_assign(VALUE, ast.Name(target.id, ast.Load())), last))
    value = ast.Attribute(ast.Name(HANDLE, ast.Load()), "value", ast.Load())
    shown = ast.Expr(ast.Call(value, args=[], keywords=[]))
    return ast.copy_location(shown, last) if last else shown


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)


class Muted:
    """Swallows what a body prints and displays from `start` to `stop`, so that repeats show
    their output once.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._kept: tuple[Any, Any, Any] | None = None

    def start(self) -> None:
        """Begin to swallow. Does nothing if it has begun."""
        if self._kept is None:
            self._kept = sys.stdout, sys.stderr, self._shell.display_pub
            sys.stdout, sys.stderr = _Silence(), _Silence()
            self._shell.display_pub = _NoDisplay()

    def stop(self) -> None:
        """Put the real streams back."""
        if self._kept is not None:
            sys.stdout, sys.stderr, self._shell.display_pub = self._kept
            self._kept = None


class _Silence(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class _NoDisplay(DisplayPublisher):
    def publish(self, *args: Any, **kwargs: Any) -> None:
        pass

    def clear_output(self, wait: bool = False) -> None:
        pass
