"""What every adapter promises, run over each that this machine has."""

import sys
import threading
import time
from types import ModuleType

import pytest
from devices.conftest import HAS_EVENTS, SEES_COMMANDS

from perfkit.devices.base import Flush, Memory, Probe, Seen
from perfkit.errors import DeviceError, NotSupportedHere, PerfkitError

MIB = 2**20
sees_commands = pytest.mark.parametrize("driver", SEES_COMMANDS, indirect=True)
"""For traces that know each command; others know a stretch of each lane."""
has_events = pytest.mark.parametrize("driver", HAS_EVENTS, indirect=True)
"""For runtimes whose work can be timed by marks; JAX has none, and no intervals."""


def test_probe_names_devices(adapter):
    """A runtime that is there says so and names its devices in text."""
    kept = adapter.objects()
    probe = adapter.device.probe()
    assert isinstance(probe, Probe) and probe.available and kept
    assert probe.devices and all(isinstance(name, str) and name for name in probe.devices)


def test_probe_without_runtime(opencl, monkeypatch):
    """A runtime that is not imported gives a reason, and is not imported by asking."""
    monkeypatch.delitem(sys.modules, "pyopencl")
    probe = opencl.device.probe()
    assert "pyopencl" not in sys.modules
    assert not probe.available and "pyopencl" in probe.reason and not probe.devices


def test_probe_of_half_import(opencl, monkeypatch):
    """A runtime whose import broke half-way makes no probe raise, and has no devices."""
    monkeypatch.setitem(sys.modules, "pyopencl", ModuleType("pyopencl"))
    assert opencl.device.probe().devices == ()
    assert opencl.device.lanes() == ()


def test_probe_without_lanes(adapter):
    """A probe makes no lane of its own."""
    before = len(adapter.device.lanes())
    adapter.device.probe()
    assert len(adapter.device.lanes()) == before


def test_owns_its_objects(adapter):
    """An adapter knows what lives on its runtime."""
    assert all(adapter.device.owns(obj) for obj in adapter.objects())


@pytest.mark.parametrize("other", ["host", "thread", "opencl", "cupy"])
def test_owns_nothing_else(adapter, other, request):
    """An adapter owns no object of another runtime and nothing of plain Python."""
    strangers = [None, 3, "text", [], sys, adapter.device]
    if request.getfixturevalue(other) is not adapter:
        strangers += request.getfixturevalue(other).objects()
    assert [obj for obj in strangers if adapter.device.owns(obj)] == []


def test_owns_never_waits(driver, lane, trace):
    """Asking whose an object is leaves the work that is under way under way."""
    objects = driver.objects()
    driver.device.synchronize()
    trace.clear()
    driver.launch(lane, 0.2)
    assert all(driver.device.owns(obj) for obj in objects)
    assert trace.pending() == 1


@has_events
def test_launch_returns_early(driver, lane, trace):
    """A launch returns in well under half of the time that its work takes."""
    trace.clear()
    start_s = time.perf_counter()
    driver.launch(lane, 0.1)
    launch_s = time.perf_counter() - start_s
    trace.close_body()
    driver.device.synchronize()
    (work,) = trace.take().intervals
    assert launch_s < 0.4 * (work.end_s - work.start_s)


def test_lanes_finds_all(driver):
    """Every lane that lives is found, once, under a name of its own."""
    wanted = [driver.lane().handle, driver.lane().handle]
    lanes = driver.device.lanes()
    assert all(sum(lane.handle == handle for lane in lanes) == 1 for handle in wanted)
    assert len({lane.name for lane in lanes}) == len(lanes)
    assert {lane.backend for lane in lanes} == {driver.device.name}


def test_synchronize_waits_everywhere(driver, trace):
    """When synchronize returns no lane has work left, not even one nobody named."""
    for lane in (driver.lane(), driver.lane(), driver.lane()):
        driver.launch(lane, 0.05)
    assert trace.pending() > 0
    driver.device.synchronize()
    assert trace.pending() == 0


