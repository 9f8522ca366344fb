"""What is sampled, kept, left out and said, on a clock that is moved by hand."""

import functools
import gc
import math
import statistics
import sys
import time
import weakref

import msgspec
import pytest
from fakes import FakeClock, FakeDevice, measure

import perfkit
from perfkit.devices.base import Flush, Seen
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.intervals import Interval
from perfkit.measure.decomposition import Reading, decompose, typical_transfers
from perfkit.measure.plan import Plan
from perfkit.measure.timing import time_call
from perfkit.records.base import Quality
from perfkit.records.timing import Sample, Span, Timing, Transfer, is_disturbed
from perfkit.system.facts import machine


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def device(clock):
    return FakeDevice(clock)


class Body:
    """Runs for given seconds, the last of them for ever, and counts its runs."""

    def __init__(self, clock, *seconds):
        self.clock, self.seconds, self.runs = clock, seconds, 0

    def __call__(self):
        self.runs += 1
        self.clock.advance(self.seconds[min(self.runs, len(self.seconds)) - 1])


# -- repeat ------------------------------------------------------------------------------------


def test_once_is_once(clock):
    """repeat=1 runs the body exactly once, and the first call is the only sample."""
    body = Body(clock, 0.25)
    timing = measure(body, clock, repeat=1)
    assert body.runs == timing.runs == timing.number == 1
    assert timing.samples == (timing.first,)
    assert timing.first_s == timing.wall_s == timing.naive_s == 0.25


def test_default_is_once():
    """time_call runs the function once unless told otherwise."""
    runs = []
    assert time_call(lambda: runs.append(1)).repeat == 1
    assert runs == [1]


def test_repeats_keep_samples(clock):
    """repeat=N keeps N samples, and the slow first call is in none of them."""
    timing = measure(Body(clock, 1.0, 0.001), clock, repeat=7, budget_s=10)
    assert len(timing.samples) == 7 and timing.first_s == 1.0
    assert [sample.wall_s for sample in timing.samples] == pytest.approx([0.001] * 7)
    assert timing.wall_s == pytest.approx(0.001)


def test_cheap_bodies_are_batched(clock):
    """A cheap body runs many times in a sample, for half a millisecond in all."""
    body = Body(clock, 0.3, 1e-5)
    timing = measure(body, clock, repeat=4, warmup=1)
    assert 50 <= timing.number <= 51
    assert timing.wall_s == pytest.approx(1e-5)
    assert len(timing.samples) == 4 and body.runs == timing.runs > 4 * timing.number


def test_batches_are_for_cheap_bodies(clock):
    """From half a millisecond on each sample is one run."""
    body = Body(clock, 0.0005)
    timing = measure(body, clock, repeat=6, warmup=2)
    assert timing.number == 1 and body.runs == timing.runs == 1 + 2 + 6


def test_device_work_is_not_batched(clock, device):
    """Where a device works a sample is one run, or the drain would be shared out."""
    timing = measure(lambda: device.launch(1e-5), clock, devices=[device], repeat=5, warmup=1)
    assert timing.number == 1 and timing.runs == 7
    assert timing.wall_s == pytest.approx(1e-5)


def test_many_repeats_are_batched(clock, monkeypatch):
    """More repeats than samples are kept are runs of larger batches; none is dropped."""
    monkeypatch.setattr("perfkit.measure.timing.MOST_SAMPLES", 100)
    timing = measure(Body(clock, 0.001), clock, repeat=250, warmup=0, budget_s=1000)
    assert timing.number == 3 and len(timing.samples) == 100
    assert timing.quality.reasons == ()


def test_many_device_repeats(clock, device, monkeypatch):
    """Where samples cannot be batched a cut of the repeats is told."""
    monkeypatch.setattr("perfkit.measure.timing.MOST_SAMPLES", 100)
    timing = measure(lambda: device.launch(1e-5), clock, devices=[device], repeat=105)
    assert len(timing.samples) * timing.number >= 105 or timing.quality.reasons


