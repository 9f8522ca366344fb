"""Where a body is at each tick, and when its lines are traced.

Tracing makes tight loops ten times slower and charges the cost to the wrong lines, so that no
table of costs can take it out again. It is therefore on in short bursts only, for the hits and
for the split inside loops; the time comes from the ticks between them, which cost next to nothing.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Literal, NamedTuple

from perfkit.measure.lines.calibration import Costs
from perfkit.measure.lines.events import LOCAL, LineEvents
from perfkit.measure.lines.profiled import Profiled, Stack
from perfkit.measure.lines.ticks import current_frames
from perfkit.system.noise import RunQueueWait

__all__ = ["DISPLACED", "LATE_S", "Sampler", "Weight"]

BURST_S = 2e-3 if LOCAL else 4e-3
OFF = 9.0 if LOCAL else 4.0
"""After a burst tracing is off for so many times its length."""
HEAVY, VERY_HEAVY = 0.10, 0.45
"""Share of the time that line events cost: above the first, tracing stops after a burst; above
the second the correction itself is doubtful, and the ticks count for little."""
DOUBTFUL, UNSEEN = 0.12, 0.35
"""What ticks count for under very heavy tracing, and, before Python 3.12, where code that is not
profiled was slowed without leaving hits."""
IDLE = 0.3
"""A thread that computes for a smaller share of the time waits: tracing does not slow that."""
LATE_S = 1.8e-3
"""A tick that comes so late waited for a long call in C to end."""
DISPLACED = (
    "another tool took the trace function while the code ran: lines were not traced from there on"
)
READ_SHARE = 0.05
"""Counting hits may cost such a share of a burst."""


class Weight:
    """What the ticks on one stack add up to: corrected seconds, seconds as they passed (of these
    while tracing), and their number.
    """

    __slots__ = ("count", "seconds", "traced_s", "true_s")

    def __init__(self) -> None:
        self.true_s = self.seconds = self.traced_s = 0.0
        self.count = 0


class _Tick(NamedTuple):
    """A tick of a burst whose cost is not known yet."""

    stack: Stack
    seconds: float
    waits: bool


class Sampler:
    """Give `tick` to something that ticks. `mode`: trace in bursts, always or never."""

    def __init__(
        self,
        profiled: Profiled,
        events: LineEvents,
        costs: Costs,
        mode: Literal["bursts", "always", "never"],
        discover: Callable[[CodeType], bool] = lambda _: False,
    ) -> None:
        self._profiled, self._events, self._costs, self._mode = profiled, events, costs, mode
        self._discover = discover
        self.weights: dict[Stack, Weight] = {}
        self.other_threads: dict[Stack, Weight] = {}
        self.unseen: set[int] = set()
        """Statements that were under way while nothing was traced."""
        self.base_moves: set[tuple[int, int]] = set()
        """From where to where the outermost code went while nothing was traced."""
        self.partial: dict[tuple[int, int], tuple[int, int]] = {}
        """Nanoseconds of lines that were under way when tracing stopped, and how often, by bytecode
        and line.
        """
        self.last_lines: set[tuple[int, int]] = set()
        """Lines that were under way at the very end, by bytecode: an error left them there."""
        self.halves: dict[int, int] = {}
        """How often a statement was under way when tracing began."""
        self.ticks = self.bursts = 0
        self.off_s = self.own_s = self.waited_s = 0.0
        self.failure = ""
        self._failed = self.displaced = False
        self._foreign: dict[int, CodeType] = {}
        self._seen: set[int] = set()
        self._pending: list[_Tick] = []
        self._threads = set(current_frames())
        self._inside = False
        self._outermost, self._rest = -1, OFF
        self._last = Stack((), -1, True)

    # -- the run -------------------------------------------------------------------------------

    def start(self) -> None:
        """The body begins; call this in its thread."""
        self._thread = threading.get_ident()
        self._cpu_s, self._look_s = time.thread_time(), 0.0
        self._run_queue = RunQueueWait()
        self._waited_s = self._run_queue.read_s() or 0.0
        self._last_s = self._burst_s = self._checked_s = time.perf_counter()
        self._hits, self._read_s = self._events.hits(), 0.0
        self._until_s = 0.0
        if self._mode != "never":
            self._switch_on(self._last_s, Stack((), -1, True))

    def restart_clock(self) -> None:
        """All is set up: the body begins now."""
        self._last_s = time.perf_counter()

    def stop(self) -> None:
        """The body has ended, or has raised."""
        if not self._failed:
            self._safely(None)
        self._yield_if_displaced(time.perf_counter())
        if self._events.on:
            self._flush(time.perf_counter())
            under_way = self._events.switch_off()
            self._keep_partial(under_way)
            self.last_lines = {(bytecode, line) for bytecode, (line, _) in under_way.items()}
        self._run_queue.close()

    def tick(self, frame: FrameType | None) -> None:
        """Look where the body is. Raises nothing but an interrupt that comes meanwhile."""
        __tracebackhide__ = True
        try:
            if not self._inside and not self._failed:
                self._safely(frame)
            return
        except KeyboardInterrupt:
            pass
        # It is the body that was interrupted: our own frames are none of the user's.
        raise KeyboardInterrupt

    def _safely(self, frame: FrameType | None) -> None:
        self._inside = True
        try:
            self._tick(frame)
        except Exception as error:
            # An error of ours must not end the user's cell.
            self._failed = True
            self.failure = f"perfkit stopped looking: {type(error).__name__}: {error}"
        finally:
            self._inside = False

    def _tick(self, frame: FrameType | None) -> None:
        now_s = time.perf_counter()
        seconds = max(0.0, now_s - self._last_s - self._new_wait_s())
        waits = self._waits(seconds)
        if waits:
            # A wait goes on while perfkit looks at it.
            seconds += self._look_s
        stack = self._profiled.read(frame, self._unknown)
        if stack.top < 0 and frame is None:
            stack = self._at_the_end(seconds)
        if seconds > LATE_S:
            stack = stack._replace(called=False, late=True)
        self.ticks += frame is not None
        is_new = self._note_new(stack)
        if self._events.on:
            self._pending.append(_Tick(stack, seconds, waits))
            self._traced_tick(now_s, stack, is_new)
        else:
            self.off_s += seconds
            self._weigh(self.weights, stack, seconds, seconds, 0.0)
            self._note_unseen(stack)
            if self._mode == "bursts" and (is_new or now_s >= self._until_s):
                self._switch_on(now_s, stack)
        # Not threading.active_count(), which takes a lock that the interrupted code may hold.
        if _thread._count() + 1 > len(self._threads):
            self._look_at_threads(seconds)
        self._outermost = stack.outer[-1] if stack.outer else stack.top
        self._last = stack
        self._last_s = time.perf_counter()
        self._look_s = self._last_s - now_s
        if frame is not None and not waits:
            self.own_s += self._look_s
        self._cpu_s = time.thread_time()

    def _new_wait_s(self) -> float:
        """How long the thread had no core since it was last asked: a neighbour's time."""
        waited_s = self._run_queue.read_s()
        if waited_s is None:
            return 0.0
        new_s, self._waited_s = waited_s - self._waited_s, waited_s
        self.waited_s += new_s
        return new_s

    def _waits(self, seconds: float) -> bool:
        """Did the thread wait for something since the last tick, and not compute?"""
        if threading.get_ident() != self._thread:
            return False
        return time.thread_time() - self._cpu_s < IDLE * seconds

    def _at_the_end(self, seconds: float) -> Stack:
        """Where a body was that is over: where it was last seen, or, after a long call in C, at
        its last statement.
        """
        last = self._profiled.last_number()
        if seconds < LATE_S or last is None:
            return self._last
        return Stack((), last, True)

    def _note_new(self, stack: Stack) -> bool:
        numbers = {*stack.outer, stack.top} - {-1}
        if numbers <= self._seen:
            return False
        self._seen |= numbers
        return True

    def _note_unseen(self, stack: Stack) -> None:
        self.unseen.update(stack.outer, (stack.top,))
        here = stack.outer[-1] if stack.outer else stack.top
        self.base_moves.add((self._outermost, here))

    # -- bursts --------------------------------------------------------------------------------

    def _yield_if_displaced(self, now_s: float) -> bool:
        """Leave tracing to another tool that has taken it; ticks go on."""
        if self._mode == "never" or not self._events.displaced():
            return False
        if self._events.on:
            self._flush(now_s)
        self._events.abandon()
        self._mode, self.failure, self.displaced = "never", DISPLACED, True
        return True

    def _switch_on(self, now_s: float, stack: Stack) -> None:
        if self._yield_if_displaced(now_s):
            return
        self._note_unseen(stack)
        if stack.top >= 0:
            self.halves[stack.top] = self.halves.get(stack.top, 0) + 1
        self.bursts += 1
        self._burst_s = self._checked_s = now_s
        self._events.switch_on()

    def _traced_tick(self, now_s: float, stack: Stack, is_new: bool) -> None:
        if self._yield_if_displaced(now_s):
            return
        if is_new:
            self._burst_s = now_s
        if now_s - self._checked_s < max(BURST_S, self._read_s / READ_SHARE):
            return
        slow = self._flush(now_s)
        if self._mode == "bursts" and slow and now_s - self._burst_s >= BURST_S:
            self._note_unseen(stack)
            self._keep_partial(self._events.switch_off())
            self._until_s = now_s + self._rest * (now_s - self._burst_s)

    def _flush(self, now_s: float) -> bool:
        """Weigh the ticks since the last look at the hits. Is the tracing worth ending?"""
        pending, self._pending = self._pending, []
        begun_s = time.perf_counter()
        hits = self._events.hits()
        self._read_s = time.perf_counter() - begun_s
        spent_s = sum(tick.seconds for tick in pending) or 1e-9
        load = min(1.0, (hits - self._hits) * self._costs.event_s / spent_s)
        self._hits, self._checked_s = hits, now_s
        sure = DOUBTFUL if load > VERY_HEAVY and self._mode == "bursts" else 1.0
        foreign = 0
        for tick in pending:
            share = 1.0 if tick.waits else (1 - load) * sure
            if not LOCAL and tick.stack.foreign and not (tick.stack.late or tick.waits):
                share *= UNSEEN
            foreign += tick.stack.foreign and not (tick.stack.late or tick.waits)
            seconds = tick.seconds
            self._weigh(self.weights, tick.stack, seconds, share * seconds, seconds)
        self._rest = OFF * (2 if not LOCAL and 2 * foreign > len(pending) else 1)
        # Before 3.12 code that is not profiled is slowed as well, and leaves no hits.
        return load > HEAVY or (not LOCAL and 4 * foreign > len(pending))

    def _keep_partial(self, under_way: dict[int, tuple[int, int]]) -> None:
        for bytecode, (line, ns) in under_way.items():
            before_ns, count = self.partial.get((bytecode, line), (0, 0))
            self.partial[bytecode, line] = before_ns + ns, count + 1

    # -- what a tick adds ----------------------------------------------------------------------

    def _weigh(
        self,
        where: dict[Stack, Weight],
        stack: Stack,
        seconds: float,
        true_s: float,
        traced_s: float,
    ) -> None:
        weight = where.get(stack)
        if weight is None:
            weight = where[stack] = Weight()
        weight.true_s += true_s
        weight.seconds += seconds
        weight.traced_s += traced_s
        weight.count += 1

    def _look_at_threads(self, seconds: float) -> None:
        for ident, frame in current_frames().items():
            if ident not in self._threads and ident != threading.get_ident():
                stack = self._profiled.read(frame, self._unknown)
                if stack.top >= 0 and not self._is_base_alone(stack):
                    self._weigh(self.other_threads, stack, seconds, seconds, 0.0)
                    self._note_new(stack)
                    if not self._events.on:
                        self._note_unseen(stack)

    def _is_base_alone(self, stack: Stack) -> bool:
        return self._profiled.base is not None and not stack.outer

    def _unknown(self, code: CodeType) -> bool:
        if id(code) in self._foreign:
            return False
        if self._discover(code):
            return True
        self._foreign[id(code)] = code
        return False
