"""The trace of a runtime that has events but tells nothing of single commands.

Before the body an event is recorded on each device, after it one on each lane. Their difference
is a stretch that holds the lane's work and every gap in it: an upper bound, not busy time. Two
libraries on one device share its default stream, so both are then said to have worked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol

from perfkit.devices.base import Clock, Lane, Mark, Seen, Trace
from perfkit.errors import DeviceError
from perfkit.intervals import Interval

__all__ = ["BracketTrace", "Bracketed", "Place"]

BRACKET = "the device time is the bracket of two events: launch gaps are inside"
ENDED_INSIDE = (
    "its work had ended when the body returned, and events around the body cannot see inside: "
    "leave the waiting to perfkit"
)
NEW_DEVICE = "a device was set up inside the body: run it again"
SLACK_S, DRIFT = 20e-6, 1e-4
"""A lane worked if its bracket is longer than the host's time by this, or by this share: events
on an idle stream are reached within microseconds, and two clocks do not quite agree."""
SETTLE_S = 1e-3


class Place(NamedTuple):
    """The handle of a lane: a stream on a device. Default streams exist on every device."""

    device: int
    stream: Any


class Bracketed(Protocol):
    """What the trace asks of its adapter, beside marks and lanes."""

    name: str
    open_traces: list[BracketTrace]

    def lanes(self) -> Sequence[Lane]: ...

    def in_use(self) -> Sequence[int]:
        """Devices that this process has set up."""

    def default_lane(self, number: int) -> Lane:
        """The default stream of a device."""

    def mark(self, lane: Lane) -> Mark: ...

    def elapsed_s(self, start: Mark, end: Mark) -> float | None: ...

    def is_reached(self, mark: Mark) -> bool:
        """Asked without waiting."""

    def is_idle(self, lane: Lane) -> bool:
        """Asked without waiting."""

    def observed(self, made: Callable[[Lane], None]) -> AbstractContextManager[object]:
        """While open, `made` is told of streams that are made, and `allocations` counts."""

    def allocations(self) -> int:
        """Any number that grows when device memory is allocated."""


class _Begin(NamedTuple):
    """A mark before the body, and the host's clock before and after it was recorded."""

    mark: Mark
    before_s: float
    after_s: float


class _End(NamedTuple):
    mark: Mark
    after_s: float
    was_busy: bool


class BracketTrace(Trace):
    """One interval for each lane that still worked when the body returned.

    Work that ended inside the body is known only by the memory it took: then there is no device
    time and a reason. Work in place that the body itself waits for is not seen at all, and
    neither is work on hidden streams that were not made through the runtime's own class; all of it
    is drained.
    """

    def __init__(self, device: Bracketed, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self.lanes: Sequence[Lane] = ()
        self._forget()

    def hook(self, stack: ExitStack) -> None:
        stack.enter_context(self._device.observed(self._on_made))
        self._device.open_traces.append(self)
        stack.callback(self._device.open_traces.remove, self)
        self.lanes = self._device.lanes()
        self.clear()

    def _on_made(self, lane: Lane) -> None:
        self._made.append(lane)

    def _forget(self) -> None:
        self._begun: dict[int, _Begin] = {}
        self._made: list[Lane] = []
        self._ended: list[_End] = []
        self._troubles: dict[str, None] = {}
        self._allocations = 0

    def clear(self) -> None:
        """Forget what was seen, and mark the beginning of the next body."""
        self._forget()
        for lane in self.lanes:
            if lane.handle.device not in self._begun:
                self._begin(lane)
        self._settle()
        self._allocations = self._device.allocations()

    def _begin(self, lane: Lane) -> None:
        before_s = self._clock()
        try:
            mark = self._device.mark(lane)
        except DeviceError:
            return  # its stream is gone; another lane of the device may do
        self._begun[lane.handle.device] = _Begin(mark, before_s, self._clock())

    def _settle(self) -> None:
        """Let the beginnings be reached, so that a lane is busy with the body's work alone. On
        devices that nobody drained they may not be for long: they are not waited for.
        """
        deadline_s = time.perf_counter() + SETTLE_S
        waiting = [begin.mark for begin in self._begun.values()]
        while waiting and time.perf_counter() < deadline_s:
            waiting = [mark for mark in waiting if not self._device.is_reached(mark)]

    def close_body(self) -> None:
        """Mark the end of each lane's work. Counts as wall time: a few µs for each lane."""
        for lane in self._all_lanes():
            begin = self._begun.get(lane.handle.device)
            if begin is None:
                self._troubles[NEW_DEVICE] = None
                continue
            try:
                was_busy = self._device.is_reached(begin.mark) and not self._device.is_idle(lane)
                self._ended.append(_End(self._device.mark(lane), self._clock(), was_busy))
            except DeviceError as error:
                self._troubles[str(error)] = None

    def _all_lanes(self) -> list[Lane]:
        return [*self.lanes, *self._made, *self.new_lanes((*self.lanes, *self._made))]

    def take(self) -> Seen:
        """The brackets of the lanes that worked; begins anew."""
        rows = tuple(filter(None, map(self._row, self._ended)))
        if not rows and self._device.allocations() != self._allocations:
            self._troubles[ENDED_INSIDE] = None
        troubles = [f"{self._device.name}: {trouble}" for trouble in self._troubles]
        self.clear()
        if not rows and not troubles:
            return Seen()
        return Seen(
            intervals=rows,
            launches=None,
            untimed=len(troubles),
            reason="; ".join(troubles) or BRACKET,
            bracketed=True,
        )

    def _row(self, end: _End) -> Interval | None:
        lane = end.mark.lane
        begin = self._begun[lane.handle.device]
        try:
            elapsed_s = self._device.elapsed_s(begin.mark, end.mark) or 0.0
        except DeviceError as error:
            self._troubles[str(error)] = None
            return None
        host_s = end.after_s - begin.before_s
        if not end.was_busy and elapsed_s < host_s * (1 + DRIFT) + SLACK_S:
            return None
        return Interval(begin.after_s, begin.after_s + elapsed_s, lane.name, "other", "work")

    def pending(self) -> int:
        """Lanes that have work."""
        return sum(not self._device.is_idle(lane) for lane in self._all_lanes())

    def new_lanes(self, known: Sequence[Lane]) -> Sequence[Lane]:
        """Default streams of devices that were set up since: draining a device drains all of it."""
        old = {lane.handle.device for lane in known}
        fresh = [number for number in self._device.in_use() if number not in old]
        return [self._device.default_lane(number) for number in fresh]