def test_rare_device_work(clock, device):
    """Work that only some runs of a batch give away counts for one run, as wall time does."""
    runs = iter(range(10**6))

    def body():
        clock.advance(1e-5)
        if (run := next(runs)) > 10 and run % 10 == 0:
            device.launch(5e-5)
            device.wait()

    timing = measure(body, clock, devices=[device], repeat=5, warmup=5)
    assert timing.number > 1 and timing.backends == ("fake",)
    assert timing.device_busy_s <= timing.device_s <= timing.wall_s
    assert timing.launches <= 1


# -- warm-up and budget ------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [0, 1, 9])
def test_warmup_is_exact(clock, warmup):
    """The warm-up that is asked for is the one that is run."""
    body = Body(clock, 0.5, 0.001)
    measure(body, clock, repeat=3, warmup=warmup, budget_s=1000)
    assert body.runs == 1 + warmup + 3


def test_warmup_by_budget(clock):
    """Unless it is given the warm-up takes a tenth of the budget, and is not sampled."""
    body = Body(clock, *[0.02] * 5, 0.01)
    timing = measure(body, clock, repeat=5, budget_s=0.5)
    warmup_s = clock.now() - timing.first_s - 5 * 0.01
    assert 0.05 <= warmup_s <= 0.1
    assert timing.wall_s == pytest.approx(0.01)


def test_slow_body_warms_up_once(clock):
    """A body longer than the warm-up's share of the budget is warmed up by a single run."""
    body = Body(clock, 1.0)
    measure(body, clock, repeat=2, budget_s=100, warmup=None)
    assert body.runs == 1 + 3 + 2
    body = Body(clock, 1.0)
    measure(body, clock, repeat=2, budget_s=5)
    assert body.runs == 1 + 1 + 2


def test_budget_ends_sampling(clock):
    """When the budget is spent fewer samples are kept, and the reason says how many."""
    timing = measure(Body(clock, 0.1), clock, repeat=1000, budget_s=2, warmup=1)
    taken = len(timing.samples)
    assert 15 <= taken <= 20 and timing.runs == taken + 2
    (reason,) = timing.quality.reasons
    assert "budget of 2 s" in reason and f"{taken} of 1000" in reason
    assert timing.quality.status == "suspect" and timing.stopped == ""


def test_budget_allows_one_sample(clock):
    """However small the budget, one sample is taken."""
    timing = measure(Body(clock, 10.0), clock, repeat=5, budget_s=0.001)
    assert [sample.wall_s for sample in timing.samples] == [10.0]
    assert "1 of 5" in timing.quality.reasons[0]


def test_auto_stops_when_settled(clock):
    """'auto' stops long before the budget once parts of the run agree."""
    timing = measure(Body(clock, 0.5, 0.002), clock, repeat="auto", budget_s=100, warmup=2)
    assert timing.quality == Quality(reasons=(), spread=pytest.approx(0), wait_share=0.0)
    assert 20 <= len(timing.samples) < 200 and clock.now() < 2


def test_auto_stops_at_budget(clock):
    """'auto' goes on to the budget while parts of the run disagree, and says so."""
    seconds = [0.01 * 1.005**run for run in range(1000)]
    timing = measure(Body(clock, *seconds), clock, repeat="auto", budget_s=5, warmup=2)
    assert 4 < clock.now() < 6
    assert timing.quality.status == "suspect"
    assert timing.quality.reasons[0].startswith("unstable")


def test_auto_takes_twenty(clock):
    """'auto' never judges from fewer than twenty samples, however slow they are."""
    timing = measure(Body(clock, 1.0), clock, repeat="auto", budget_s=1000, warmup=1)
    assert len(timing.samples) == 20


# -- disturbed samples -------------------------------------------------------------------------


def disturbing(clock, every, times=1):
    """A body of 2 ms that waits 1 ms more for a core in `times` of `every` runs."""
    runs = iter(range(10**6))

    def body():
        clock.advance(0.002)
        if next(runs) % every < times:
            clock.advance(0.001, waited_s=0.001)

    return body


def test_disturbed_samples_are_retaken(clock):
    """'auto' takes a sample again in which the thread waited for a core."""
    timing = measure(disturbing(clock, 4), clock, repeat="auto", warmup=2)
    assert timing.single_thread and not any(map(is_disturbed, timing.samples))
    assert timing.runs > 1 + 2 + len(timing.samples)


