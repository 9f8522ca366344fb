"""A real asynchronous device made of host threads: streams, events, nothing to install.

A stream is a thread with a queue. Work is a Python callable; it runs on the host's own cores, so
this device teaches what asynchronous means, and is the reference that other adapters are held to.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

from perfkit.devices.base import Call, Clock, Flush, Graph, Lane, Mark, Memory, Probe, Seen, Trace
from perfkit.devices.host import flush_host_cache
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.intervals import Interval

__all__ = ["Event", "Stream", "ThreadDevice"]


class Event:
    """A point in a stream's work. `timing=False` makes one that can be waited for, not read."""

    def __init__(self, *, timing: bool = True) -> None:
        self.timing = timing
        self.stream: Stream | None = None
        self._reached = threading.Event()
        self._reached_s: float | None = None

    def record(self, stream: Stream) -> None:
        """Put this point behind the work that `stream` was given so far."""
        self._reached.clear()
        self.stream = stream
        stream._put(_Command(self._reach, "other", "event", 0))

    def _reach(self) -> None:
        self._reached_s = time.perf_counter()
        self._reached.set()

    def query(self) -> bool:
        """Has it been reached? Does not wait."""
        return self._reached.is_set()

    def synchronize(self) -> None:
        """Wait until it is reached. Raises DeviceError if it was never recorded."""
        if self.stream is None:
            raise DeviceError("the event was never recorded: call event.record(stream) first")
        with _ObservedWait():
            self._reached.wait()

    def elapsed_s(self, end: Event) -> float:
        """Seconds from this event to `end`. Raises DeviceError saying which of the two is not
        recorded, not reached, made without timing, or on another device.
        """
        for name, event in (("start", self), ("end", end)):
            if event.stream is None:
                raise DeviceError(f"the {name} event was never recorded: call event.record(stream)")
            if not event.timing:
                raise DeviceError(f"the {name} event was made with timing=False: it has no time")
            if not event.query():
                raise DeviceError(f"the {name} event is not reached yet: synchronize it first")
        assert self.stream is not None and end.stream is not None
        if self.stream.device != end.stream.device:
            raise DeviceError(
                f"the events are on two devices ({self.stream.device} and {end.stream.device}): "
                "take a pair of events on each"
            )
        assert self._reached_s is not None and end._reached_s is not None
        return end._reached_s - self._reached_s


class _Command:
    """One piece of work on its way through a stream; `end_s` is None until it has ended."""

    __slots__ = (
        "called_s",
        "end_s",
        "kind",
        "name",
        "nbytes",
        "returned_s",
        "start_s",
        "stream",
        "thread",
        "work",
    )

    def __init__(self, work: Callable[[], object] | None, kind: str, name: str, nbytes: int):
        self.work = work
        self.kind, self.name, self.nbytes = kind, name, nbytes
        self.called_s = self.returned_s = time.perf_counter()
        self.thread = threading.get_ident()
        self.start_s: float | None = None
        self.end_s: float | None = None
        self.stream: Stream | None = None


class Stream:
    """An ordered queue of work on its own thread. Streams of one `device` share nothing else.

    The thread is a daemon, and ends when the stream is closed or collected.
    """

    _numbers = itertools.count()
    _alive: ClassVar[weakref.WeakSet[Stream]] = weakref.WeakSet()

    def __init__(self, name: str = "", *, device: str = "thread0") -> None:
        self.name = name or f"stream {next(self._numbers)}"
        self.device = device
        self._process = os.getpid()
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(
            target=_serve, args=(self._commands, self._failure), name=self.name, daemon=True
        )
        self._thread.start()
        # The serving thread must not hold the stream, or it could never be collected.
        self._finalizer = weakref.finalize(self, self._commands.put, None)
        self._alive.add(self)

    def launch(
        self,
        work: Callable[..., object],
        *args: Any,
        kind: str = "kernel",
        name: str = "",
        nbytes: int = 0,
    ) -> None:
        """Give the stream `work(*args)` to run, and return at once."""
        call = (lambda: work(*args)) if args else work
        title = name or getattr(work, "__name__", "work")
        command = _Command(call, kind, title, nbytes)
        command.stream = self
        for trace in tuple(_traces):
            trace.commands.append(command)
            trace.streams[self] = None
        self._put(command)
        command.returned_s = time.perf_counter()

    def copy(self, source: Any, target: Any, *, kind: str = "h2d") -> None:
        """Copy the bytes of one buffer into another of the same size, in this stream's order."""
        view = memoryview(source).cast("B")

        def move() -> None:
            memoryview(target).cast("B")[:] = view

        self.launch(move, kind=kind, name="copy", nbytes=view.nbytes)

    def synchronize(self) -> None:
        """Wait until all work given so far has ended. Raises DeviceError if some of it failed."""
        if self._finalizer.alive:
            done = Event()
            done.record(self)
            done.synchronize()
        else:
            with _ObservedWait():
                self._thread.join()
        if self._failure:
            failure = self._failure[0]
            self._failure.clear()
            raise DeviceError(
                f"work on {self.name} failed: {type(failure).__name__}: {failure}"
            ) from failure

    def close(self) -> None:
        """End the thread when the work given so far has ended."""
        self._finalizer()

    def _put(self, command: _Command) -> None:
        if not self._finalizer.alive:
            raise DeviceError(f"{self.name} is closed: make a new Stream")
        if self._process != os.getpid():
            raise DeviceError(
                f"{self.name} was made before this process was forked: make a new Stream in it"
            )
        self._commands.put(command)


