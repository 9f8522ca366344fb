"""Time a body of code: the first call apart, then warm-up and samples inside a budget.

The heart is `Measurement.runs`, a generator that yields once for every run of the body. Whoever
iterates over it runs the body: `time_call` does with a function, the cell engine with a cell.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from itertools import repeat
from statistics import median
from typing import Literal, NamedTuple

from perfkit.devices.base import Device, Seen, Trace
from perfkit.devices.detect import devices_in_use
from perfkit.devices.host import flush_host_cache
from perfkit.errors import UsageError
from perfkit.intervals import COPY_KINDS, Interval, Intervals, covered_s
from perfkit.measure import statistics
from perfkit.measure.clock import Clock, HostClock
from perfkit.records.base import Quality, keep_last
from perfkit.records.timing import DISTURBED, Sample, Span, Timing, Transfer, is_disturbed
from perfkit.system.facts import machine

__all__ = ["Measurement", "Plan", "time_call"]

SAMPLE_S = 0.5e-3
"""Cheap bodies are batched until a sample takes this long; time slices are about 3 ms."""
LEAST_S = 0.1
LEAST_WAITED_S = 1e-3
MOST_SAMPLES = 10_000
MOST_SPANS = 400
RETAKES = 2
WARMUP_SHARE, WARMUP_CALLS = 0.1, 3
RESOLUTION_S = 0.1e-6

Runs = Generator[None, None, None]


class Plan(NamedTuple):
    """What is asked. Raises UsageError from `checked` where it makes no sense."""

    repeat: int | Literal["auto"] = 1
    warmup: int | None = None
    budget_s: float = 2.0
    backends: tuple[str, ...] | None = None
    cold: bool = False
    synchronize: bool = True

    def checked(self) -> Plan:
        """This plan, or UsageError in one line."""
        if self.repeat != "auto" and not (_is_whole(self.repeat) and self.repeat >= 1):
            raise UsageError(f"repeat is {self.repeat!r}: give a whole number from 1, or 'auto'")
        if self.warmup is not None and not (_is_whole(self.warmup) and self.warmup >= 0):
            raise UsageError(f"warmup is {self.warmup!r}: give a whole number from 0")
        if not (isinstance(self.budget_s, int | float) and 0 < self.budget_s < math.inf):
            raise UsageError(f"budget is {self.budget_s!r}: give seconds above 0")
        return self


def time_call(
    fn: Callable[[], object],
    *,
    repeat: int | Literal["auto"] = 1,
    warmup: int | None = None,
    budget_s: float = 2.0,
    backend: str | Sequence[str] | None = None,
    cold: bool = False,
) -> Timing:
    """Time `fn()` on the host and on the devices it uses.

    `repeat`: 1 runs it once; N takes N samples after the first call and a warm-up; 'auto' samples
    until parts of the run agree. Sampling ends when `budget_s` seconds are spent, with fewer
    samples if need be. `warmup`: runs before sampling (default: a tenth of the budget).
    `backend`: watch only these runtimes. `cold`: displace the caches before every sample.

    Raises UsageError for arguments that make no sense, and whatever `fn` raises; what was seen by
    then is `perfkit.last()`.
    """
    if not callable(fn):
        raise UsageError(f"time_call times a function, not {type(fn).__name__}: wrap it in lambda:")
    names = (backend,) if isinstance(backend, str) else backend
    plan = Plan(repeat, warmup, budget_s, tuple(names) if names else None, cold).checked()
    label = getattr(fn, "__name__", type(fn).__name__)
    clock = HostClock()
    measurement = Measurement(plan, clock, label=label)
    with closing(clock), closing(measurement.runs()) as runs:
        for _ in runs:
            fn()
    assert measurement.timing is not None
    return measurement.timing


class Measurement:
    """One measurement under way. `timing` is set when `runs` has ended, however it ended."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        *,
        label: str = "",
        find_devices: Callable[[Sequence[str] | None], Sequence[Device]] = devices_in_use,
        between: Callable[[], None] = lambda: None,
        done: Callable[[Timing | None], None] = lambda timing: None,
    ) -> None:
        """`between` is called before every run but the first, outside the timed region; `done`
        once, when `runs` has ended, with the timing, or None if not even one run began."""
        self.timing: Timing | None = None
        self._plan, self._clock, self._label = plan, clock, label
        self._find_devices, self._between, self._done = find_devices, between, done
        self._devices: tuple[Device, ...] = ()
        self._traces: dict[str, Trace] = {}
        self._stack = ExitStack()
        self._first: Sample | None = None
        self._samples: list[Sample] = []
        self._copies: list[dict[str, Transfer]] = []
        self._worked: set[str] = set()
        self._spans: tuple[Span, ...] = ()
        self._notes: list[str] = []
        self._reasons: dict[str, None] = {}
        self._runs = 0
        self._number = 1
        self._settled = True
        self._single_thread = False
        self._collections = 0
        self._drain_s: float | None = None
        self._pending: int | None = None
        self._stopped = ""
        self._where = "the first call"

    def runs(self) -> Runs:
        """Yield once for each run of the body; between two yields the body runs."""
        __tracebackhide__ = True
        try:
            self._watch()
            collected = _collections()
            yield from self._first_call()
            if self._plan.repeat != 1:
                self._watch()
                per_run_s = yield from self._warm_up()
                yield from self._choose_number(per_run_s)
                collected = _collections()
                yield from self._sample_until_done()
            self._collections = _collections() - collected
            self._where = ""
        finally:
            try:
                self._finish()
            finally:
                self._done(self.timing)

    # -- the phases ----------------------------------------------------------------------------

    def _first_call(self) -> Runs:
        __tracebackhide__ = True
        imported = set(self._traces)
        self._first = yield from self._run(1)
        if self._plan.repeat == 1:
            self._samples.append(self._first)
        for device in self._find_devices(self._plan.backends):
            if device.name not in imported:
                self._notes.append(
                    f"{device.name} was imported inside the body: the first call includes the "
                    "import, and its device work was not seen"
                )

    def _warm_up(self) -> Generator[None, None, float]:
        """Run the body without keeping samples; the quickest run, in seconds."""
        __tracebackhide__ = True
        self._where = "the warm-up"
        assert self._first is not None
        best_s = _duration(self._first)
        clock, start_s, calls = self._clock, self._clock.now(), 0
        cpu_s, own_s = clock.process_cpu(), clock.thread_cpu()
        most_s = WARMUP_SHARE * self._plan.budget_s
        while self._needs_warmup(calls, clock.now() - start_s, most_s):
            best_s = min(best_s, _duration((yield from self._run(1))))
            calls += 1
        used_s, own_used_s = clock.process_cpu() - cpu_s, clock.thread_cpu() - own_s
        self._single_thread = not self._worked and used_s < 1.05 * own_used_s
        return best_s

    def _needs_warmup(self, calls: int, spent_s: float, most_s: float) -> bool:
        if self._plan.warmup is not None:
            return calls < self._plan.warmup
        if calls < WARMUP_CALLS:
            return calls == 0 or spent_s < most_s
        # Enough for clocks to rise and caches to fill; cheap bodies need no more.
        return spent_s < min(most_s, LEAST_S)

    def _choose_number(self, per_run_s: float) -> Runs:
        """Set the runs in a sample. One where a device worked, or the drain would be shared out."""
        __tracebackhide__ = True
        if self._worked or self._plan.cold or not self._plan.synchronize:
            return
        if per_run_s < SAMPLE_S:
            # One run read alone is mostly the clock's own cost: one batch tells the true one.
            self._number = math.ceil(SAMPLE_S / max(per_run_s, 1e-9))
            per_run_s = _duration((yield from self._run(self._number)))
            self._number = math.ceil(SAMPLE_S / max(per_run_s, 1e-9))
        if self._plan.repeat != "auto":
            self._number = max(self._number, math.ceil(self._plan.repeat / MOST_SAMPLES))

    def _sample_until_done(self) -> Runs:
        __tracebackhide__ = True
        plan, now = self._plan, self._clock.now
        wanted = MOST_SAMPLES if plan.repeat == "auto" else min(plan.repeat, MOST_SAMPLES)
        start_s, look, retakes = now(), statistics.SETTLED_SAMPLES, 0
        while len(self._samples) < wanted:
            self._where = f"sample {len(self._samples) + 1}"
            spent_s = now() - start_s
            if self._samples and spent_s > (1 - WARMUP_SHARE) * plan.budget_s:
                self._budget_spent(wanted)
                return
            sample = yield from self._run(self._number)
            if plan.repeat == "auto" and self._single_thread and is_disturbed(sample):
                retakes += 1
                if retakes <= RETAKES:
                    continue
            retakes = 0
            self._samples.append(sample)
            if plan.repeat == "auto" and len(self._samples) >= look and spent_s >= LEAST_S:
                if statistics.is_settled([_duration(sample) for sample in self._samples]):
                    return
                look = len(self._samples) * 3 // 2

    def _budget_spent(self, wanted: int) -> None:
        if self._plan.repeat == "auto":
            self._settled = statistics.is_settled([_duration(s) for s in self._samples])
        else:
            self._reasons[
                f"the budget of {self._plan.budget_s:g} s was spent after {len(self._samples)} of "
                f"{wanted} samples: give more with -b"
            ] = None

    # -- one sample ----------------------------------------------------------------------------

    def _run(self, number: int) -> Generator[None, None, Sample]:
        """Run the body `number` times: drain, start, run, stop, drain, stop again."""
        __tracebackhide__ = True
        clock, now = self._clock, self._clock.now
        if self._runs:
            self._between()
        if self._plan.cold:
            self._flush()
        if self._plan.synchronize:
            self._drain()
        for trace in self._traces.values():
            trace.clear()
        self._runs += number
        clock.thread_cpu()
        waited_s = clock.waited()
        start_s = now()
        try:
            for _ in repeat(None, number):
                yield
        except GeneratorExit:
            stopped_s = now()
            self._stopped = f"an error or an interrupt in {self._where}"
            if self._first is None:
                self._first = Sample(naive_s=stopped_s - start_s)
            raise
        stop_s = now()
        waited_to_s = clock.waited()
        if self._devices and self._plan.synchronize:
            self._drain()
            end_s = now()
            waited_to_s = clock.waited()
            seen = {name: trace.take() for name, trace in self._traces.items()}
        else:
            end_s, seen = stop_s, {}
        wait_s = None if waited_s is None or waited_to_s is None else waited_to_s - waited_s
        if not self._plan.synchronize:
            self._pending = sum(trace.pending() for trace in self._traces.values())
            return Sample(naive_s=(stop_s - start_s) / number, wait_s=wait_s)
        return self._decompose(seen, start_s, stop_s, end_s, wait_s, number)

    def _decompose(
        self,
        seen: dict[str, Seen],
        start_s: float,
        stop_s: float,
        end_s: float,
        wait_s: float | None,
        number: int,
    ) -> Sample:
        naive_s = (stop_s - start_s) / number
        working = {name: part for name, part in seen.items() if part.launches}
        if not working:
            # Nothing was given away, so everything was drained when the body returned.
            return Sample(
                naive_s=naive_s,
                wall_s=naive_s,
                host_s=naive_s,
                wait_s=None if wait_s is None else wait_s / number,
            )
        self._worked.update(working)
        waits = [span for part in working.values() for span in part.waits]
        rows = [row for part in working.values() for row in part.intervals]
        untimed = [part.reason for part in working.values() if part.untimed]
        device_s = busy_s = None
        if untimed:
            self._reasons.update(dict.fromkeys(f"no device time: {reason}" for reason in untimed))
        elif rows:
            columns = Intervals(rows)
            device_s, busy_s = columns.span_s(), columns.busy_s()
        self._copies.append(_transfers(rows))
        self._spans = _spans(rows, waits, start_s, stop_s, end_s)
        sees_waits = all(d.sees_waits for d in self._devices if d.name in working)
        return Sample(
            naive_s=naive_s,
            wall_s=(end_s - start_s) / number,
            host_s=naive_s - covered_s(waits, start_s, stop_s) if sees_waits else None,
            device_s=device_s,
            device_busy_s=busy_s,
            wait_s=None if wait_s is None else wait_s / number,
            launches=sum(part.launches for part in working.values()),
        )

    # -- devices -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Open a trace on every runtime that is there now, and see what an idle drain costs."""
        for device in self._find_devices(self._plan.backends):
            if device.name not in self._traces:
                trace = device.trace(self._clock.now)
                self._traces[device.name] = self._stack.enter_context(trace)
                self._devices += (device,)
        self._lanes = {device.name: device.lanes() for device in self._devices}
        if self._devices and self._plan.synchronize:
            self._drain()
            start_s = self._clock.now()
            self._drain()
            self._drain_s = self._clock.now() - start_s

    def _drain(self) -> None:
        for device in self._devices:
            device.synchronize(self._lanes[device.name])

    def _flush(self) -> None:
        flushes = [device.flush_cache() for device in self._devices] or [flush_host_cache()]
        note = f"cold: {max(f.nbytes for f in flushes) >> 20} MiB written before each sample"
        if note not in self._notes:
            self._notes.append(note)

    # -- the record ----------------------------------------------------------------------------

    def _finish(self) -> None:
        self._stack.close()
        if self._where and not self._stopped:
            self._stopped = f"an error or an interrupt in {self._where}"
        if self._first is None:
            return
        values = [_duration(sample) for sample in self._samples]
        several = self._plan.repeat != 1
        findings = statistics.examine(values, settled=self._settled) if several and values else None
        self.timing = Timing.of(
            label=self._label,
            repeat=self._plan.repeat,
            warmup=self._plan.warmup,
            budget_s=self._plan.budget_s,
            cold=self._plan.cold,
            synchronized=self._plan.synchronize,
            first=self._first,
            samples=tuple(self._samples),
            number=self._number,
            runs=max(self._runs, 1),
            trimmed=findings.trimmed if findings else 0,
            single_thread=self._single_thread,
            collections=self._collections,
            drain_s=self._drain_s,
            pending=self._pending,
            backends=tuple(sorted(self._worked)) or ("host",),
            transfers=_median_transfers(self._copies),
            spans=self._spans,
            notes=tuple(self._notes),
            stopped=self._stopped,
            machine=machine(),
            quality=self._quality(values, findings.words if findings else ()),
        )
        keep_last(self.timing)

    def _quality(self, values: list[float], words: tuple[str, ...]) -> Quality:
        reasons = [*words, *self._reasons]
        if self._stopped:
            reasons.insert(0, f"stopped by {self._stopped}")
        if len(values) > 1 and median(values) < _empty_body_s(self._clock) + RESOLUTION_S:
            reasons.append("below clock resolution: less than 0.1 µs more than an empty body")
        walls = [s.naive_s if s.wall_s is None else s.wall_s for s in self._samples]
        waits = [s.wait_s for s in self._samples]
        known = [wait for wait in waits if wait is not None]
        share = sum(known) / sum(walls) if known and sum(walls) else None
        if share is not None and share > DISTURBED and sum(walls) > LEAST_WAITED_S:
            reasons.append(f"the thread waited for a core in {100 * share:.0f} % of the time")
        if not self._plan.synchronize:
            reasons = ["nobody waited for the device: this stopwatch is not a measurement"]
        status = "valid" if not reasons else "suspect"
        timed = any(s.device_s is not None for s in self._samples)
        return Quality(
            status=status if self._plan.synchronize else "refused",
            reasons=tuple(reasons),
            spread=statistics.spread(values),
            wait_share=share,
            source="host clock and device events" if timed else "host clock",
        )


