"""The one contract between a measurement and a runtime.

Rules that every adapter keeps, and that tests/devices/test_contract.py runs over all of them:
nothing here imports or initialises a runtime; `owns` never waits; `synchronize` waits for all
work that the runtime was given, on every lane; what `trace` hooks is put back when it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol, Self

from perfkit.intervals import Interval

__all__ = [
    "Call",
    "Clock",
    "Device",
    "Flush",
    "Graph",
    "Lane",
    "Mark",
    "Memory",
    "Probe",
    "Profiler",
    "Seen",
    "Trace",
]

Clock = Callable[[], float]


class Probe(NamedTuple):
    """Is the runtime usable here, and if not, why. `devices` are names for people."""

    available: bool
    reason: str = ""
    devices: tuple[str, ...] = ()


class Lane(NamedTuple):
    """One ordered queue of work: a stream or command queue. `handle` is the runtime's own."""

    backend: str
    name: str
    handle: Any


class Mark(NamedTuple):
    """A point in a lane's work. `event` is the runtime's own."""

    lane: Lane
    event: Any


class Memory(NamedTuple):
    """Bytes of device memory in use, and their highest count; None where untold."""

    used_bytes: int | None = None
    peak_bytes: int | None = None


class Flush(NamedTuple):
    """What a cache flush wrote, and the size of the cache that it was to displace."""

    nbytes: int
    cache_bytes: int


class Graph:
    """Captured work. `replay` gives all of it to the device in one call."""

    replay: Callable[[], None]


class Call(NamedTuple):
    """The host's call that gave a device its work; `thread` is the caller's ident."""

    start_s: float
    end_s: float
    thread: int


class Seen(NamedTuple):
    """What a trace saw since it was last asked. Times are on the measurement's clock.

    `calls`: for each interval the call that launched it, where the runtime tells; else empty.
    `waits`: when the calling thread was blocked in the runtime. `launches`: commands given, None
    if some were but the runtime does not count them. `compiles`, `compile_s`: programs compiled.
    `untimed`: commands whose start and end the runtime does not tell, and `reason` why.
    `bracketed`: the intervals are whole stretches of a lane, with the gaps between its commands
    inside; `reason` says so.
    """

    intervals: tuple[Interval, ...] = ()
    waits: tuple[tuple[float, float], ...] = ()
    launches: int | None = 0
    untimed: int = 0
    reason: str = ""
    compiles: int = 0
    compile_s: float = 0.0
    bracketed: bool = False
    calls: tuple[Call, ...] = ()


class Trace:
    """Records a runtime's work while it is open; use it as a context manager.

    This one is for a runtime that gives no work away: it sees nothing, at no cost. Others override
    `hook` and what they have to tell.
    """

    _stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.hook(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hook(self, stack: ExitStack) -> None:
        """Begin to listen, and put on the stack what undoes it."""

    def clear(self) -> None:
        """Forget what was seen so far, without waiting."""

    def close_body(self) -> None:
        """The body has returned; the drain comes next. Marks the end of its work, if need be."""

    def take(self) -> Seen:
        """What was seen since the last `take` or `clear`; call it after `synchronize`."""
        return Seen()

    def pending(self) -> int:
        """Commands seen that have not ended, asked without waiting."""
        return 0

    def new_lanes(self, known: Sequence[Lane]) -> Sequence[Lane]:
        """Lanes that were given work while the trace was open and are not among `known`."""
        return ()


class Profiler(Protocol):
    """What a runtime with `has_profile` has besides."""

    def profile(self, clock: Clock) -> AbstractContextManager[list[Interval]]:
        """Run the runtime's profiler. The list is filled when it has stopped."""


class Device(Protocol):
    """A runtime. Capability flags steer the report; nothing asks for the adapter's type.

    `name`: the word for `--backend`. `asynchronous`: calls return before the work ends.
    `has_events`: marks have times. `sees_commands`: a trace knows each command with its start
    and end. `sees_waits`: blocking calls are seen. `has_profile`: it is a Profiler too, which
    knows start and end where a trace does not.
    """

    name: str
    has_events: bool
    sees_commands: bool
    sees_waits: bool

    @property
    def has_profile(self) -> bool:
        """May be told anew each time. Never raises."""

    @property
    def asynchronous(self) -> bool:
        """False also where the runtime is imported but cannot be used. Never raises."""

    def probe(self) -> Probe:
        """What there is. Never raises, never imports or initialises."""

    def owns(self, obj: object) -> bool:
        """Does `obj` live on this runtime? Told from its type alone, without waiting."""

    def lanes(self) -> Sequence[Lane]:
        """Every lane known now. May take milliseconds: call it outside a timed region."""

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Wait until the lanes (default: all known) are empty.

        Raises DeviceError if the device failed.
        """

    def mark(self, lane: Lane) -> Mark:
        """Record an event behind the work given to `lane` so far."""

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Device seconds between two marks; None without events. Raises DeviceError where the
        marks have not been reached, lie on different devices, or were made without timing.
        """

    def memory(self) -> Memory | None:
        """Device memory now, or None."""

    def trace(self, clock: Clock) -> Trace:
        """A recorder of this runtime's work whose times are those of `clock`."""

    def flush_cache(self) -> Flush:
        """Displace what the cache nearest to memory holds. Raises NotSupportedHere."""

    def capture(self) -> AbstractContextManager[Graph]:
        """Capture what is launched inside, instead of running it; the graph can be replayed
        afterwards. Raises NotSupportedHere where there are no graphs, or the work fits into none.
        """