def _serve(commands: queue.SimpleQueue[_Command | None], failure: list[BaseException]) -> None:
    while (command := commands.get()) is not None:
        work, command.work = command.work, None
        command.start_s = time.perf_counter()
        try:
            if work is not None:
                work()
        except BaseException as error:
            failure.append(error)
        command.end_s = time.perf_counter()
        del work, command


_traces: list[_ThreadTrace] = []


class _ObservedWait:
    """Reports the time spent inside to the traces, if the calling thread is theirs."""

    def __enter__(self) -> None:
        self._start_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        end_s = time.perf_counter()
        for trace in tuple(_traces):
            if trace.thread == threading.get_ident():
                trace.waits.append((self._start_s, end_s))


class _ThreadTrace(Trace):
    def __init__(self, clock: Clock) -> None:
        # Commands are stamped with perf_counter; the measurement may run on another clock.
        self._offset_s = clock() - time.perf_counter() if clock is not time.perf_counter else 0.0
        self.thread = threading.get_ident()
        self.commands: list[_Command] = []
        self.waits: list[tuple[float, float]] = []
        self.streams: dict[Stream, None] = {}

    def hook(self, stack: ExitStack) -> None:
        _traces.append(self)
        stack.callback(_traces.remove, self)

    def clear(self) -> None:
        self.commands, self.waits = [], []

    def take(self) -> Seen:
        commands, waits = self.commands, self.waits
        self.clear()
        offset = self._offset_s
        timed = [
            (command, command.stream, command.start_s, command.end_s)
            for command in commands
            if command.stream and command.start_s is not None and command.end_s is not None
        ]
        intervals = tuple(
            Interval(
                start_s + offset,
                end_s + offset,
                f"thread {stream.name}",
                command.kind,
                command.name,
                command.nbytes,
            )
            for command, stream, start_s, end_s in timed
        )
        untimed = len(commands) - len(intervals)
        return Seen(
            intervals=intervals,
            calls=tuple(
                Call(command.called_s + offset, command.returned_s + offset, command.thread)
                for command, *_ in timed
            ),
            waits=tuple((start + offset, end + offset) for start, end in waits),
            launches=len(commands),
            untimed=untimed,
            reason="some work had not ended" if untimed else "",
        )

    def new_lanes(self, known: Sequence[Lane]) -> Sequence[Lane]:
        old = {lane.handle for lane in known}
        return [Lane("thread", s.name, s) for s in self.streams if s not in old]

    def pending(self) -> int:
        return sum(command.end_s is None for command in self.commands)


class ThreadDevice:
    """Adapter of the streams above."""

    name = "thread"
    asynchronous = True
    has_events = sees_commands = True
    sees_waits = True
    has_profile = False

    def probe(self) -> Probe:
        """Always there; `devices` names those that have streams."""
        return Probe(available=True, devices=tuple(sorted({s.device for s in Stream._alive})))

    def owns(self, obj: object) -> bool:
        """Streams and their events."""
        return isinstance(obj, Stream | Event)

    def lanes(self) -> Sequence[Lane]:
        """Every stream that lives."""
        here = os.getpid()
        alive = [s for s in Stream._alive if s._finalizer.alive and s._process == here]
        return tuple(Lane("thread", s.name, s) for s in sorted(alive, key=lambda s: s.name))

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Wait for every stream; a failure is raised when all of them are empty."""
        failures = []
        for lane in self.lanes() if lanes is None else lanes:
            try:
                lane.handle.synchronize()
            except DeviceError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def mark(self, lane: Lane) -> Mark:
        """Record an event on the lane's stream."""
        event = Event()
        event.record(lane.handle)
        return Mark(lane, event)

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Seconds between two reached marks of one device."""
        elapsed: float = start.event.elapsed_s(end.event)
        return elapsed

    def memory(self) -> Memory | None:
        """It has no memory of its own."""
        return None

    def trace(self, clock: Clock) -> _ThreadTrace:
        """Every command of every stream."""
        return _ThreadTrace(clock)

    def flush_cache(self) -> Flush:
        """Its cache is the host's."""
        return flush_host_cache()

    def capture(self) -> AbstractContextManager[Graph]:
        """Threads have no graphs."""
        raise NotSupportedHere("the thread device has no graphs to capture")