def _empty_body_s(clock: Clock) -> float:
    """Seconds that one run of nothing takes in the loop that runs bodies."""

    def outer() -> Runs:
        yield from inner()

    def inner() -> Runs:
        for _ in repeat(None, 1000):
            yield

    start_s = clock.now()
    for _ in outer():
        pass
    return (clock.now() - start_s) / 1000


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _duration(sample: Sample) -> float:
    return sample.naive_s if sample.wall_s is None else sample.wall_s


def _transfers(rows: list[Interval]) -> dict[str, Transfer]:
    found = {}
    for direction in COPY_KINDS:
        copies = [row for row in rows if row.kind == direction]
        if copies:
            found[direction] = Transfer(
                direction=direction,
                count=len(copies),
                nbytes=sum(row.nbytes for row in copies),
                seconds=sum(row.end_s - row.start_s for row in copies),
            )
    return found


def _median_transfers(runs: list[dict[str, Transfer]]) -> tuple[Transfer, ...]:
    """The transfers of a typical run: medians over the runs that copied in that direction."""
    typical = []
    for direction in COPY_KINDS:
        seen = [run[direction] for run in runs if direction in run]
        if seen:
            typical.append(
                Transfer(
                    direction=direction,
                    count=round(median(copy.count for copy in seen)),
                    nbytes=round(median(copy.nbytes for copy in seen)),
                    seconds=median(copy.seconds for copy in seen),
                )
            )
    return tuple(typical)