def test_synchronize_given_lanes(thread):
    """Waiting for some lanes does not wait for the others."""
    short, long = thread.lane(), thread.lane()
    with thread.device.trace(time.perf_counter) as seen:
        thread.launch(long, 0.3)
        thread.launch(short, 0.01)
        thread.device.synchronize([short])
        assert seen.pending() == 1


def test_host_has_nothing_to_wait_for(host):
    """The host has no lanes, and waiting for them returns."""
    assert host.device.lanes() == ()
    assert host.device.synchronize() is None
    with host.device.trace(time.perf_counter) as seen:
        assert seen.pending() == 0 and seen.take() == Seen() and not seen.new_lanes(())
    assert not host.device.asynchronous and not host.device.has_events


# -- marks -------------------------------------------------------------------------------------


@sees_commands
def test_marks_measure_work(driver, lane, trace):
    """The time between two marks is that of the work between them and little more."""
    start = driver.device.mark(lane)
    driver.launch(lane, 0.1)
    end = driver.device.mark(lane)
    driver.device.synchronize()
    (work,) = trace.take().intervals
    work_s = work.end_s - work.start_s
    assert 0.99 * work_s < driver.device.elapsed_s(start, end) < 2 * work_s


@has_events
def test_marks_tell_work_from_none(driver, lane):
    """Marks around work are far apart, marks around nothing are not."""
    marks = [driver.device.mark(lane) for _ in range(2)]
    driver.launch(lane, 0.1)
    marks.append(driver.device.mark(lane))
    driver.device.synchronize()
    nothing_s, work_s = map(driver.device.elapsed_s, marks, marks[1:])
    assert work_s > 3 * nothing_s


@has_events
def test_marks_are_ordered(driver):
    """Marks taken the wrong way round give the same time with a minus sign."""
    lane = driver.lane()
    start = driver.device.mark(lane)
    driver.launch(lane, 0.02)
    end = driver.device.mark(lane)
    driver.device.synchronize()
    forward_s = driver.device.elapsed_s(start, end)
    assert forward_s > 0 and driver.device.elapsed_s(end, start) == -forward_s


@has_events
def test_mark_not_reached(driver):
    """A mark behind work that still runs has no time yet, and the text says what to do."""
    lane = driver.lane()
    start = driver.device.mark(lane)
    driver.device.synchronize()
    driver.launch(lane, 0.2)
    end = driver.device.mark(lane)
    with pytest.raises(DeviceError, match=r"end .* not reached yet: synchronize"):
        driver.device.elapsed_s(start, end)
    driver.device.synchronize()
    assert driver.device.elapsed_s(start, end) > 0


@has_events
def test_mark_without_timing(driver):
    """Marks of a lane or event made without timing cannot be read, and the text names the cure."""
    mark = driver.untimed_mark()
    driver.device.synchronize()
    with pytest.raises(DeviceError, match=r"timing=False|PROFILING_ENABLE|_timing=True"):
        driver.device.elapsed_s(mark, mark)


@has_events
def test_marks_of_two_devices(driver):
    """Marks on two devices have no common clock, so there is no time between them."""
    one, other = map(driver.device.mark, driver.lanes_of_two_devices())
    driver.device.synchronize()
    with pytest.raises(DeviceError, match="two devices"):
        driver.device.elapsed_s(one, other)


# -- traces ------------------------------------------------------------------------------------


@sees_commands
def test_trace_sees_each_command(driver, trace):
    """Each command is seen once, with its kind, its bytes and its lane."""
    first, second = driver.lane(), driver.lane()
    driver.launch(first, 0.01)
    driver.copy(first, "h2d", MIB)
    driver.copy(second, "d2h", 3 * MIB)
    driver.device.synchronize()
    seen = trace.take()
    rows = sorted((row.kind, row.nbytes) for row in seen.intervals)
    assert rows == [("d2h", 3 * MIB), ("h2d", MIB), ("kernel", 0)]
    lanes = {row.kind: row.lane for row in seen.intervals}
    assert lanes["kernel"] == lanes["h2d"] != lanes["d2h"]
    assert (seen.launches, seen.untimed, seen.reason) == (3, 0, "")


