"""Line events: line_profiler's engine, switched on and off while code runs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any, cast
from weakref import WeakSet

from perfkit.errors import NotSupportedHere
from perfkit.optional import require

__all__ = ["LOCAL", "LineEvents", "refuse_other_tools"]

LOCAL = sys.version_info >= (3, 12)
"""Can events be limited to single code objects, so that all other code runs at full speed?"""


_opened: WeakSet[LineEvents] = WeakSet()


forks = [0]
"""How often this process was forked."""


def _count_fork() -> None:
    forks[0] += 1


def _stop_in_child() -> None:
    """A forked child has the tracer, and no ticks that would ever end it."""
    for events in list(_opened):
        events.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork, after_in_child=_stop_in_child)


class LineEvents:
    """Counts the hits of lines and their time while it is on.

    Code is registered as it is: line_profiler would give each function longer bytecode, which code
    that is running already cannot be given, and which would stay after the profile.
    """

    def __init__(self) -> None:
        self._lib = cast(Any, require("line_profiler._line_profiler", "perfkit's line profile"))
        self._engine = self._lib.LineProfiler(wrap_trace=False)
        # A second one keeps the engine installed while ours is off: switching takes 2 µs, not 10.
        self._keeper = self._lib.LineProfiler(wrap_trace=False)
        self._codes: dict[int, CodeType] = {}
        self._bytecode: set[tuple[bytes, int]] = set()
        self._thread = threading.get_ident()
        self._error_callbacks: tuple[Any, Any] = (None, None)
        self.on = self._open = False

    def add(self, code: CodeType) -> bool:
        """Register a code object; takes effect at once. False for the twin of another one: the
        engine knows lines by their bytecode and number alone.
        """
        if id(code) in self._codes:
            return True
        lines = {(code.co_code, line) for _, _, line in code.co_lines() if line}
        if lines & self._bytecode:
            return False
        self._bytecode |= lines
        self._codes[id(code)] = code
        kept = self._lib.NOP_BYTES
        try:
            # What ends in padding is not padded again: let its own last bytes pass for it.
            self._lib.NOP_BYTES = code.co_code[-2:]
            self._engine.add_function(FunctionType(code, {}, closure=_cells(code)))
        finally:
            self._lib.NOP_BYTES = kept
        if self.on and LOCAL:
            self._listen([code], self._wanted)
        return True

    def open(self) -> None:
        """Take the engine. Raises NotSupportedHere where another tool traces."""
        refuse_other_tools()
        if LOCAL:
            self._keeper.enable()
            events = monitoring().events
            # An exception ends lines too, and cannot be limited to single code objects.
            monitoring().set_events(self._tool, events.RAISE | events.RERAISE)
            self._hear_errors((None, None))
        self._open = True
        _opened.add(self)

    def close(self) -> None:
        """Give the engine back; nothing is traced afterwards."""
        self.switch_off()
        if self._open and LOCAL:
            self._keeper.disable()
        self._open = False

    def switch_on(self) -> None:
        """Trace from here on, in this thread (before Python 3.12) or in all of them."""
        if self.on:
            return
        self._thread = threading.get_ident()
        self._engine.enable()
        if LOCAL:
            self._hear_errors(self._error_callbacks)
            self._listen(self._codes.values(), self._wanted)
        self.on = True

    def switch_off(self) -> dict[int, tuple[int, int]]:
        """Stop tracing. Returns the lines that were under way: line and nanoseconds so far, by the
        hash of their bytecode.
        """
        if not self.on:
            return {}
        now_ns = time.monotonic_ns()
        open_ = self._open_records()
        if LOCAL:
            self._listen(self._codes.values(), 0)
            self._hear_errors((None, None))
        self._engine.disable()
        self.on = False
        return {
            key: (each["f_lineno"], max(0, now_ns - each["time"])) for key, each in open_.items()
        }

    def displaced(self) -> bool:
        """Has other code put its own trace function in our place? Only before Python 3.12."""
        if LOCAL or threading.get_ident() != self._thread:
            return False
        return sys.gettrace() is not (self._engine._manager if self.on else None)

    def abandon(self) -> None:
        """Forget that we trace: somebody else's trace function stays as it is."""
        if self.on:
            theirs = sys.gettrace()
            self._engine.disable()
            sys.settrace(theirs)
        self.on = False

    def hits(self) -> int:
        """All hits so far."""
        return sum(
            entry["nhits"] for lines in self._engine.c_code_map.values() for entry in lines.values()
        )

    def table(self) -> dict[int, dict[int, tuple[int, int]]]:
        """Hits and nanoseconds by line, by the code's id."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        lines_of = self._engine.c_code_map
        for code, hashes in self._engine.code_hash_map.items():
            lines = found.setdefault(id(code), {})
            for line_hash in hashes:
                for line, entry in lines_of[line_hash].items():
                    hits, ns = lines.get(line, (0, 0))
                    lines[line] = hits + entry["nhits"], ns + entry["total_time"]
        return found

    def _open_records(self) -> dict[int, dict[str, int]]:
        try:
            records: dict[int, dict[str, int]] = self._engine.c_last_time
        except KeyError:
            return {}
        return records

    @property
    def _tool(self) -> int:
        return int(monitoring().PROFILER_ID)

    @property
    def _wanted(self) -> int:
        events = monitoring().events
        return int(events.LINE | events.PY_RETURN | events.PY_YIELD)

    def _hear_errors(self, callbacks: tuple[Any, Any]) -> None:
        """An event costs the less if nobody hears it; to end it would touch all code there is."""
        kinds = monitoring().events
        before = (
            monitoring().register_callback(self._tool, kinds.RAISE, callbacks[0]),
            monitoring().register_callback(self._tool, kinds.RERAISE, callbacks[1]),
        )
        if before != (None, None):
            self._error_callbacks = before

    def _listen(self, codes: Iterable[CodeType], events: int) -> None:
        for code in codes:
            monitoring().set_local_events(self._tool, code, events)


def monitoring() -> Any:
    """`sys.monitoring`, which is there from Python 3.12 on."""
    return sys.monitoring  # type: ignore[attr-defined,unused-ignore]


def _cells(code: CodeType) -> Any:
    def cell() -> Any:
        value = None

        def inner() -> Any:
            return value

        assert inner.__closure__ is not None
        return inner.__closure__[0]

    return tuple(cell() for _ in code.co_freevars) or None


def refuse_other_tools() -> None:
    """Raises NotSupportedHere if a debugger, a profiler or coverage traces this thread."""
    name = ""
    tracer = sys.gettrace() or sys.getprofile()
    if tracer is not None:
        name = getattr(type(tracer), "__module__", "") or type(tracer).__name__
        name = getattr(tracer, "__module__", None) or name
    elif LOCAL:
        name = monitoring().get_tool(monitoring().PROFILER_ID) or ""
    if tracer is not None or name:
        raise NotSupportedHere(
            f"another tool traces this code ({name}): two at once would time each other: "
            "stop it (a debugger, coverage, %prun, line_profiler) and run again"
        )