def _spans(
    rows: list[Interval],
    waits: list[tuple[float, float]],
    start_s: float,
    stop_s: float,
    end_s: float,
) -> tuple[Span, ...]:
    """Bars of the picture: what the host did, where it waited, and the lanes of the devices."""
    inside = [(max(a, start_s), min(b, stop_s)) for a, b in waits if b > start_s and a < stop_s]
    bars = [Interval(start_s, stop_s, "host", "host", "body")]
    bars += [Interval(a, b, "host", "wait", "waits for the device") for a, b in inside]
    bars += [Interval(stop_s, end_s, "host", "drain", "perfkit drains")]
    bars += _joined(sorted(rows, key=lambda row: (row.lane, row.start_s)), (end_s - start_s) / 2000)
    kept = sorted(bars, key=lambda bar: bar.start_s - bar.end_s)[:MOST_SPANS]
    return tuple(
        Span(
            lane=bar.lane,
            kind=bar.kind,
            name=bar.name,
            start_s=bar.start_s - start_s,
            end_s=bar.end_s - start_s,
        )
        for bar in sorted(kept)
    )


def _joined(rows: list[Interval], least_s: float) -> list[Interval]:
    """Neighbours of one lane and kind that no eye could tell apart become one bar."""
    bars: list[Interval] = []
    for row in rows:
        last = bars[-1] if bars else None
        near = last is not None and row.start_s - last.end_s < least_s
        if last and near and (last.lane, last.kind) == (row.lane, row.kind):
            name = last.name if last.name == row.name else f"{last.name} ..."
            bars[-1] = last._replace(end_s=max(last.end_s, row.end_s), name=name[:60])
        else:
            bars.append(row)
    return bars