def test_retakes_end(clock):
    """A sample that is disturbed three times running is kept, so that sampling ends."""
    timing = measure(disturbing(clock, 1), clock, repeat="auto", warmup=2)
    assert timing.runs == 1 + 2 + 3 * len(timing.samples)
    assert all(map(is_disturbed, timing.samples))
    assert "waited for a core in 33 %" in " ".join(timing.quality.reasons)


def test_fixed_repeats_are_not_retaken(clock):
    """With a number of repeats nothing is retaken, and the share of waiting is told."""
    timing = measure(disturbing(clock, 4), clock, repeat=40, warmup=2)
    assert timing.runs == 43 and len(timing.samples) == 40
    assert timing.quality.wait_share == pytest.approx(1 / 9)
    assert "waited for a core in 11 %" in " ".join(timing.quality.reasons)


def test_clean_samples_alone(clock, device):
    """Where waits are read around each sample the medians leave disturbed ones out."""
    timing = measure(disturbing(clock, 4), clock, devices=[device], repeat=40, warmup=2)
    assert timing.runs == 43 and len(timing.samples) == 40
    assert len(timing.used) == 30 and timing.wall_s == pytest.approx(0.002)


def test_too_few_clean_samples(clock, device):
    """A few clean samples are no reason to leave all the others out."""
    body = disturbing(clock, 4, times=3)
    timing = measure(body, clock, devices=[device], repeat=40, warmup=2)
    assert timing.used == timing.samples and timing.wall_s == pytest.approx(0.003)


def test_threads_are_never_filtered(clock):
    """Work on several threads always waits a little, so its samples are all used."""

    def body():
        clock.advance(0.003, waited_s=0.001, other_threads_s=0.003)

    timing = measure(body, clock, repeat="auto", warmup=2)
    assert not timing.single_thread and timing.used == timing.samples
    assert timing.runs == 1 + 2 + len(timing.samples)


def test_unknown_wait(clock):
    """Where the kernel does not tell, the share of waiting is None, not 0."""
    clock.waited = lambda: None
    timing = measure(Body(clock, 0.001), clock, repeat=5)
    assert timing.quality.wait_share is None
    assert {sample.wait_s for sample in timing.samples} == {None}


def test_wait_outside_the_sample(clock):
    """A wait that fell just outside a short sample makes no share above the whole."""

    def waited():
        clock.advance(1e-6, waited_s=1e-6)
        return clock.waited_s

    clock.waited = waited
    timing = measure(Body(clock, 1e-7), clock)
    assert timing.first.wait_s <= timing.wall_s
    assert timing.quality.wait_share <= 1


# -- errors ------------------------------------------------------------------------------------


class Breaks(Body):
    """A body of a millisecond that fails in its n-th run."""

    def __init__(self, clock, run, error):
        super().__init__(clock, 0.001)
        self.run, self.error = run, error

    def __call__(self):
        super().__call__()
        if self.runs == self.run:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize(
    ("run", "where", "samples"),
    [(1, "the first call", 0), (3, "the warm-up", 0), (8, "sample 5", 4)],
)
def test_errors_leave_a_partial_record(clock, error, run, where, samples):
    """An error or interrupt propagates as it is, and what was seen by then is perfkit.last()."""
    before = measure(Body(clock, 0.001), clock)
    with pytest.raises(type(error)) as caught:
        measure(Breaks(clock, run, error), clock, repeat=10, warmup=2)
    last = perfkit.last()
    assert caught.value is error and last is not before
    assert last.stopped.endswith(where) and last.stopped in last.quality.reasons[0]
    assert len(last.samples) == samples and last.runs == run
    assert last.first_s == pytest.approx(0.001)
    assert (last.wall_s is None) == (samples == 0)


def test_error_in_time_call():
    """The function's own error comes out of time_call, and the only run is a partial record."""
    with pytest.raises(ZeroDivisionError) as caught:
        time_call(lambda: 1 / 0)
    assert caught.value.__context__ is None
    assert perfkit.last().stopped and perfkit.last().samples == ()


def test_partial_records_survive_json(clock):
    """A partial record is a record like any other."""
    with pytest.raises(ValueError, match="mine"):
        measure(Breaks(clock, 1, ValueError("mine")), clock)
    last = perfkit.last()
    assert Timing.from_json(last.to_json()) == last


