"""Which code to profile: what a name stands for, and the user's own functions that code calls."""

from __future__ import annotations

import functools
import inspect
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from perfkit.errors import UsageError
from perfkit.measure.lines.profiled import inner_code

__all__ = [
    "called_by",
    "defined_in",
    "functions_in",
    "is_object_with_call",
    "is_own",
    "own_methods",
    "resolve",
    "scope_of",
    "unwrap",
    "words_for",
    "words_in",
]

_LIMIT = 2000
"""So many functions are followed at most."""


def is_own(code: CodeType) -> bool:
    """Is this the user's own code: neither Python's, nor an installed package's, nor perfkit's?"""
    name = code.co_filename
    if name.startswith("<") and not name.startswith("<ipython-input"):
        return False
    return not name.startswith(_libraries())


def words_for(target: Any) -> str:
    """What people call it."""
    return getattr(target, "__qualname__", None) or type(target).__name__


def is_object_with_call(target: Any) -> bool:
    """Is it an object whose class has a __call__ of the user's?"""
    if isinstance(target, type):
        return False
    return any(
        isinstance(vars(kind).get("__call__"), FunctionType) for kind in type(target).__mro__
    )


def own_methods(kind: type) -> list[FunctionType]:
    """The user's own functions of a class and of those that it inherits from."""
    return [each for each in _functions_of(kind) if is_own(each.__code__)]


@functools.cache
def _libraries() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(kind) for kind in kinds}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {str(Path(__file__).parents[2])}
    folders |= {path for path in sys.path if path and any(Path(path).glob("*.dist-info"))}
    return tuple(sorted(str(Path(folder)) + "/" for folder in folders if folder))


def unwrap(target: Any, name: str) -> tuple[list[FunctionType], list[str]]:
    """The Python functions behind `target`, and a note for each wrapping that was taken off.

    Raises UsageError in one line where there is no Python code behind it.
    """
    notes: list[str] = []
    for _ in range(50):
        if isinstance(target, FunctionType) and hasattr(target, "registry"):
            return _all(target.registry.values(), name, notes)
        if isinstance(target, FunctionType):
            inner = getattr(target, "__wrapped__", None)
            if inner is None:
                return [target], notes
            notes.append(f"{name} is wrapped: what is shown is the function inside")
            if isinstance(inner, FunctionType) and is_own(target.__code__):
                # The wrapper is the user's too: both are shown.
                more, inside = unwrap(inner, name)
                return [target, *more], [*notes, *inside]
            target = inner
        elif isinstance(target, MethodType | staticmethod | classmethod):
            target = target.__func__
        elif isinstance(target, functools.partial | functools.partialmethod):
            target = target.func
        elif isinstance(target, property):
            parts = [part for part in (target.fget, target.fset, target.fdel) if part]
            return _all(parts, name, notes)
        elif isinstance(target, functools.cached_property | functools.singledispatchmethod):
            target = target.func
        elif isinstance(target, type):
            return _class(target, name, notes)
        elif isinstance(target, ModuleType):
            raise UsageError(f"{name} is a module: profile its functions with -m {target.__name__}")
        elif (compiled := _compiled(target)) is not None:
            kind, inner = compiled
            notes.append(f"{name} is compiled by {kind}: its lines run only while it is traced")
            target = inner
        elif hasattr(target, "__wrapped__"):
            notes.append(
                f"{name} is wrapped ({type(target).__name__}): the function inside is shown"
            )
            target = target.__wrapped__
        elif inspect.iscoroutine(target) or inspect.isgenerator(target):
            kind = "coroutine" if inspect.iscoroutine(target) else "generator"
            raise UsageError(f"{name} is a {kind} that has been made: name its function")
        else:
            raise UsageError(f"{name}: {_why_not(target)}")
    raise UsageError(f"{name} is wrapped more than 50 times")


def _class(target: type, name: str, notes: list[str]) -> tuple[list[FunctionType], list[str]]:
    members = [each for each in vars(target).values() if _may_hold_code(each)]
    if not members:
        raise UsageError(f"{name} is a class without Python functions of its own")
    return _all(members, name, notes)


def _all(parts: Iterable[Any], name: str, notes: list[str]) -> tuple[list[FunctionType], list[str]]:
    found: list[FunctionType] = []
    for part in parts:
        try:
            functions, more = unwrap(part, f"{name}.{getattr(part, '__name__', '')}".rstrip("."))
        except UsageError:
            continue
        found += functions
        notes += more
    return found, notes


