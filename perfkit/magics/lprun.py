"""`%lprun` and `%%lprun`: where the time of a cell goes, statement by statement."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from perfkit.errors import PerfkitError, UsageError
from perfkit.magics import options
from perfkit.magics.cell import Body
from perfkit.magics.muted import Muted
from perfkit.magics.options import Option
from perfkit.magics.show import deliver

if TYPE_CHECKING:
    from perfkit.measure.lines.profile import LineMeasurement, Runs
    from perfkit.records.lines import LineProfile

__all__ = ["NAME", "OPTIONS", "begin", "split"]

NAME = "lprun"


def _file(text: str) -> str:
    path = Path(text).expanduser()
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError("give a file in a folder that exists")
    return str(path)


FUNCTION = Option(
    ("-f", "--function"), "profile this function or class too", options.text, "F", many=True
)
MODULE = Option(
    ("-m", "--module"), "profile all functions of this module", options.text, "M", many=True
)
OPTIONS = (
    FUNCTION,
    MODULE,
    Option(("-u", "--unit"), "show times in this unit, in seconds", options.seconds, "S"),
    Option(("-z", "--strip-zero"), "leave out statements that did not run"),
    Option(("-s",), "as -z"),
    Option(("-D", "--dump"), "write line_profiler's statistics to this file", _file, "FILE"),
    Option(("-T", "--text"), "write the report as text to this file", _file, "FILE"),
    Option(("-r", "--return"), "make the record the value of the cell or line"),
    Option(("--exact",), "trace everything: exact hits, wide uncertainty"),
    Option(("--twice",), "run twice: plain for the time, traced for the hits"),
    Option(("--sync",), "wait for the devices after each statement: device time by line"),
    Option(("--memory",), "memory that each statement allocates"),
    Option(("--widget",), "add the slider: what if this were N times faster"),
    options.OUTPUT,
    options.QUIET,
    options.NAME,
    options.BACKEND,
)


def split(line: str) -> tuple[str, str]:
    """The options at the front of a line, and the code behind them."""
    _, code = options.parse("%lprun", OPTIONS, line)
    return line[: len(line.rstrip()) - len(code)] if code else line, code


def value(line: str) -> Any:
    """What the line form returns: the record with -r, as line_profiler's does."""
    from perfkit.records.base import last

    asked, _ = options.parse("%lprun", OPTIONS, line)
    return last() if asked["return"] else None


def begin(shell: InteractiveShell, line: str, end: Callable[[], None], body: Body) -> Runs:
    """The run of one cell (two with --twice)."""
    __tracebackhide__ = True
    from perfkit.measure.lines.profile import Asked, LineMeasurement
    from perfkit.measure.lines.scope import Cell

    asked, rest = options.parse(body.label, OPTIONS, line)
    if asked["backend"] and not asked["sync"]:
        names = ",".join(asked["backend"])
        raise UsageError(f"{body.label}: --backend {names} is whom --sync waits for: add --sync")
    if rest:
        raise UsageError(
            f"{body.label}: {rest!r} is no option: write the code to profile below the first line"
        )
    named = _named(body.names, asked)
    is_line = not body.label.startswith("%%")
    cell = Cell(
        names=body.names,
        text=[each.rstrip("\n") for each in body.lines],
        code=body.code,
        skip=body.code is None,
        shown=not is_line,
    )
    muted = Muted(shell)
    profile_name = _BoundProfile()

    def done(profile: LineProfile | None) -> None:
        muted.stop()
        profile_name.unbind()
        end()
        if profile is not None:
            _deliver(shell, measurement, profile, asked)

    plan = Asked(
        mode=_mode(body.label, asked),
        functions=named,
        find=not (is_line and named),
        sync=asked["sync"],
        memory=asked["memory"],
        backends=asked["backend"],
    ).checked()
    measurement = LineMeasurement(plan, label=body.label, cell=cell, between=muted.start, done=done)
    profile_name.bind(measurement.profile_decorator)
    return measurement.runs()


def _mode(label: str, asked: dict[str, Any]) -> Any:
    if asked["exact"] and asked["twice"]:
        raise UsageError(f"{label}: --exact and --twice are two ways: give one of them")
    return "exact" if asked["exact"] else "twice" if asked["twice"] else "bursts"


def _named(names: dict[str, Any], asked: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    from perfkit.measure.lines import targets

    found = [(f"-f {each}", targets.resolve(each, names)) for each in asked["function"] or ()]
    for name in asked["module"] or ():
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise UsageError(f"-m {name}: it cannot be imported: {error}") from None
        functions = targets.functions_in(module)
        if not functions:
            raise UsageError(f"-m {name}: it defines no Python functions of its own")
        found += [(f"-m {name}: {targets.words_for(each)}", each) for each in functions]
    return tuple(found)


class _BoundProfile:
    """While a cell runs `profile` is there, as kernprof has it: `@profile` marks a function."""

    def __init__(self) -> None:
        self._bound = False

    def bind(self, decorator: Any) -> None:
        """Bind it, unless something else has that name."""
        if not hasattr(builtins, "profile"):
            builtins.profile = decorator  # type: ignore[attr-defined]
            self._bound = True

    def unbind(self) -> None:
        """Take the name away again."""
        if self._bound:
            del builtins.profile  # type: ignore[attr-defined]
            self._bound = False


def _deliver(
    shell: InteractiveShell,
    measurement: LineMeasurement,
    profile: LineProfile,
    asked: dict[str, Any],
) -> None:
    from perfkit.render import lines as view

    strip = asked["strip_zero"] or asked["s"]
    quiet, asked["quiet"] = asked["quiet"], True
    if not quiet:
        display(view.bundle(profile, unit_s=asked["unit"], strip_zero=strip), raw=True)
        if asked["widget"]:
            display(view.widget(profile))
    deliver(shell, profile, asked)
    if asked["return"]:
        assert shell.displayhook is not None
        shell.displayhook.update_user_ns(profile)
    if asked["text"]:
        with _told_in_one_line(asked["text"]):
            text = view.text(profile, unit_s=asked["unit"], strip_zero=strip)
            Path(asked["text"]).write_text(text + "\n", encoding="utf-8")
    if asked["dump"]:
        with _told_in_one_line(asked["dump"]):
            measurement.dump(asked["dump"])


@contextmanager
def _told_in_one_line(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PerfkitError(
            f"{path} could not be written ({error.strerror}): name another file; the record is "
            "perfkit.last()"
        ) from None