def test_last_is_the_newest():
    """perfkit.last() is the record of the latest measurement itself."""
    time_call(lambda: None)
    assert time_call(lambda: None) is perfkit.last()


# -- memory ------------------------------------------------------------------------------------


def test_no_result_is_kept():
    """The result of a run is gone before the next run begins."""
    made, alive = [], []

    class Thing:
        pass

    def body():
        alive.append(sum(ref() is not None for ref in made))
        thing = Thing()
        made.append(weakref.ref(thing))
        return thing

    time_call(body, repeat=5, warmup=3)
    assert len(alive) > 9 and set(alive) == {0}
    assert made[-1]() is None


def test_collections_are_counted():
    """Garbage collections that ran while sampling are in the record."""
    assert time_call(gc.collect).collections == 1
    timing = time_call(gc.collect, repeat=4, warmup=3, budget_s=60.0)
    assert timing.collections == timing.number * 4


def test_partial_counts_collections():
    """A measurement that an error ended counts the collections until then."""

    def body():
        gc.collect()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        time_call(body)
    assert perfkit.last().collections == 1


def test_no_collection_counts_none(clock):
    """A body that makes no garbage counts no collection."""
    assert measure(Body(clock, 0.001), clock, repeat=5).collections == 0


# -- devices -----------------------------------------------------------------------------------


def test_decomposition(clock, device):
    """Naive, host, wall, device and busy time of a planted run are exact."""

    def body():
        clock.advance(1.0)
        device.launch(2.0)
        device.wait()
        clock.advance(0.5)
        device.launch(4.0, "h2d", nbytes=8)

    timing = measure(body, clock, devices=[device])
    assert (timing.naive_s, timing.host_s, timing.wall_s) == (3.5, 1.5, 7.5)
    assert (timing.device_s, timing.device_busy_s, timing.idle_s) == (6.5, 6.0, 0.5)
    assert timing.launches == 2 and timing.transfers[0].bandwidth_Bps == 2.0


def test_blind_runtime(clock, device):
    """Where blocking calls are not seen host time is unknown as soon as the thread slept."""
    device.sees_waits = False
    free = measure(lambda: device.launch(1.0), clock, devices=[device])
    assert free.host_s == free.naive_s and free.wall_s == 1.0

    def body():
        device.launch(1.0)
        device.synchronize()

    assert measure(body, clock, devices=[device]).host_s is None


def test_work_between_runs_stays_out(clock, device):
    """Work that somebody gives the device between two runs is drained before the next."""
    timing = measure(
        lambda: device.launch(0.1),
        clock,
        devices=[device],
        between=lambda: device.launch(5.0),
        repeat=3,
        warmup=1,
        budget_s=100,
    )
    assert [sample.wall_s for sample in timing.samples] == pytest.approx([0.1] * 3)
    assert timing.device_s == pytest.approx(0.1) and timing.launches == 1


def test_idle_runtime_costs_nothing(clock, device):
    """A runtime that the body does not use leaves wall time to the body alone."""
    timing = measure(Body(clock, 0.25), clock, devices=[device])
    assert timing.backends == ("host",) and timing.device_s is None
    assert timing.wall_s == timing.host_s == timing.naive_s == 0.25
    assert timing.verdict == "synchronous" and timing.drain_s == 0.0


def test_unsynchronised(clock, device):
    """Without draining there is no wall time, and the number is refused as a measurement."""
    timing = measure(lambda: device.launch(1.0), clock, devices=[device], synchronize=False)
    assert timing.wall_s is timing.device_s is timing.host_s is timing.verdict is None
    assert timing.naive_s == 0.0 and timing.pending == 1 and not timing.synchronized
    assert timing.quality.status == "refused"
    assert "not a measurement" in timing.quality.reasons[0]


def test_pending_of_the_last_run(clock, device):
    """Pending commands are those of the last run that had not ended when its watch stopped."""

    def body():
        device.launch(0.1)
        device.wait()
        device.launch(0.1)
        device.launch(0.1)

    timing = measure(body, clock, devices=[device], repeat=3, warmup=1, synchronize=False)
    assert timing.pending == 2 and len(timing.samples) == 3


