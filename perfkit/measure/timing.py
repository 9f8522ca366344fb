"""Time a body of code: the first call apart, then warm-up and samples inside a budget.

The heart is `Measurement.runs`, a generator that yields once for every run of the body. Whoever
iterates over it runs the body: `time_call` does with a function, the cell engine with a cell.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import repeat as repeated
from statistics import median
from typing import Literal, cast

from perfkit.devices.base import Device, Lane, Profiler, Seen, Trace
from perfkit.devices.detect import devices_in_use
from perfkit.devices.host import flush_host_cache
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.measure import statistics
from perfkit.measure.clock import Clock, HostClock
from perfkit.measure.decomposition import (
    Reading,
    Run,
    decompose,
    typical_parts,
    typical_transfers,
)
from perfkit.measure.memory import Held, MemoryMeter
from perfkit.measure.plan import Plan
from perfkit.records.base import Quality, keep_last
from perfkit.records.timing import DISTURBED, Sample, Timing, is_disturbed
from perfkit.system.facts import machine

__all__ = ["Measurement", "Runs", "time_call"]

SAMPLE_S = 0.5e-3
"""Cheap bodies are batched until a sample takes this long; time slices are about 3 ms."""
LEAST_S = 0.1
"""'auto' samples for at least this long, and a cheap body needs no longer warm-up."""
MOST_SAMPLES = 10_000
RETAKES = 2
RARE = 0.05
WARMUP_SHARE, WARMUP_CALLS = 0.1, 3
RESOLUTION_S = 0.1e-6
LEAST_WAITED_S = 1e-3

Runs = Generator[None, None, None]


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

    Raises UsageError for arguments that make no sense, NotSupportedHere for a backend that is not
    there, and whatever `fn` raises; what was seen by then is `perfkit.last()`.
    """
    if not callable(fn):
        raise UsageError(f"time_call times a function, not {type(fn).__name__}: wrap it in lambda:")
    names = (backend,) if isinstance(backend, str) else backend
    plan = Plan(repeat, warmup, budget_s, tuple(names) if names else None, cold).checked()
    label = getattr(fn, "__name__", type(fn).__name__)
    with closing(HostClock()) as clock:
        measurement = Measurement(plan, clock, label=label)
        with closing(measurement.runs()) as runs:
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
        done: Callable[[Timing | None], None] = lambda _: None,
        names: Mapping[str, object] | None = None,
    ) -> None:
        """`between` is called before every run but the first, outside the timed region; `done`
        once, when `runs` has ended, with the timing, or None if not even one run began. `names`:
        where to look for what keeps device memory alive.
        """
        self.timing: Timing | None = None
        self._plan, self._clock, self._label = plan, clock, label
        self._find_devices, self._between, self._done = find_devices, between, done
        self._names = names or {}
        self._held = Held()
        self._traces = ExitStack()
        self._watched: dict[str, tuple[Device, Trace]] = {}
        self._lanes: dict[str, Sequence[Lane]] = {}
        self._first: Run | None = None
        self._kept: list[Run] = []
        self._traced: Run | None = None
        self._replays: list[Sample] = []
        self._runs, self._number = 0, 1
        self._worked: Counter[str] = Counter()
        self._seen_runs = 0
        self._seen: dict[str, Seen] = {}
        self._notes: dict[str, None] = {}
        self._settled, self._single_thread = True, False
        self._collections = 0
        self._waited_s: float | None = None
        self._drain_s: float | None = None
        self._pending: int | None = None
        self._where, self._stopped = "the first call", ""
        self._shortfall = ""

    def runs(self) -> Runs:
        """Yield once for each run of the body; between two yields the body runs."""
        __tracebackhide__ = True
        try:
            self._watch()
            self._collections = _collections()
            yield from self._first_call()
            if self._plan.repeat != 1:
                self._watch()
                yield from self._choose_number((yield from self._warm_up()))
                self._collections = _collections()
                yield from self._sample()
            if self._plan.trace:
                yield from self._trace_one_run()
            if self._plan.graph:
                yield from self._replay_graph()
            self._where = ""
        finally:
            self._collections = _collections() - self._collections
            self._traces.close()
            try:
                self._stopped = self._where and f"an error or an interrupt in {self._where}"
                if self._first is not None:
                    self.timing = self._record(self._first)
                    keep_last(self.timing)
            finally:
                self._done(self.timing)

    # -- the phases ----------------------------------------------------------------------------

    def _first_call(self) -> Runs:
        __tracebackhide__ = True
        meter = MemoryMeter([device for device, _ in self._watched.values()], self._names)
        self._first = yield from self._run(1)
        if self._plan.synchronize:
            self._held = meter.read()
        if self._plan.repeat == 1:
            self._kept.append(self._first)
        for device in self._find_devices(self._plan.backends):
            if device.name not in self._watched:
                self._note(
                    f"{device.name} was imported inside the body: the first call includes the "
                    "import, and its device work was not seen"
                )

    def _warm_up(self) -> Generator[None, None, float]:
        """Run the body without keeping samples; the seconds of the quickest run."""
        __tracebackhide__ = True
        self._where = "the warm-up"
        assert self._first is not None
        best_s, calls, clock = _seconds(self._first), 0, self._clock
        start_s, cpu_s, own_s = clock.now(), clock.process_cpu(), clock.thread_cpu()
        while self._needs_warmup(calls, clock.now() - start_s):
            best_s = min(best_s, _seconds((yield from self._run(1))))
            calls += 1
        used_s, own_used_s = clock.process_cpu() - cpu_s, clock.thread_cpu() - own_s
        self._single_thread = not self._backends() and used_s < 1.05 * own_used_s
        return best_s

    def _needs_warmup(self, calls: int, spent_s: float) -> bool:
        if self._plan.warmup is not None:
            return calls < self._plan.warmup
        most_s = WARMUP_SHARE * self._plan.budget_s
        if calls < WARMUP_CALLS:
            return calls == 0 or spent_s < most_s
        return spent_s < min(most_s, LEAST_S)

    def _choose_number(self, per_run_s: float) -> Runs:
        """Set the runs in a sample. One where a device worked, or the drain would be shared out."""
        __tracebackhide__ = True
        if self._backends() or self._plan.cold or not self._plan.synchronize:
            return
        if per_run_s < SAMPLE_S:
            # One run read alone is mostly the clock's own cost: one batch tells the true one.
            self._number = math.ceil(SAMPLE_S / max(per_run_s, 1e-9))
            per_run_s = _seconds((yield from self._run(self._number)))
            self._number = math.ceil(SAMPLE_S / max(per_run_s, 1e-9))
        if self._plan.repeat != "auto" and self._plan.repeat > MOST_SAMPLES * self._number:
            # More runs than samples may be kept, as far as the budget lets one sample grow.
            most = max(1, int(0.02 * self._plan.budget_s / max(per_run_s, 1e-9)))
            self._number = min(math.ceil(self._plan.repeat / MOST_SAMPLES), most)

    def _sample(self) -> Runs:
        __tracebackhide__ = True
        plan = self._plan
        deadline_s = self._clock.now() + (1 - WARMUP_SHARE) * plan.budget_s
        if plan.repeat == "auto":
            yield from self._sample_until_settled(deadline_s)
        else:
            wanted = min(plan.repeat, MOST_SAMPLES)
            if self._watched or plan.cold:
                yield from self._sample_devices(wanted, deadline_s)
            else:
                yield from self._sample_host(wanted, deadline_s)
            if len(self._kept) < wanted:
                self._shortfall = (
                    f"the budget of {plan.budget_s:g} s was spent after {len(self._kept)} of "
                    f"{plan.repeat} samples: give more with -b (budget_s)"
                )
            elif wanted * self._number < plan.repeat:
                self._shortfall = f"{wanted:,} samples are kept at most, not {plan.repeat:,}"

    def _sample_until_settled(self, deadline_s: float) -> Runs:
        """Sample until parts of the run agree; take a disturbed sample of one thread again."""
        __tracebackhide__ = True
        now, look, retakes = self._clock.now, statistics.SETTLED_SAMPLES, 0
        least_s = now() + LEAST_S
        while len(self._kept) < MOST_SAMPLES:
            self._where = f"sample {len(self._kept) + 1}"
            run = yield from self._run(self._number)
            if self._single_thread and retakes < RETAKES and is_disturbed(run.sample):
                retakes += 1
            else:
                retakes = 0
                self._kept.append(run)
            if self._kept and now() > deadline_s:
                self._settled = statistics.is_settled(self._values())
                return
            if len(self._kept) >= look and now() > least_s:
                if statistics.is_settled(self._values()):
                    return
                look = len(self._kept) * 3 // 2

    def _sample_devices(self, wanted: int, deadline_s: float) -> Runs:
        """Samples with a drain on either side of each."""
        __tracebackhide__ = True
        while len(self._kept) < wanted and not (self._kept and self._clock.now() > deadline_s):
            self._where = f"sample {len(self._kept) + 1}"
            self._kept.append((yield from self._run(self._number)))

    def _sample_host(self, wanted: int, deadline_s: float) -> Runs:
        """Samples where no runtime is loaded: between two of them only clocks are read."""
        __tracebackhide__ = True
        now, settle, number = self._clock.now, self._clock.thread_cpu, self._number
        walls: list[float] = []
        begun = 0
        self._between()
        waited_s = self._clock.waited()
        try:
            while len(walls) < wanted:
                begun += 1
                settle()
                start_s = now()
                for _ in repeated(None, number):
                    yield
                stop_s = now()
                walls.append((stop_s - start_s) / number)
                if stop_s > deadline_s:
                    return
        finally:
            self._waited_s = _less(self._clock.waited(), waited_s)
            self._where = f"sample {len(walls) + 1}"
            self._runs += number * begun
            self._kept += [Run(Sample(naive_s=s, wall_s=s, host_s=s)) for s in walls]

    def _trace_one_run(self) -> Runs:
        """One run more, under the profilers of the runtimes that have one."""
        __tracebackhide__ = True
        self._where = "the traced run"
        profiled = [device for device, _ in self._watched.values() if device.has_profile]
        if not profiled:
            self._note("--trace: no runtime in use has a profiler that perfkit can run")
            return
        with ExitStack() as stack:
            rows = {
                device.name: stack.enter_context(cast(Profiler, device).profile(self._clock.now))
                for device in profiled
            }
            yield from self._run(1)
        seen = {
            name: part._replace(intervals=tuple(rows[name]), bracketed=False)
            if rows.get(name)
            else part
            for name, part in self._seen.items()
        }
        silent = [n for n, (device, _) in self._watched.items() if not device.has_events]
        self._traced = decompose(
            self._reading, seen, self._blind(), [name for name in silent if not rows.get(name)]
        )

    def _replay_graph(self) -> Runs:
        """Capture one run, and sample its replays. Raises NotSupportedHere with the reason."""
        __tracebackhide__ = True
        self._where = "the capture"
        names = self._backends()
        if len(names) != 1:
            used = " and ".join(names) or "no device"
            raise NotSupportedHere(
                f"--graph: a graph needs work of one runtime, here {used} worked"
            )
        with self._watched[names[0]][0].capture() as graph:
            self._between()
            self._runs += 1
            yield
        self._watch()  # the graph has a stream of its own
        for _ in range(len(self._kept)):
            self._prepare()
            start_s = self._clock.now()
            graph.replay()
            stop_s = self._clock.now()
            self._close_body()
            self._drain()
            reading = Reading(start_s, stop_s, self._clock.now(), None)
            seen = {name: trace.take() for name, (_, trace) in self._watched.items()}
            self._replays.append(decompose(reading, seen, self._blind()).sample)

    # -- one sample ----------------------------------------------------------------------------

    def _run(self, number: int) -> Generator[None, None, Run]:
        """Run the body `number` times: drain, start, run, stop, drain, stop again."""
        __tracebackhide__ = True
        clock, now = self._clock, self._clock.now
        if self._runs:
            self._between()
        if self._watched or self._plan.cold:
            self._prepare()
        self._runs += number
        cpu_s = clock.thread_cpu()
        waited_s = clock.waited()
        start_s = now()
        try:
            for _ in repeated(None, number):
                yield
            stop_s = now()
            if self._watched and self._plan.synchronize:
                cpu_s = clock.thread_cpu() - cpu_s
                self._close_body()
                self._drain()
            end_s = now() if self._watched else stop_s
        except BaseException:
            # The body, an interrupt or the device: what was seen by then is still reported.
            if self._first is None:
                self._first = Run(Sample(naive_s=now() - start_s))
            raise
        if not self._plan.synchronize:
            self._pending = sum(trace.pending() for _, trace in self._watched.values())
            return Run(Sample(naive_s=(stop_s - start_s) / number))
        wait_s = _less(clock.waited(), waited_s)
        self._reading = Reading(start_s, stop_s, end_s, wait_s, number, cpu_s)
        if not self._watched:
            return decompose(self._reading, {})
        self._seen = {name: trace.take() for name, (_, trace) in self._watched.items()}
        silent = [n for n, (device, _) in self._watched.items() if not device.has_events]
        run = decompose(self._reading, self._seen, self._blind(), silent)
        self._worked.update(part.backend for part in run.parts)
        self._seen_runs += 1
        return run

    def _blind(self) -> list[str]:
        return [name for name, (device, _) in self._watched.items() if not device.sees_waits]

    def _prepare(self) -> None:
        """Leave nothing over from before, on the devices, in the traces or in the caches."""
        if self._plan.cold:
            # The host's always: a runtime that is loaded need not be the one that the body uses.
            flushes = [flush_host_cache()]
            flushes += [device.flush_cache() for device, _ in self._watched.values()]
            flush = max(flushes)
            self._note(
                f"cold: {flush.nbytes >> 20} MiB written over a cache of {flush.cache_bytes >> 20} "
                "MiB before each sample, outside the time"
            )
        if self._plan.synchronize:
            self._drain()
        for _, trace in self._watched.values():
            trace.clear()

    def _close_body(self) -> None:
        for _, trace in self._watched.values():
            trace.close_body()

    def _watch(self) -> None:
        """Open a trace on every runtime that is there now, and see what an idle drain costs."""
        for device in self._find_devices(self._plan.backends):
            if device.name not in self._watched:
                trace = self._traces.enter_context(device.trace(self._clock.now))
                self._watched[device.name] = device, trace
        self._lanes = {name: device.lanes() for name, (device, _) in self._watched.items()}
        if self._watched and self._plan.synchronize:
            self._drain()
            start_s = self._clock.now()
            self._drain()
            self._drain_s = self._clock.now() - start_s

    def _drain(self) -> None:
        for name, (device, trace) in self._watched.items():
            device.synchronize((*self._lanes[name], *trace.new_lanes(self._lanes[name])))

    # -- the record ----------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _backends(self) -> tuple[str, ...]:
        """Runtimes that worked. Where a runtime gives only signs of work, a rare one is noise."""
        least = RARE * self._seen_runs
        return tuple(sorted(name for name, runs in self._worked.items() if runs >= least))

    def _overlooked(self) -> list[str]:
        """What idle runtimes might have done unseen, so that nobody takes silence for idleness."""
        return [
            f"{name}: work that the body itself waited for would not be seen"
            for name, (device, _) in self._watched.items()
            if name not in self._worked and device.has_events and not device.sees_commands
        ]

    def _values(self) -> list[float]:
        return [_seconds(run) for run in self._kept]

    def _record(self, first: Run) -> Timing:
        values = self._values()
        findings = statistics.Findings(0, ())
        if self._plan.repeat != 1 and values:
            findings = statistics.examine(values, settled=self._settled)
        seen = self._kept or [first]
        return Timing.of(
            label=self._label,
            repeat=self._plan.repeat,
            warmup=self._plan.warmup,
            budget_s=self._plan.budget_s,
            cold=self._plan.cold,
            synchronized=self._plan.synchronize,
            first=first.sample,
            samples=tuple(run.sample for run in self._kept),
            traced=self._traced and self._traced.sample,
            replays=tuple(self._replays),
            number=self._number,
            runs=self._runs,
            trimmed=findings.trimmed,
            single_thread=self._single_thread,
            collections=self._collections,
            drain_s=self._drain_s,
            pending=self._pending,
            backends=self._backends() or ("host",),
            parts=tuple(p for p in typical_parts(seen) if p.backend in self._backends()),
            transfers=typical_transfers(seen) or (self._traced.transfers if self._traced else ()),
            spans=(self._traced or seen[-1]).spans,
            device_peak_bytes=self._held.device_peak_bytes,
            device_retained_bytes=self._held.device_retained_bytes,
            # The flush of a cold measurement is memory of ours.
            host_peak_bytes=None if self._plan.cold else self._held.host_peak_bytes,
            kept=self._held.kept,
            notes=(*self._notes, *self._overlooked()),
            stopped=self._stopped,
            machine=machine(),
            quality=self._quality(values, findings.words),
        )

    def _quality(self, values: list[float], words: tuple[str, ...]) -> Quality:
        samples = [run.sample for run in self._kept]
        spent_s = sum(values) * self._number
        waits = [sample.wait_s for sample in samples if sample.wait_s is not None]
        waited_s = sum(waits) * self._number if waits else self._waited_s
        share = waited_s / spent_s if waited_s is not None and spent_s else None
        reasons = [
            self._stopped and f"stopped by {self._stopped}",
            *words,
            self._shortfall,
            *dict.fromkeys(reason for run in self._kept for reason in run.reasons),
        ]
        if len(values) > 1 and median(values) < _empty_body_s(self._clock) + RESOLUTION_S:
            reasons.append("below clock resolution: less than 0.1 µs more than an empty body")
        if share is not None and share > DISTURBED and spent_s > LEAST_WAITED_S:
            reasons.append(f"the thread waited for a core in {100 * share:.0f} % of the time")
        if not self._plan.synchronize:
            reasons = ["nobody waited for the device: this stopwatch is not a measurement"]
        said = tuple(filter(None, reasons))
        timed = any(sample.device_s is not None for sample in samples)
        return Quality(
            status="refused" if not self._plan.synchronize else "suspect" if said else "valid",
            reasons=said,
            spread=statistics.spread(values),
            wait_share=share,
            source="host clock and device events" if timed else "host clock",
        )


def _seconds(run: Run) -> float:
    return run.sample.naive_s if run.sample.wall_s is None else run.sample.wall_s


def _less(end_s: float | None, start_s: float | None) -> float | None:
    return None if end_s is None or start_s is None else max(0.0, end_s - start_s)


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _empty_body_s(clock: Clock) -> float:
    """Seconds that one run of nothing takes in the loop that runs bodies."""

    def outer() -> Runs:
        yield from inner()

    def inner() -> Runs:
        for _ in repeated(None, 1000):
            yield

    start_s = clock.now()
    for _ in outer():
        pass
    return (clock.now() - start_s) / 1000
