"""Profile the lines of a cell or function: which code, in which way, and the record of it."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, get_args

from perfkit.devices.detect import devices_in_use
from perfkit.errors import PerfkitError, UsageError
from perfkit.measure.lines import targets
from perfkit.measure.lines.calibration import Costs, calibrate
from perfkit.measure.lines.events import LineEvents, forks, refuse_other_tools
from perfkit.measure.lines.report import Observed, record
from perfkit.measure.lines.sampler import Sampler
from perfkit.measure.lines.scope import Cell, Scope
from perfkit.measure.lines.stepped import stepped
from perfkit.measure.lines.steps import Steps
from perfkit.measure.lines.ticks import AlarmTicks, ThreadTicks, Ticks, why_no_alarm
from perfkit.optional import require
from perfkit.records.base import keep_last
from perfkit.records.lines import LineProfile

__all__ = ["Asked", "Cell", "LineMeasurement", "profile_lines"]

Way = Literal["bursts", "exact", "twice"]
Runs = Generator[None, None, None]


class Asked(NamedTuple):
    """What is asked of a line profile. `functions`: what to profile besides what is found by name
    (`find`), each with the words that name it for people. `sync`, `memory`: stop after each
    statement, to wait for the devices or to read memory. `backends`: only these runtimes.
    """

    mode: Way = "bursts"
    functions: tuple[tuple[str, Any], ...] = ()
    find: bool = True
    sync: bool = False
    memory: bool = False
    backends: tuple[str, ...] | None = None

    def checked(self) -> Asked:
        """This. Raises UsageError in one line where it makes no sense."""
        if self.mode not in get_args(Way):
            raise UsageError(f"mode is {self.mode!r}: give 'bursts', 'exact' or 'twice'")
        if self.mode != "bursts" and (self.sync or self.memory):
            raise UsageError(
                "--sync and --memory stop after each statement: leave out --exact and --twice"
            )
        return self


def profile_lines(
    fn: Callable[..., object],
    *args: Any,
    mode: Way = "bursts",
    functions: Sequence[Any] = (),
    sync: bool = False,
    memory: bool = False,
    **kwargs: Any,
) -> LineProfile:
    """Profile the lines of `fn(*args, **kwargs)`, and of the user's own functions that it calls.

    `mode`: 'bursts' traces in short bursts and takes the time from ticks in between (right shares,
    hits of hot lines as lower limits); 'exact' traces everything (all hits, wide uncertainty);
    'twice' runs `fn` once plain for the time and once traced for the hits. `functions`: profile
    these too, libraries' as well. `sync`: wait for the devices after each statement, which gives
    statements their device time; `memory`: count what each allocates. A function with arguments of
    these names: wrap it in lambda.

    Raises UsageError if there is no Python code to profile, NotSupportedHere while another tool
    traces, and whatever `fn` raises; what was seen by then is `perfkit.last()`.
    """
    if not callable(fn):
        raise UsageError(f"profile_lines runs a function, not {type(fn).__name__}")
    name = targets.words_for(fn)
    wanted = tuple((targets.words_for(each), each) for each in functions)
    asked = Asked(mode, wanted, sync=sync, memory=memory).checked()
    measurement = LineMeasurement(asked, label=name, stop_at=profile_lines.__code__, body=fn)
    with closing(measurement.runs()) as runs:
        for _ in runs:
            fn(*args, **kwargs)
    if measurement.profile is None:
        raise PerfkitError(f"{name}: the line profile could not be made; see the warning")
    return measurement.profile


class LineMeasurement:
    """One line profile under way. `profile` is set when `runs` has ended, however it ended."""

    def __init__(
        self,
        asked: Asked,
        *,
        label: str,
        cell: Cell | None = None,
        stop_at: CodeType | None = None,
        body: Callable[..., object] | None = None,
        between: Callable[[], None] = lambda: None,
        done: Callable[[LineProfile | None], None] = lambda _: None,
    ) -> None:
        """`body`: the function that is run, where there is no cell. `stop_at`: the code that calls
        the body. `between` is called before the second run of
        'twice'; `done` once, when `runs` has ended. Raises what `profile_lines` raises.
        """
        refuse_other_tools()
        if asked.backends:
            devices_in_use(asked.backends)
        self.profile: LineProfile | None = None
        self._asked, self._label, self._cell = asked, label, cell
        self._between, self._done = between, done
        self._scope = Scope(asked.find)
        self._scope.profiled.stop_at = stop_at
        self._elapsed: list[float] = []
        self._plain: Sampler | None = None
        self._steps: Steps | None = None
        self._traced: Sampler | None = None
        self._mode = asked.mode
        if body is not None:
            self._scope.name_body(body)
        self._scope.name(asked.functions)

    def profile_decorator(self, function: Any) -> Any:
        """What `@profile` does in a cell: the function is profiled, and stays as it is."""
        for each in targets.unwrap(function, targets.words_for(function))[0]:
            self._scope.add(each.__code__)
        return function

    def dump(self, path: str) -> None:
        """Write what `python -m line_profiler PATH` reads: corrected times, hits as counted."""
        assert self.profile is not None
        stats = require("line_profiler.line_profiler", "-D")
        timings: dict[tuple[str, int, str], list[tuple[int, int, int]]] = {}
        for layout in self._scope.profiled.layouts:
            code = layout.code
            timings[code.co_filename, code.co_firstlineno, code.co_qualname] = [
                (row.line, row.hits, round(1e9 * row.time_s))
                for row in self.profile.statements
                if row.function == layout.name and layout.row_of_line.get(row.line) is not None
            ]
        stats.LineStats(timings, 1e-9).to_file(path)

    # -- the run -------------------------------------------------------------------------------

    def runs(self) -> Runs:
        """Yield once for each run of the body (twice in mode 'twice')."""
        __tracebackhide__ = True
        stopped = "an error or an interrupt"
        try:
            self._prepare(sys._getframe(1))
            if self._asked.sync or self._asked.memory:
                yield from self._run_in_steps()
            elif self._mode == "twice":
                yield from self._run("never")
                self._plain = self._traced
                self._between()
                yield from self._run("always")
            else:
                yield from self._run("bursts" if self._mode == "bursts" else "always")
            stopped = ""
        finally:
            self._scope.events.close()
            self._scope.profiled.base = None
            try:
                if self._elapsed:
                    self.profile = self._record(stopped)
                    keep_last(self.profile)
            except Exception as error:
                # The user's cell has run, and must not fail by a fault of ours.
                warnings.warn(
                    f"the line profile could not be made ({type(error).__name__}: {error})",
                    RuntimeWarning,
                    stacklevel=2,
                )
            finally:
                self._done(self.profile)

    def _prepare(self, frame: FrameType) -> None:
        self._scope.prepare(self._cell, frame)
        if self._asked.sync or self._asked.memory:
            return
        self._scope.events.open()
        self._costs: Costs = calibrate(self._scope.events)
        self._ticks: Ticks = AlarmTicks()
        if reason := why_no_alarm():
            self._ticks = ThreadTicks()
            if self._mode == "bursts":
                self._mode = "exact"
                self._scope.note(f"no bursts: {reason}; everything was traced instead (--exact)")

    def _run(self, mode: Literal["bursts", "always", "never"]) -> Runs:
        __tracebackhide__ = True
        sampler = Sampler(
            self._scope.profiled, self._scope.events, self._costs, mode, self._scope.discover
        )
        self._traced = sampler
        threads = _ThreadEvents(self._scope.events, on=mode == "always")
        ticks = self._ticks
        children = _children()
        with threads:
            sampler.start()
            ticks.start(sampler.tick)
            sampler.restart_clock()
            start_s = time.perf_counter()
            try:
                yield
            finally:
                end_s = time.perf_counter()
                taken = not ticks.is_ours()
                ticks.stop()
                sampler.stop()
                self._elapsed.append(max(0.0, end_s - start_s - sampler.waited_s))
        if _children() > children:
            self._scope.note("child processes ran as well: their lines are not in this profile")
        if taken:
            self._scope.note("the code took the alarm signal while it ran: ticks ended there")

    def _run_in_steps(self) -> Runs:
        __tracebackhide__ = True
        asked = self._asked
        self._steps = Steps(
            self._scope.profiled,
            sync=asked.sync,
            memory=asked.memory,
            backends=asked.backends,
            discover=self._scope.discover,
        )
        with self._steps:
            start_s = time.perf_counter()
            try:
                yield
            finally:
                self._elapsed.append(time.perf_counter() - start_s)

    def _record(self, stopped: str) -> LineProfile:
        if self._steps is not None:
            return stepped(
                self._label,
                self._scope.profiled,
                self._steps,
                self._elapsed[0],
                stopped,
                self._asked,
                tuple(self._scope.notes),
            )
        assert self._traced is not None
        seen = Observed(
            label=self._label,
            mode=self._mode,
            profiled=self._scope.profiled,
            table=self._scope.events.table(),
            costs=self._costs,
            sampler=self._traced,
            plain=self._plain,
            elapsed_s=tuple(self._elapsed),
            has_base=self._scope.has_base,
            notes=tuple(self._scope.notes),
            stopped=stopped,
        )
        return record(seen)


def _children() -> tuple[int, int]:
    """How often this process was forked, and hundredths of seconds that ended children ran."""
    times = os.times()
    return forks[0], round(100 * (times.children_user + times.children_system))


class _ThreadEvents:
    """Before Python 3.12 tracing is a thread's own matter: switch it on in threads that start."""

    def __init__(self, events: LineEvents, on: bool) -> None:
        self._events = events
        self._needed = on and sys.version_info < (3, 12)

    def __enter__(self) -> None:
        if not self._needed:
            return
        self._kept = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        kept, engine = self._kept, self._events._engine

        def traced(thread: threading.Thread) -> None:
            if thread.name == "perfkit-ticks":
                kept(thread)
                return
            engine.enable()
            try:
                kept(thread)
            finally:
                # Thread numbers are used again: what stays enabled would blind the next one.
                engine.disable()

        threading.Thread._bootstrap_inner = traced  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        if self._needed:
            with suppress(AttributeError):
                threading.Thread._bootstrap_inner = self._kept  # type: ignore[attr-defined]