@has_events
def test_trace_times_on_host_clock(driver, lane, trace):
    """Work lies between its launch and its end on the measurement's own clock."""
    start_s = time.perf_counter()
    trace.clear()
    driver.launch(lane, 0.1)
    trace.close_body()
    driver.device.synchronize()
    end_s = time.perf_counter()
    (work,) = trace.take().intervals
    slack_s = 0.1 * (end_s - start_s)
    assert start_s - slack_s < work.start_s < work.end_s < end_s + slack_s
    assert work.end_s - work.start_s > 0.2 * (end_s - start_s)


@has_events
def test_trace_on_another_clock(driver, lane):
    """Times are those of the clock that the trace was given, whatever its zero."""

    def clock():
        return time.perf_counter() + 1e6

    with driver.device.trace(clock) as seen:
        before_s = clock()
        driver.launch(lane, 0.05)
        seen.close_body()
        driver.device.synchronize()
        (work,) = seen.take().intervals
    assert before_s - 1 < work.start_s < work.end_s < clock() + 1


@sees_commands
def test_trace_sees_own_waits(driver, trace):
    """Blocking the calling thread is seen as a wait of the time that it was blocked."""
    lane = driver.lane()
    driver.launch(lane, 0.1)
    start_s = time.perf_counter()
    driver.wait(lane)
    end_s = time.perf_counter()
    waits = trace.take().waits
    assert all(start_s <= a <= b <= end_s for a, b in waits)
    assert sum(b - a for a, b in waits) > 0.5 * (end_s - start_s)


@sees_commands
def test_trace_ignores_others_waits(driver, trace):
    """A wait of another thread does not block the one that is measured."""
    lane = driver.lane()
    driver.launch(lane, 0.05)
    waiter = threading.Thread(target=driver.wait, args=(lane,))
    waiter.start()
    waiter.join()
    seen = trace.take()
    assert seen.waits == () and seen.launches == 1


@has_events
def test_trace_sees_others_launches(driver, lane, trace):
    """Work that another thread gives away is work of the measured body too."""
    giver = threading.Thread(target=driver.launch, args=(lane, 0.1))
    giver.start()
    giver.join()
    trace.close_body()
    driver.device.synchronize()
    assert len(trace.take().intervals) == 1


def test_pending_ends(driver, lane, trace):
    """Something is pending while work runs, and nothing when it has ended."""
    assert trace.pending() == 0
    driver.launch(lane, 0.2)
    assert trace.pending() == 1
    driver.device.synchronize()
    assert trace.pending() == 0


@sees_commands
def test_pending_counts_down(driver, trace):
    """Work is pending while it runs, and is not when it has ended."""
    lane = driver.lane()
    assert trace.pending() == 0
    driver.launch(lane, 0.1)
    driver.launch(lane, 0.1)
    assert trace.pending() == 2
    driver.device.synchronize()
    assert trace.pending() == 0


@sees_commands
def test_clear_forgets(driver, lane, trace):
    """After clear a trace has seen nothing."""
    driver.launch(lane, 0.01)
    driver.wait(lane)
    trace.clear()
    assert trace.take() == Seen()


def test_clear_begins_anew(driver, lane, trace):
    """Work of before a clear is not in what is seen after it."""
    driver.launch(lane, 0.1)
    driver.device.synchronize()
    trace.clear()
    trace.close_body()
    driver.device.synchronize()
    assert trace.take()._replace(waits=()) == Seen()


@has_events
def test_take_forgets(driver, lane, trace):
    """What was taken is not given again."""
    driver.launch(lane, 0.1)
    trace.close_body()
    driver.device.synchronize()
    assert trace.take().intervals
    trace.close_body()
    driver.device.synchronize()
    assert trace.take()._replace(waits=()) == Seen()