def test_synchronised_has_no_pending(clock, device):
    """A drained measurement counts nothing pending: that is None, not 0."""
    assert measure(lambda: device.launch(1.0), clock, devices=[device]).pending is None


def test_cold_flushes_first():
    """A cold measurement flushes before every run, outside the time, and notes how much."""
    timing = time_call(lambda: None, repeat=2, warmup=0, cold=True)
    assert timing.cold and timing.number == 1
    assert [note for note in timing.notes if note.startswith("cold: ")] == list(timing.notes)
    start_s = time.perf_counter()
    once = time_call(lambda: None, cold=True)
    assert once.wall_s < 0.1 * (time.perf_counter() - start_s)


# -- the record --------------------------------------------------------------------------------


def test_medians_are_of_the_samples():
    """Each figure is the median over the samples that are used, for one run."""
    timing = time_call(lambda: sum(range(20_000)), repeat=31)
    assert timing.wall_s == statistics.median(sample.wall_s for sample in timing.used)
    assert timing.naive_s == statistics.median(sample.naive_s for sample in timing.used)
    assert timing.host_s == statistics.median(sample.host_s for sample in timing.used)
    assert set(timing.used) <= set(timing.samples[timing.trimmed :])


def test_trimmed_samples_are_out(clock):
    """Samples at the front that belong to the warm-up are kept but in no median."""
    seconds = [0.01] + [0.002] * 10 + [0.001 + 1e-6 * (run % 7) for run in range(500)]
    timing = measure(Body(clock, *seconds), clock, repeat=60, warmup=0, budget_s=100)
    assert timing.trimmed == 10 and len(timing.samples) == 60
    assert timing.used == timing.samples[10:]
    assert timing.wall_s < 0.0011


def test_json_round_trip():
    """A record comes back from its JSON equal in every field."""
    timing = time_call(lambda: sum(range(1000)), repeat=5)
    again = Timing.from_json(timing.to_json())
    assert again == timing and again.wall_s == timing.wall_s
    assert "\n" not in timing.to_json()


def test_device_record_round_trip(clock, device):
    """Transfers, spans and device figures survive JSON."""

    def body():
        device.launch(0.1, "h2d", nbytes=7)
        device.launch(0.2)

    timing = measure(body, clock, devices=[device], repeat=3)
    assert timing.transfers and timing.spans
    assert Timing.from_json(timing.to_json()) == timing


