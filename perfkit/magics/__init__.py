"""The magics. Thin: parse, call what measures, show the record."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import needs_local_scope, no_var_expand

from perfkit import errors
from perfkit.magics import show
from perfkit.magics.cell import CellEngine
from perfkit.magics.options import flags_of, help_of

__all__ = ["load", "unload"]

_TIMED = {
    "gpu_time": "perfkit.magics.gpu_time",
    "io_time": "perfkit.magics.io_time",
    "lprun": "perfkit.magics.lprun",
    "timeline": "perfkit.magics.timeline",
}
"""Magics whose bodies the engine runs, and their rooms."""

_PLAIN = {
    "doctor": "perfkit.magics.doctor",
    "tiers": "perfkit.magics.tiers",
    "timeline": "perfkit.magics.timeline",
}
"""Line magics that run no body, and their rooms."""

_loaded: dict[int, tuple[CellEngine, list[tuple[str, str, Any]]]] = {}


def load(shell: InteractiveShell) -> None:
    """Register all magics. A name that another extension owns is left to it, with a warning."""
    if id(shell) in _loaded:
        return
    engine = CellEngine(shell)
    registered = []
    for name, room in _TIMED.items():
        module = importlib.import_module(room)
        engine.add(name, module.begin)
        for kind, function in (
            ("cell", _cell_form(engine, name)),
            ("line", _line_form(engine, name)),
        ):
            function.__doc__ = f"{module.__doc__}\n\nOptions:\n{help_of(module.OPTIONS)}\n"
            if kind == "line" and name in _PLAIN:
                continue
            if _register(shell, kind, name, function):
                registered.append((kind, name, function))
                if kind == "cell":
                    engine.rewrite_cells_of(name, function)
    for name, room in _PLAIN.items():
        module = importlib.import_module(room)
        function = _plain_form(shell, room)
        function.__doc__ = f"{module.__doc__}\n\nOptions:\n{help_of(module.OPTIONS)}\n"
        if _register(shell, "line", name, function):
            registered.append(("line", name, function))
    engine.install()
    show.register(shell)
    for command in _commands():
        shell.set_hook("complete_command", _complete, str_key=command)
    _loaded[id(shell)] = engine, registered


def unload(shell: InteractiveShell) -> None:
    """Undo `load`. What somebody else has put in a magic's place since then is theirs and stays."""
    if id(shell) not in _loaded:
        return
    engine, registered = _loaded[id(shell)]
    engine.uninstall()
    del _loaded[id(shell)]
    for kind, name, function in registered:
        if shell.magics_manager.magics[kind].get(name) is function:
            del shell.magics_manager.magics[kind][name]
    show.unregister(shell)
    completers = shell.strdispatchers["complete_command"].strs
    for command in _commands():
        chain = completers.get(command, ())
        others = [entry for entry in chain if getattr(entry[1], "__func__", None) is not _complete]
        if others:
            chain.chain[:] = others
        else:
            completers.pop(command, None)


def _commands() -> list[str]:
    return [sign + name for name in _TIMED for sign in ("%", "%%")] + [f"%{n}" for n in _PLAIN]


def _register(shell: InteractiveShell, kind: str, name: str, function: Any) -> bool:
    if name in shell.magics_manager.magics[kind]:
        sign = "%%" if kind == "cell" else "%"
        warnings.warn(
            f"{sign}{name} belongs to another extension and is left to it; "
            f"unload that one first to use perfkit's",
            stacklevel=4,
        )
        return False
    shell.magics_manager.register_function(function, kind, name)
    return True


def _cell_form(engine: CellEngine, name: str) -> Any:
    """Reached only where the engine's rewriting is not: a body that another cell magic owns."""

    def cell(line: str, text: str) -> None:
        __tracebackhide__ = True
        engine.run_text(name, line, text, engine.shell.user_ns)

    return no_var_expand(cell)


def _line_form(engine: CellEngine, name: str) -> Any:
    def line_magic(line: str, local_ns: dict[str, Any] | None = None) -> Any:
        __tracebackhide__ = True
        room = importlib.import_module(_TIMED[name])
        try:
            asked, code = room.split(line)
        except errors.UsageError as error:
            raise UsageError(str(error)) from None
        scope = engine.shell.user_ns
        if local_ns is not None and local_ns is not scope:
            # In a function: one dictionary, so that comprehensions see the local names too.
            scope = {**scope, **local_ns}
        engine.run_text(name, asked, code, scope, sign="%")
        return room.value(asked) if hasattr(room, "value") else None

    return needs_local_scope(no_var_expand(line_magic))


def _plain_form(shell: InteractiveShell, room: str) -> Any:
    def line_magic(line: str) -> None:
        __tracebackhide__ = True
        try:
            importlib.import_module(room).run(shell, line)
        except (errors.UsageError, errors.NotSupportedHere) as error:
            raise UsageError(str(error)) from None

    return line_magic


def _complete(shell: InteractiveShell, event: Any) -> list[str]:
    options = importlib.import_module({**_TIMED, **_PLAIN}[event.command.lstrip("%")]).OPTIONS
    return [flag for flag in flags_of(options) if flag.startswith(event.symbol)]
