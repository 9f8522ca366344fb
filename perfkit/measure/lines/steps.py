"""Stop after each statement: wait for the devices, read memory, and charge it to that statement.

Slow on purpose. line_profiler has no place to stop in, so this is a tracer of our own; the time
that it takes itself is read at both ends and left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.devices.base import Device, Lane, Trace
from perfkit.devices.detect import devices_in_use
from perfkit.intervals import covered_s
from perfkit.measure.lines import events
from perfkit.measure.lines.profiled import Profiled
from perfkit.system.memory import traced_memory

__all__ = ["Steps", "Sums"]

_TOOL = "perfkit"


class Sums:
    """What the runs of one statement add up to, recursion counted once. Seconds and bytes."""

    __slots__ = (
        "device_bytes",
        "device_s",
        "host_bytes",
        "host_s",
        "inner_s",
        "peak_bytes",
        "runs",
        "waited_s",
    )

    def __init__(self) -> None:
        self.host_s = self.waited_s = self.device_s = self.inner_s = 0.0
        self.host_bytes = self.peak_bytes = self.device_bytes = self.runs = 0

    @property
    def time_s(self) -> float:
        """Host time and the waiting after it."""
        return self.host_s + self.waited_s


class _State(NamedTuple):
    """Counters that only grow, read at a statement's start and end."""

    now_s: float
    own_s: float
    waited_s: float
    device_s: float
    host_bytes: int
    device_bytes: int


class _Open:
    """A statement under way in one frame."""

    __slots__ = ("frame", "inner_s", "number", "peak_bytes", "start")

    def __init__(self, frame: FrameType, number: int, start: _State) -> None:
        self.frame, self.number, self.start = frame, number, start
        self.inner_s = 0.0
        self.peak_bytes = start.host_bytes