def fields(**changed):
    """The fields of a small Timing."""
    first = Sample(naive_s=0.0)
    asked = {"repeat": 1, "budget_s": 1.0, "first": first, "samples": (first,)}
    return {**asked, "machine": machine(), "quality": Quality(), **changed}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    "changed",
    [
        lambda bad: {"budget_s": bad},
        lambda bad: {"drain_s": bad},
        lambda bad: {"first": Sample(naive_s=bad)},
        lambda bad: {"samples": (Sample(naive_s=0.0, device_s=bad),)},
        lambda bad: {"quality": Quality(spread=bad)},
        lambda bad: {
            "transfers": (Transfer(direction="h2d", count=1, nbytes=1, seconds=bad),),
        },
    ],
    ids=["budget", "drain", "first", "sample", "quality", "transfer"],
)
def test_no_impossible_numbers(changed, bad):
    """A record with a NaN, an infinite or a negative time cannot be made."""
    assert Timing.of(**fields())
    with pytest.raises(msgspec.ValidationError, match="float"):
        Timing.of(**fields(**changed(bad)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_impossible_spans(bad):
    """A bar of the picture has finite ends."""
    span = Span(lane="host", kind="host", name="body", start_s=0.0, end_s=bad)
    with pytest.raises(msgspec.ValidationError, match="float"):
        Timing.of(**fields(spans=(span,)))


def test_records_do_not_change():
    """A record that was made is never changed."""
    with pytest.raises(AttributeError):
        Timing.of(**fields()).repeat = 2


def test_other_json_is_refused():
    """JSON of another record, or of none, is not read as a Timing."""
    with pytest.raises(msgspec.ValidationError):
        Timing.from_json(machine().to_json())
    with pytest.raises(msgspec.DecodeError):
        Timing.from_json("{")


def test_labels_name_the_function():
    """A record is labelled with the function's name, or its type where it has none."""

    def add():
        return None

    assert time_call(add).label == "add"
    assert time_call(functools.partial(add)).label == "partial"


def test_resolution_is_told(clock):
    """A body that takes no measurable time is reported as such."""
    timing = measure(Body(clock, 0.5, 1e-8), clock, repeat=5, warmup=0)
    assert "below clock resolution" in " ".join(timing.quality.reasons)


# -- what makes no sense -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"repeat": 0}, "repeat is 0: give a whole number from 1, or 'auto'"),
        ({"repeat": True}, "repeat is True: give a whole number"),
        ({"repeat": "x"}, "repeat is 'x': give a whole number"),
        ({"repeat": 2.0}, "repeat is 2.0: give a whole number"),
        ({"warmup": -1}, "warmup is -1: give a whole number from 0"),
        ({"warmup": False}, "warmup is False: give a whole number from 0"),
        ({"budget_s": -1}, "budget is -1: give seconds above 0"),
        ({"budget_s": 0}, "budget is 0: give seconds above 0"),
        ({"budget_s": math.nan}, "budget is nan: give seconds above 0"),
        ({"budget_s": math.inf}, "budget is inf: give seconds above 0"),
        ({"budget_s": "2"}, "budget is '2': give seconds above 0"),
        ({"budget_s": True}, "budget is True: give seconds above 0"),
        ({"backend": "hots"}, "backend 'hots' is not known: did you mean host?"),
        ({"backend": ["host", "xyz"]}, "backend 'xyz' is not known: there are host, "),
    ],
    ids=str,
)
def test_nonsense_is_refused(asked, text):
    """An argument that makes no sense runs nothing and says in one line what to give."""
    runs = []
    with pytest.raises(UsageError) as caught:
        time_call(lambda: runs.append(1), **asked)
    assert str(caught.value).startswith(text) and "\n" not in str(caught.value)
    assert runs == []


def test_not_a_function():
    """What is not callable is refused with the cure."""
    with pytest.raises(UsageError, match="times a function, not int: wrap it in lambda:"):
        time_call(3)


def test_backend_not_there(monkeypatch):
    """A runtime that is known but not imported cannot be watched: the function is not run."""
    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    runs = []
    with pytest.raises(NotSupportedHere, match="import pyopencl first"):
        time_call(lambda: runs.append(1), backend="opencl")
    assert runs == []


def test_plan_checks_itself():
    """A sensible plan is returned as it is."""
    plan = Plan(repeat="auto", warmup=0, budget_s=1)
    assert plan.checked() is plan


def test_pinned_and_pageable_copies_stay_apart():
    """Copies whose host memory the profiler names are counted by themselves."""
    rows = [
        Interval(0.0, 1.0, "cuda:0", "h2d", "Memcpy HtoD (Pinned -> Device)", 10),
        Interval(1.0, 4.0, "cuda:0", "h2d", "Memcpy HtoD (Pageable -> Device)", 10),
        Interval(4.0, 5.0, "cuda:0", "h2d", "copy h2d", 10),
    ]
    run = decompose(Reading(0.0, 0.1, 5.0, None), {"fake": Seen(intervals=tuple(rows), launches=3)})
    found = [(copy.memory, copy.seconds, copy.nbytes) for copy in run.transfers]
    assert found == [("pinned", 1.0, 10), ("pageable", 3.0, 10), (None, 1.0, 10)]
    assert typical_transfers([run, run]) == run.transfers


@pytest.mark.parametrize("extra", ["trace", "graph"])
def test_no_sync_measures_nothing_else(extra):
    """A stopwatch that waits for nobody is not combined with what has to wait."""
    with pytest.raises(UsageError, match="leave out --trace and --graph"):
        Plan(synchronize=False, **{extra: True}).checked()


def test_cold_flushes_the_host_beside_a_runtime(clock, device):
    """A runtime that is loaded and flushes nothing does not leave the host's cache warm."""
    device.flush_cache = lambda: Flush(0, 0)
    timing = measure(lambda: clock.advance(1e-3), clock, devices=[device], cold=True)
    assert any("over a cache of" in note and "cold: 0" not in note for note in timing.notes)