@sees_commands
def test_take_gives_once(driver, trace):
    """What was taken is not given again; what comes after it is."""
    lane = driver.lane()
    counts = []
    for launches in (2, 0, 1):
        for _ in range(launches):
            driver.launch(lane, 0.001)
        driver.device.synchronize()
        counts.append(trace.take().launches)
    assert counts == [2, 0, 1]


@sees_commands
def test_new_lanes_are_told(driver, trace):
    """A lane that was made and used after the lanes were listed is told by the trace."""
    known = driver.device.lanes()
    used, unused = driver.lane(), driver.lane()
    driver.launch(used, 0.001)
    assert [lane.handle for lane in trace.new_lanes(known)] == [used.handle]
    assert trace.new_lanes((*known, used)) == [] and unused


@has_events
def test_inner_trace_leaves_outer(driver, lane, trace):
    """Closing an inner trace leaves the outer one seeing, and the closed one blind."""
    with driver.device.trace(time.perf_counter) as inner:
        pass
    driver.launch(lane, 0.1)
    trace.close_body()
    driver.device.synchronize()
    assert inner.take() == Seen() and len(trace.take().intervals) == 1


@sees_commands
def test_traces_can_nest(driver, trace):
    """Two open traces both see the work, and closing one leaves the other open."""
    lane = driver.lane()
    with driver.device.trace(time.perf_counter) as inner:
        driver.launch(lane, 0.001)
    driver.launch(lane, 0.001)
    driver.device.synchronize()
    assert (inner.take().launches, trace.take().launches) == (1, 2)


def test_closed_trace_sees_nothing(driver):
    """Work given after a trace was closed is not in it."""
    with driver.device.trace(time.perf_counter) as seen:
        pass
    driver.launch(driver.lane(), 0.001)
    driver.device.synchronize()
    assert seen.take().launches == 0


def test_hooks_are_put_back(driver):
    """While a trace is open something may be replaced; when it closes all is as it was."""
    before = driver.hooks()
    with driver.device.trace(time.perf_counter):
        assert driver.hooks() != before
    assert driver.hooks() == before


def test_hooks_survive_errors(driver):
    """An error in the body, of Python or of the runtime, leaves no hook behind."""
    before, lane = driver.hooks(), driver.lane()
    with pytest.raises(ZeroDivisionError), driver.device.trace(time.perf_counter):
        raise ZeroDivisionError
    with pytest.raises(Exception) as caught, driver.device.trace(time.perf_counter) as seen:
        driver.fail(lane)
    assert not isinstance(caught.value, PerfkitError)
    assert seen.take().launches == 0
    assert driver.hooks() == before


# -- what is not there -------------------------------------------------------------------------


def test_capture_says_no(adapter):
    """A runtime without graphs says so in words, and one with them what it cannot capture."""
    with pytest.raises(NotSupportedHere, match=adapter.no_graph):
        with adapter.device.capture():
            adapter.uncapturable()


def test_host_says_no_marks(host):
    """The host has no events, and says what to use instead."""
    with pytest.raises(NotSupportedHere, match="clock"):
        host.device.mark(None)
    assert host.device.elapsed_s(None, None) is None


def test_memory_is_told_or_none(adapter):
    """Memory in use is a record of bytes or None, never a made-up number."""
    memory = adapter.device.memory()
    assert memory is None or (isinstance(memory, Memory) and memory != Memory())


def test_flush_displaces_the_cache(adapter):
    """A flush writes more than the cache that it is to displace."""
    kept = adapter.objects()
    flush = adapter.device.flush_cache()
    assert isinstance(flush, Flush) and kept
    assert flush.nbytes > flush.cache_bytes > 0


def test_flush_of_unknown_cache(adapter, monkeypatch):
    """Where the size of the cache is not told there is no flush, and the text says so."""
    adapter.hide_cache(monkeypatch)
    kept = adapter.objects()
    with pytest.raises(NotSupportedHere, match="cache size"):
        adapter.device.flush_cache()
    assert kept
