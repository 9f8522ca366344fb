"""Names for stretches of a program, seen in the trace of every runtime that is in use.

Only runtimes that something has imported are asked. Where JAX traces a function, a name goes into
the compiled program too, as part of `op_name`, and the stretch is seen once: when it is traced.
What `torch.compile` compiles keeps no marks, as with torch's own, and has no graph break for them.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, Literal, NamedTuple, ParamSpec, SupportsIndex, TypeVar, cast

from perfkit.errors import UsageError
from perfkit.optional import loaded

__all__ = ["Annotation", "Hear", "Kind", "Stretch", "annotate", "listening", "step"]

P = ParamSpec("P")
T = TypeVar("T")


Kind = Literal["annotation", "step"]
Hear = Callable[[str, Kind, int, int, int, int | None], object]
"""Called with name, kind, start_ns, end_ns, the thread's ident, and the number of a step."""


class _Listener(NamedTuple):
    hear: Hear
    clock: Callable[[], int]


_listeners: tuple[_Listener, ...] = ()
_change = Lock()


@contextmanager
def listening(hear: Hear, clock: Callable[[], int] = time.perf_counter_ns) -> Iterator[None]:
    """Have `hear` called with each stretch, of any thread, that begins and ends meanwhile.

    Times are the clock's, in nanoseconds. A step is named "step". The thread that ends the stretch
    makes the call, so it should be quick.
    """
    global _listeners
    listener = _Listener(hear, clock)
    with _change:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _change:
            _listeners = tuple(other for other in _listeners if other is not listener)


class Stretch:
    """What `with` enters. It may be entered again before it is left, and by several threads."""

    __slots__ = ("_name", "_number", "_open")

    def __init__(self, name: str, number: int | None = None) -> None:
        self._name, self._number = name, number
        self._open: dict[int, list[list[Any]]] = {}

    def __enter__(self) -> None:
        if _torch_compiles():
            return
        marks: list[Any] = []
        try:
            for mark in _marks(self._name, self._number):
                mark.__enter__()
                marks.append(mark)
        except BaseException:
            _leave(marks, sys.exc_info())
            raise
        self._open.setdefault(get_ident(), []).append(marks)

    def __exit__(self, *failure: Any) -> None:
        if _torch_compiles():
            return
        thread = get_ident()
        # A generator may be closed on another thread, where its marks cannot be.
        if entered := self._open.get(thread):
            marks = entered.pop()
            if not entered:
                del self._open[thread]
            _leave(marks, failure)


class Annotation(Stretch):
    """A stretch with a name of the user's; it decorates functions too."""

    __slots__ = ()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Mark each call. Raises UsageError for what is no function, or is a generator."""
        name = self._name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"annotate({name!r}) cannot mark a generator, whose calls end before its work "
                f"begins: put `with perfkit.annotate({name!r}):` around the work inside it"
            )
        if not callable(function) or inspect.isclass(function):
            raise UsageError(f"annotate({name!r}) decorates functions only")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def marked(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Stretch(name):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def marked(*args: P.args, **kwargs: P.kwargs) -> T:
                with Stretch(name):
                    return function(*args, **kwargs)

        return cast("Callable[P, T]", marked)


def annotate(name: str) -> Annotation:
    """Name a stretch of the program: `with perfkit.annotate("load"):`, or `@perfkit.annotate(...)`.

    A decorated function is marked in each call, an `async` one from its first line to its last,
    with what other tasks do while it waits. Raises UsageError if `name` is no text.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(
            "annotate takes a name, as in `with perfkit.annotate('load'):`, "
            f"not {'an empty one' if name == '' else type(name).__name__}"
        )
    return Annotation(name)


def step(number: SupportsIndex) -> Stretch:
    """Mark one turn of a training loop: `with perfkit.step(i):`.

    Raises UsageError unless `number` is a whole number, 0 or more.
    """
    wrong = "step takes the number of the turn, 0 or more, as in `with perfkit.step(3):`, not"
    try:
        whole = operator.index(number)
    except TypeError as error:
        raise UsageError(f"{wrong} {type(number).__name__}") from error
    if whole < 0:
        raise UsageError(f"{wrong} {whole}")
    return Stretch("step", whole)


def _torch_compiles() -> bool:
    """Is this code being read by `torch.compile`, which could not follow what a mark does?"""
    compiler = getattr(loaded("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


def _leave(marks: list[Any], failure: tuple[Any, ...]) -> None:
    """Leave all marks, the last one first, even if one of them fails."""
    try:
        while marks:
            marks.pop().__exit__(*failure)
    finally:
        if marks:
            _leave(marks, failure)


def _marks(name: str, number: int | None) -> Iterator[Any]:
    """Context managers that name a stretch, in the runtimes that are in use and for listeners."""
    torch, jax, xla, cupy = map(_in_use, ("torch", "jax", "torch_xla", "cupy"))
    nvtx: Any = getattr(getattr(cupy, "cuda", None), "nvtx", None)
    title = name if number is None else f"{name}#{number}"
    if torch:
        yield torch.profiler.record_function(title)
    if jax and number is not None:
        yield jax.profiler.StepTraceAnnotation(name, step_num=number)
    elif jax:
        yield jax.profiler.TraceAnnotation(name)
        if _jax_is_tracing():
            yield jax.named_scope(name)
    if xla:
        # Not `Trace`, inside which no step may end, nor `StepTrace`, which ends one: they would
        # change the program that they mark.
        details = {} if number is None else {"_r": 1, "step_num": number}
        yield xla._XLAC.profiler.TraceMe(name, **details)
    if torch and torch.cuda.is_initialized():
        yield _Range(title, torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    elif hasattr(nvtx, "RangePush"):
        yield _Range(title, nvtx.RangePush, nvtx.RangePop)
    for listener in _listeners:
        yield _Heard(listener, name, number)


def _in_use(name: str) -> Any:
    """The module; None where nothing has imported it, or another thread is just doing so."""
    module = loaded(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        return None
    return module


def _jax_is_tracing() -> bool:
    """Elsewhere a scope names nothing, and its stack would grow where two tasks take turns."""
    clean = getattr(loaded("jax._src.core"), "trace_state_clean", None)
    return clean is None or not clean()


class _Range:
    """A range for Nsight Systems."""

    def __init__(self, name: str, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self._name, self._push, self._pop = name, push, pop

    def __enter__(self) -> None:
        self._push(self._name)

    def __exit__(self, *failure: object) -> None:
        self._pop()


class _Heard:
    def __init__(self, listener: _Listener, name: str, number: int | None) -> None:
        self._listener, self._name, self._number = listener, name, number

    def __enter__(self) -> None:
        self._start_ns = self._listener.clock()

    def __exit__(self, *failure: object) -> None:
        end_ns, number = self._listener.clock(), self._number
        if self._listener in _listeners:
            kind: Kind = "annotation" if number is None else "step"
            self._listener.hear(self._name, kind, self._start_ns, end_ns, get_ident(), number)