class Steps:
    """A context manager; while it is open the profiled code of this thread stops at each line."""

    def __init__(
        self,
        profiled: Profiled,
        *,
        sync: bool,
        memory: bool,
        backends: Sequence[str] | None = None,
        discover: Callable[[CodeType], bool] = lambda _: False,
    ) -> None:
        self._profiled, self._sync, self._memory = profiled, sync, memory
        self._backends, self._discover = backends, discover
        self.sums: dict[int, Sums] = {}
        self.lines: dict[int, dict[int, int]] = {}
        self.worked: set[str] = set()
        self.reasons: dict[str, str] = {}
        """Why the device times of a runtime's work are not known."""
        self.own_s = 0.0
        self.waited_s = self._device_s = 0.0
        self.counts_device = self.displaced = False
        self._open: dict[int, _Open] = {}
        self._depth: dict[int, int] = {}
        self._ignored: dict[int, CodeType] = {}
        self._watched: dict[str, tuple[Device, Trace, Sequence[Lane]]] = {}
        self._modules = 0
        self._stack = ExitStack()
        self._busy = False

    # -- open and close ------------------------------------------------------------------------

    def __enter__(self) -> Steps:
        with ExitStack() as stack:
            self._traces = stack.enter_context(ExitStack())
            if self._memory:
                self._memory_now = stack.enter_context(traced_memory())
            self._watch()
            self._settle()
            stack.enter_context(_Monitoring(self) if events.LOCAL else _Tracing(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            state = self._settle()
            for key in reversed(list(self._open)):
                self._close(key, state)
        finally:
            self._stack.close()

    def _watch(self) -> None:
        """Open a trace on every runtime that is there now."""
        self._modules = len(sys.modules)
        if not (self._sync or self._memory):
            return
        for device in devices_in_use(self._backends):
            if device.name not in self._watched:
                trace = self._traces.enter_context(device.trace(time.perf_counter))
                self._watched[device.name] = device, trace, device.lanes()

    # -- events --------------------------------------------------------------------------------

    def line(self, frame: FrameType, line: int, resumed: bool = False) -> None:
        """A line of profiled code begins in `frame`, or goes on after a wait."""
        __tracebackhide__ = True
        if not resumed:
            counts = self.lines.setdefault(id(frame.f_code), {})
            counts[line] = counts.get(line, 0) + 1
        self._guarded(lambda: self._line(frame, line))

    def leave(self, frame: FrameType) -> None:
        """A frame returns, yields or is left by an error."""
        __tracebackhide__ = True
        if id(frame) in self._open:
            self._guarded(lambda: self._leave(frame))

    def _guarded(self, stop: Callable[[], None]) -> None:
        """Stop at a statement, unless that is what is under way. An interrupt is the body's."""
        __tracebackhide__ = True
        if self._busy:
            return
        self._busy = True
        try:
            stop()
            return
        except KeyboardInterrupt:
            pass
        finally:
            self._busy = False
        raise KeyboardInterrupt

    def _leave(self, frame: FrameType) -> None:
        began_s = time.perf_counter()
        self._close(id(frame), self._settle(began_s))
        self.own_s += time.perf_counter() - began_s

    def knows(self, code: CodeType) -> bool:
        """Is this code's every line to be looked at?"""
        if id(code) in self._ignored:
            return False
        if self._profiled.knows(code) or self._discover(code):
            return bool(self._profiled.lines_of(code))
        self._ignored[id(code)] = code
        return False

    def _line(self, frame: FrameType, line: int) -> None:
        began_s = time.perf_counter()
        number = self._profiled.lines_of(frame.f_code).get(line, -1)
        here = self._open.get(id(frame))
        if here is not None and here.number == number and here.frame is frame:
            layout, place = self._profiled.row(number)
            if layout.rows[place].end_line > layout.rows[place].line:
                self.own_s += time.perf_counter() - began_s
                return
        state = self._settle(began_s)
        if here is not None:
            self._close(id(frame), state)
        if len(sys.modules) != self._modules:
            self._watch()
        if number >= 0:
            self._depth[number] = self._depth.get(number, 0) + 1
        self.own_s += time.perf_counter() - began_s
        if number >= 0:
            start = state._replace(now_s=time.perf_counter(), own_s=self.own_s)
            self._open[id(frame)] = _Open(frame, number, start)

    def _close(self, key: int, state: _State) -> None:
        """A statement has ended: charge it, and tell the one that called it."""
        here = self._open.pop(key)
        start = here.start
        waited_s = state.waited_s - start.waited_s
        host_s = max(0.0, state.now_s - start.now_s - (state.own_s - start.own_s))
        sums = self.sums.setdefault(here.number, Sums())
        sums.runs += 1
        self._depth[here.number] -= 1
        if not self._depth[here.number]:
            sums.host_s += host_s
            sums.waited_s += waited_s
            sums.device_s += state.device_s - start.device_s
            sums.inner_s += here.inner_s
            sums.host_bytes += state.host_bytes - start.host_bytes
            sums.device_bytes += state.device_bytes - start.device_bytes
            sums.peak_bytes = max(sums.peak_bytes, here.peak_bytes - start.host_bytes)
        caller = here.frame.f_back
        while caller is not None and id(caller) not in self._open:
            caller = caller.f_back
        if caller is not None:
            self._open[id(caller)].inner_s += host_s + waited_s

    def _settle(self, began_s: float | None = None) -> _State:
        """Wait for the devices, and read all counters. `now_s` is when the statement ended."""
        began_s = time.perf_counter() if began_s is None else began_s
        own_s = self.own_s
        if self._sync:
            self._wait(began_s)
        host_bytes = device_bytes = 0
        if self._memory:
            host_bytes, peak_bytes = self._memory_now()
            for each in self._open.values():
                each.peak_bytes = max(each.peak_bytes, peak_bytes)
            device_bytes = self._device_bytes()
        return _State(began_s, own_s, self.waited_s, self._device_s, host_bytes, device_bytes)

    def _wait(self, began_s: float) -> None:
        for name, (device, trace, lanes) in self._watched.items():
            start_s = time.perf_counter()
            trace.close_body()
            device.synchronize((*lanes, *trace.new_lanes(lanes)))
            waited_s = time.perf_counter() - start_s
            seen = trace.take()
            if not (seen.intervals or seen.untimed or seen.launches is None or seen.launches):
                continue
            self.worked.add(name)
            self.waited_s += waited_s
            if seen.intervals:
                spans = [(each.start_s, each.end_s) for each in seen.intervals]
                first_s = min(start for start, _ in spans)
                self._device_s += covered_s(spans, first_s, max(end for _, end in spans))
            else:
                self.reasons[name] = seen.reason or "it does not tell when its work runs"
                # A runtime that does not tell: the waiting is what is known of its work.
                inside = [span for span in seen.waits if span[1] <= began_s]
                self._device_s += waited_s + sum(end - start for start, end in inside)

    def _device_bytes(self) -> int:
        used = 0
        for device, _, _ in self._watched.values():
            memory = device.memory()
            if memory is not None and memory.used_bytes is not None:
                self.counts_device = True
                used += memory.used_bytes
        return used


class _Tracing:
    """Before Python 3.12: a trace function, in this thread alone."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        base = self._steps._profiled.base
        if base is not None:
            base.f_trace = self._local
        sys.settrace(self._global)

    def __exit__(self, *_: object) -> None:
        # An error that comes out of a trace function takes it away.
        if sys.gettrace() in (self._global, None):
            sys.settrace(None)
        else:
            self._steps.displaced = True
        base = self._steps._profiled.base
        if base is not None:
            base.f_trace = None

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        __tracebackhide__ = True
        if event != "call" or not self._steps.knows(frame.f_code):
            return None
        # A generator that goes on is called again on the line where it stopped.
        if frame.f_lineno != frame.f_code.co_firstlineno:
            self._steps.line(frame, frame.f_lineno, resumed=True)
        return self._local

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        __tracebackhide__ = True
        if event == "line":
            self._steps.line(frame, frame.f_lineno)
        elif event == "return":
            self._steps.leave(frame)
        return self._local


class _Monitoring:
    """From Python 3.12 on: monitoring of the profiled code alone."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        monitoring, steps = events.monitoring(), self._steps
        tool, kinds = monitoring.PROFILER_ID, monitoring.events
        monitoring.use_tool_id(tool, _TOOL)

        def on_line(code: CodeType, line: int) -> Any:
            __tracebackhide__ = True
            if not steps.knows(code):
                return monitoring.DISABLE
            steps.line(sys._getframe(1), line)
            return None

        def on_leave(code: CodeType, *_: Any) -> None:
            __tracebackhide__ = True
            steps.leave(sys._getframe(1))

        def on_resume(code: CodeType, offset: int) -> Any:
            __tracebackhide__ = True
            if not steps.knows(code):
                return monitoring.DISABLE
            frame = sys._getframe(1)
            steps.line(frame, frame.f_lineno, resumed=True)
            return None

        for event, callback in (
            (kinds.LINE, on_line),
            (kinds.PY_RETURN, on_leave),
            (kinds.PY_YIELD, on_leave),
            (kinds.PY_UNWIND, on_leave),
            (kinds.PY_RESUME, on_resume),
        ):
            monitoring.register_callback(tool, event, callback)
            self._all = getattr(self, "_all", 0) | event
        monitoring.set_events(tool, self._all)

    def __exit__(self, *_: object) -> None:
        monitoring = events.monitoring()
        tool, kinds = monitoring.PROFILER_ID, monitoring.events
        monitoring.set_events(tool, 0)
        for event in (
            kinds.LINE,
            kinds.PY_RETURN,
            kinds.PY_YIELD,
            kinds.PY_UNWIND,
            kinds.PY_RESUME,
        ):
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
        # What was disabled for single lines must be heard again by whoever comes next.
        monitoring.restart_events()