def _may_hold_code(value: object) -> bool:
    kinds = (
        FunctionType,
        staticmethod,
        classmethod,
        property,
        functools.partialmethod,
        functools.cached_property,
        functools.singledispatchmethod,
    )
    return isinstance(value, kinds) or hasattr(value, "__wrapped__")


def _compiled(target: Any) -> tuple[str, Any] | None:
    module = type(target).__module__
    if module.startswith("numba") and hasattr(target, "py_func"):
        return "numba", target.py_func
    if "jax" in module and hasattr(target, "__wrapped__"):
        return "JAX", target.__wrapped__
    if hasattr(target, "_torchdynamo_orig_callable"):
        return "torch", target._torchdynamo_orig_callable
    return None


def _why_not(target: Any) -> str:
    if inspect.isbuiltin(target) or inspect.isroutine(target):
        return "it is written in C, which has no lines of Python: profile the code that calls it"
    if isinstance(vars(type(target)).get("__call__"), FunctionType):
        return f"it is an object: profile its class, {type(target).__name__}"
    return f"it is of type {type(target).__name__}, not a function: name a function or a class"


def resolve(expression: str, names: Mapping[str, Any], option: str = "-f") -> Any:
    """What an expression such as `model.step` stands for. Raises UsageError in one line."""
    try:
        return eval(expression, dict(names))
    except Exception as error:
        raise UsageError(
            f"{option} {expression}: {type(error).__name__}: {error}: "
            "name a function or a class that exists"
        ) from None


def functions_in(module: ModuleType) -> list[Any]:
    """Functions and classes that a module defines itself."""
    return [
        value
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__
        and (isinstance(value, type) or _may_hold_code(value))
    ]


def called_by(code: CodeType, names: Mapping[str, Any]) -> list[FunctionType]:
    """The user's own functions that `code` may call, found by the names in it, and those that
    they may call in turn. Classes count with all their functions; libraries are not entered.
    """
    found: dict[int, FunctionType] = {}
    queue: list[tuple[CodeType, Mapping[str, Any]]] = [(code, names)]
    while queue and len(found) < _LIMIT:
        here, scope = queue.pop()
        for function in _mentioned(here, scope):
            if id(function.__code__) not in found and is_own(function.__code__):
                found[id(function.__code__)] = function
                queue.append((function.__code__, scope_of(function)))
    return list(found.values())


def scope_of(function: FunctionType) -> Mapping[str, Any]:
    """The names that a function sees."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    return {**function.__globals__, **cells}


def _mentioned(code: CodeType, scope: Mapping[str, Any]) -> Iterator[FunctionType]:
    words = words_in(code)
    for name in words:
        value = scope.get(name)
        if isinstance(value, ModuleType):
            values = [vars(value)[word] for word in words if word in vars(value)]
        else:
            values = [value]
        for each in values:
            yield from _functions_of(each)


def _functions_of(value: Any) -> Iterator[FunctionType]:
    if value is None or isinstance(value, ModuleType | str | int | float):
        return
    if not (isinstance(value, type) or callable(value)) and not _is_own_class(type(value)):
        return
    targets = [value] if isinstance(value, type) or _is_function(value) else [type(value)]
    for target in targets:
        kinds = target.__mro__ if isinstance(target, type) else (target,)
        for kind in kinds:
            if isinstance(kind, type) and not _is_own_class(kind):
                continue
            try:
                functions, _ = unwrap(kind, "")
            except UsageError:
                continue
            yield from functions


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType | MethodType | functools.partial) or hasattr(
        value, "__wrapped__"
    )


def _is_own_class(kind: type) -> bool:
    return any(
        is_own(each.__code__) for each in vars(kind).values() if isinstance(each, FunctionType)
    ) or any(
        isinstance(each, property)
        and isinstance(each.fget, FunctionType)
        and is_own(each.fget.__code__)
        for each in vars(kind).values()
    )


def words_in(code: CodeType) -> set[str]:
    """All names that a code object and the code in it mention."""
    words = {*code.co_names, *code.co_freevars}
    is_magic = bool(words & {"run_line_magic", "run_cell_magic"})
    for constant in code.co_consts:
        if is_magic and isinstance(constant, str):
            # What stands behind a magic is code as well, or may be.
            words |= set(re.findall(r"[^\W\d]\w*", constant))
        if isinstance(constant, CodeType):
            words |= words_in(constant)
    return words


def defined_in(code: CodeType) -> Iterator[CodeType]:
    """Code objects of the functions that a code object defines, at any depth."""
    inline = set(map(id, inner_code(code)))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if id(constant) not in inline:
                yield constant
            yield from defined_in(constant)
