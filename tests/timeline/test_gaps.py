import itertools
import json
from collections import Counter

import pytest
from timeline.planted import CAUSES, planted, planted_json
from timeline.traces import path_of, real

from perfkit.timeline.columns import NO_BYTES, Columns, Event, Lane
from perfkit.timeline.gaps import Gaps, find_gaps

MAIN, OTHER = "thread 1", "thread 2"
MS = 1_000_000


def on_host(kind, name, start_us, end_us, *, link=0, thread=MAIN, detail=""):
    """An interval of a thread."""
    start, end = int(start_us * 1000), int(end_us * 1000)
    return Event(start, end, Lane("", thread), kind, name, NO_BYTES, link, detail)


def work(name, start_us, end_us, *, link=0, kind="kernel", stream=7, device="GPU 0"):
    """An interval of a device."""
    start, end = int(start_us * 1000), int(end_us * 1000)
    return Event(start, end, Lane(device, f"stream {stream}"), kind, name, NO_BYTES, link)


def launched(name, called_us, start_us, end_us, *, link, thread=MAIN, **place):
    """A kernel and the call that launched it."""
    call = on_host(
        "runtime", "cudaLaunchKernel", called_us, called_us + 4, link=link, thread=thread
    )
    return call, work(name, start_us, end_us, link=link, **place)


def gaps(*events, **options):
    """The gaps of the device in a trace of these events."""
    columns = Columns.of(events)
    return find_gaps(columns, columns.on_device("GPU 0"), **options)


def only(*events):
    """The cause and the host's doing of the one gap there is."""
    found = gaps(*events)
    assert found.count == 1
    return found.largest[0].cause, found.largest[0].host


def between(*events, called_us=6000, start_us=6010):
    """The same of the gap after a kernel that ends at 1000 µs, before one that begins later."""
    first, last = (
        launched("first", 0, 10, 1000, link=1),
        launched("last", called_us, start_us, 9000, link=2),
    )
    return only(*first, *events, *last)


def shares(trace):
    """Part of the idle time by cause."""
    found = Counter()
    for row in find_gaps(trace.columns, trace.columns.on_device("GPU 0")).causes:
        found[row.cause] += row.share
    return found


@pytest.mark.parametrize(
    "events",
    [
        (),
        (work("alone", 0, 5),),
        (work("a", 0, 5), work("b", 5, 9)),
        (work("a", 0, 9), work("inside", 2, 3), work("beside", 4, 9, stream=8)),
    ],
)
def test_no_gaps(events):
    """Without two stretches of work there is no gap."""
    assert gaps(*events) == Gaps(0, (), ())


def test_a_gap_says_when_and_between_what():
    """Start, length, neighbours, share and step of a gap; `detail` may hold a step's number."""
    found = gaps(
        on_host("step", "train", 0, 50, detail="41"),
        on_host("step", "train", 50, 99, detail="42"),
        work("a", 0, 10),
        work("b", 3, 8, stream=8),
        work("c", 40, 60),
        work("d", 70, 70),
        work("e", 80, 90),
    )
    assert found.count == 3
    long, short, shorter = found.largest
    assert (long.start_s, long.duration_s) == pytest.approx((10e-6, 30e-6))
    assert (long.before, long.after, long.step) == ("a", "c", 41)
    assert (short.after, shorter.before, shorter.step) == ("d", "d", 42)
    assert long.share == pytest.approx(0.6)


def test_only_the_largest_are_told_one_by_one():
    """Causes hold all gaps, however few are told."""
    events = [work("k", at, at + 1) for at in range(0, 100, 10)]
    found = gaps(*events, most=2)
    assert (found.count, len(found.largest)) == (9, 2)
    assert sum(row.count for row in found.causes) == 9
    assert sum(row.idle_s for row in found.causes) == pytest.approx(81e-6)


def test_small_shares_are_put_together_by_cause():
    """A table of many doings keeps the largest rows, and loses no time."""
    events = list(launched("k", 0, 10, 1000, link=1))
    for i in range(30):
        at = 1000 + 1000 * i
        events.append(on_host("annotation", f"part {i}", at, at + 800 + i))
        events += launched("k", at + 900, at + 910, at + 1000, link=i + 2)
    found = gaps(*events)
    assert len(found.causes) == 13
    assert [row.count for row in found.causes if not row.host] == [18]
    assert sum(row.share for row in found.causes) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("load", "data loading"), ("augment", "host late"), ("upload", "host late")],
)
def test_a_named_stretch_between_launches(name, cause):
    """What the thread did while the next launch was missing is the cause, by its name."""
    assert between(on_host("annotation", name, 1000, 5990)) == (cause, name)


def test_python_between_launches_is_late_without_a_name_too():
    """That the launch came late is known from its link alone."""
    assert between() == ("host late", "")


def test_work_after_a_wait_for_the_device_is_its_consequence():
    """Nothing was queued when the loss was printed, because the thread had waited for it."""
    wait = on_host("wait", "cudaStreamSynchronize", 20, 1008)
    print_it = on_host("annotation", "log_step", 1015, 5990)
    assert between(wait, print_it) == ("blocking copy", "log_step")
    assert between(wait) == ("blocking copy", "cudaStreamSynchronize")


def test_a_wait_on_an_idle_device_explains_itself_alone():
    """A device that was idle before the wait began was not idle because of it."""
    wait = on_host("wait", "cudaDeviceSynchronize", 5000, 5020)
    assert between(on_host("annotation", "augment", 1000, 4900), wait) == ("host late", "augment")


def test_a_call_that_returns_at_once_was_no_wait():
    """A synchronisation that found the device idle delayed nothing."""
    assert between(on_host("wait", "cudaStreamSynchronize", 996, 1002)) == ("host late", "")


def test_fetching_is_not_told_where_something_else_is_the_cause():
    """The name belongs to the cause, even if it is the longest of all names."""
    load = on_host("annotation", "load", 1000, 3300)
    names = [on_host("annotation", f"n{at}", at, at + 900) for at in (3300, 4200, 5100)]
    assert between(load, *names)[0] == "host late"
    assert between(load, *names)[1] != "load"


def test_reading_a_result_is_a_wait_without_a_call_of_the_runtime():
    """An operator that gives a number to Python waits; so does a copy back that lasts so long."""
    read = on_host("op", "aten::item", 20, 1012)
    assert between(read) == ("blocking copy", "aten::item")
    copy = on_host("runtime", "hipMemcpy", 15, 1012, link=1)
    back = work("CopyDeviceToHost", 20, 1000, link=1, kind="d2h")
    call = on_host("runtime", "launch", 4000, 4004, link=2)
    assert only(copy, back, call, work("k", 4010, 5000, link=2)) == ("blocking copy", "hipMemcpy")


def test_a_call_that_brings_input_waits_for_no_result():
    """A copy to the device that returns late is no read, even where its reader calls it a wait."""
    copy = on_host("wait", "hipMemcpyWithStream", 15, 1012, link=1)
    there = work("CopyHostToDevice", 20, 1000, link=1, kind="h2d")
    call = on_host("runtime", "launch", 4000, 4004, link=2)
    assert only(copy, there, call, work("k", 4010, 5000, link=2)) == ("host late", "")


def test_fetching_input_after_a_wait_is_fetching_input():
    """The longest part decides: the loader, not the wait before it."""
    wait = on_host("wait", "cudaStreamSynchronize", 20, 1008)
    load = on_host("op", "enumerate(DataLoader)#_Iter.__next__", 2000, 5900)
    assert between(wait, load) == ("data loading", "enumerate(DataLoader)#_Iter.__next__")
    short = on_host("op", "enumerate(DataLoader)#_Iter.__next__", 4500, 5900)
    assert between(wait, short)[0] == "blocking copy"


@pytest.mark.parametrize("thread", [MAIN, OTHER])
def test_compiling(thread):
    """A compilation is the cause on the thread itself, or on another that it waited for."""
    compiling = on_host("compile", "jit_step", 1200, 5900, thread=thread)
    inner = on_host("compile", "backend_compile", 1300, 5800, thread=thread)
    assert between(compiling, inner) == ("compile", "jit_step")


def test_compiling_beside_is_no_cause():
    """What another thread compiles beyond the gap is not what the launch waited for."""
    assert between(on_host("compile", "jit_later", 500, 8000, thread=OTHER))[0] == "host late"


def test_work_that_was_launched_in_time_waited_for_another():
    """A launch before the gap: short ones are its latency, in longer ones the work was held up."""
    marked = on_host("annotation", "exchange", 20, 40)
    held = between(marked, called_us=30, start_us=6010)
    assert held == ("waiting on a stream", "exchange")
    assert between(marked, called_us=30, start_us=1012) == ("launch gap", "exchange")


def test_a_launch_just_in_time_is_a_launch_gap():
    """Tiny kernels: the host launches as fast as it can."""
    assert between(called_us=1009, start_us=1015)[0] == "launch gap"
    assert between(called_us=1009, start_us=1045)[0] == "waiting on a stream"


def test_where_every_launch_is_slow_a_slow_one_is_no_wait():
    """A launch takes as long as the fastest of this trace do, at least."""
    events = list(launched("k", 0, 60, 200, link=1))
    for i in range(1, 20):
        events += launched("k", 200 * i + 1, 200 * i + 61, 200 * i + 200, link=i + 1)
    assert {gap.cause for gap in gaps(*events).largest} == {"launch gap"}


def test_of_several_that_begin_the_first_launch_counts():
    """Work that was launched early was held up, though later work began at the same time."""
    late = launched("beside", 5990, 6010, 6500, link=3, stream=8)
    assert between(*late, called_us=30)[0] == "waiting on a stream"


def test_a_launch_after_its_own_work():
    """Clocks that are apart make no nonsense: the host was late until the work began."""
    assert between(called_us=6013, start_us=6010) == ("host late", "")


def test_links_are_used_again():
    """The last call before the work counts."""
    early, late = (on_host("runtime", "launch", at, at + 4, link=2) for at in (5, 5000))
    never = on_host("runtime", "launch", 8000, 8004, link=2)
    first = launched("first", 0, 10, 1000, link=1)
    assert only(*first, early, late, never, work("k", 5010, 6000, link=2))[0] == "host late"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (on_host("compile", "jit_step", 500, 3000, thread=OTHER), ("compile", "jit_step")),
        (on_host("annotation", "load", 1000, 3000), ("data loading", "load")),
        (on_host("wait", "block_until_ready", 20, 1005), ("blocking copy", "block_until_ready")),
        (on_host("annotation", "augment", 1000, 3000), ("host late", "augment")),
        (on_host("step", "train", 0, 3000), ("unknown", "")),
        (on_host("wait", "block_until_ready", 20, 8000), ("unknown", "block_until_ready")),
        (on_host("wait", "block_until_ready", 1100, 8000), ("unknown", "block_until_ready")),
    ],
)
def test_without_links_it_is_judged_by_time(event, expected):
    """Where no launch is known, only what is seen in the gap can be its cause."""
    thread = on_host("python", "train.py(1): <module>", 0, 9000)
    assert only(thread, work("a", 0, 1000), work("b", 3000, 4000), event) == expected


def test_a_trace_of_the_device_alone():
    """Without the host nothing is known of it."""
    assert only(work("a", 0, 10), work("b", 500, 600)) == ("unknown", "")


@pytest.mark.parametrize(
    ("name", "cause"), [("log_step", "blocking copy"), ("load", "data loading")]
)
def test_the_thread_of_a_backward_pass_waits_for_the_main_thread(name, cause):
    """A launching thread that was asleep is not asked: the main one made it wait."""
    events = (
        on_host("step", "step#3", 0, 9000),
        on_host("wait", "cudaStreamSynchronize", 20, 1008),
        on_host("annotation", name, 1010, 5950),
        on_host("op", "autograd::engine", 5980, 8000, thread=OTHER),
        *launched("first", 0, 10, 1000, link=1),
        *launched("grad", 6000, 6010, 7000, link=2, thread=OTHER),
    )
    assert only(*events) == (cause, name)


def test_a_busy_backward_pass_is_named_by_the_main_thread():
    """What the user called it says more than the operator, and what others do says nothing."""
    events = (
        on_host("op", "aten::linear", -1, 20),
        on_host("annotation", "backward", 900, 8000),
        on_host("op", "aten::mm", 1005, 5990, thread=OTHER),
        on_host("annotation", "load", 0, 9000, thread="thread 3"),
        *launched("first", 0, 10, 1000, link=1),
        *launched("grad", 6000, 6010, 7000, link=2, thread=OTHER),
    )
    assert only(*events) == ("host late", "backward")


@pytest.mark.parametrize(
    ("events", "host"),
    [
        ([("annotation", "epoch"), ("annotation", "log"), ("python", "train.py(9): f")], "log"),
        (
            [("python", "train.py(9): f"), ("python", "torch/a.py(1): g"), ("op", "x")],
            "train.py(9): f",
        ),
        ([("python", "<built-in sleep>"), ("op", "outer"), ("op", "inner")], "inner"),
        ([("runtime", "cudaMalloc")], "cudaMalloc"),
    ],
)
def test_which_doing_is_told(events, host):
    """Annotations before the user's lines before operators before calls; the innermost of each."""
    nested = [on_host(kind, name, 1000 + i, 5990 - i) for i, (kind, name) in enumerate(events)]
    step = on_host("step", "step#7", 0, 9000)
    around = on_host("annotation", "fit", -5, 9005)
    assert between(step, around, *nested) == ("host late", host)


def test_a_step_is_told_where_nothing_else_is():
    """Turns of a loop are one doing, so that their shares add up."""
    step = on_host("step", "ProfilerStep#7", 0, 9000)
    assert between(step, on_host("op", "aten::empty", 1200, 1210)) == ("host late", "ProfilerStep")


def test_gaps_of_a_thread_of_the_host():
    """Where there is no device, the gaps between a thread's operators are judged by its own."""
    columns = Columns.of(
        [
            on_host("op", "aten::mm", 0, 100),
            on_host("annotation", "load", 100, 400),
            on_host("op", "aten::mm", 400, 500),
            on_host("op", "aten::mm", 505, 600),
            on_host("annotation", "load", 0, 600, thread=OTHER),
        ]
    )
    found = find_gaps(
        columns,
        columns.of_lanes(lane.name == MAIN for lane in columns.lanes) & columns.of_kind("op"),
    )
    assert [(gap.cause, gap.host) for gap in found.largest] == [
        ("data loading", "load"),
        ("unknown", ""),
    ]


def test_huge_times():
    """Times of years in nanoseconds overflow nowhere."""
    year_us = 3e13
    found = gaps(
        *launched("a", 0, 10, 20, link=1),
        *launched("b", 9 * year_us, 9 * year_us + 8, 10 * year_us, link=2),
    )
    assert found.largest[0].cause == "host late"
    assert found.largest[0].duration_s == pytest.approx(9e-6 * year_us)


@pytest.mark.parametrize("cause", CAUSES)
def test_planted_causes_are_found(cause):
    """At least nine tenths of the idle time goes to the cause that was planted, for each seed."""
    for seed in range(20):
        assert shares(planted(cause, seed=seed))[cause] >= 0.9, seed


def test_the_planted_doing_is_told():
    """Most of the time that a wait cost has the name that the user gave to what followed."""
    named = [planted("blocking copy", seed=seed) for seed in range(20)]
    named = [trace.columns for trace in named if "log_step" in trace.columns.names]
    hosts = [find_gaps(columns, columns.on_device("GPU 0")).causes[0].host for columns in named]
    assert len(hosts) > 5
    assert set(hosts) == {"log_step"}


@pytest.mark.parametrize("cause", ["data loading", "compile", "blocking copy"])
def test_planted_causes_are_found_without_links(cause):
    """These can be seen without knowing the launches."""
    for seed in range(10):
        assert shares(planted(cause, seed=seed, without=("links",)))[cause] >= 0.9, seed


@pytest.mark.parametrize("number", [2, 3, 6])
def test_mixtures_get_their_shares(number):
    """Each of several planted causes gets its share within ten points."""
    for seed, mixture in enumerate(itertools.combinations(CAUSES, number)):
        trace = planted(*mixture, seed=seed)
        found = shares(trace)
        for cause in mixture:
            assert found[cause] == pytest.approx(trace.truth[cause], abs=0.1), (mixture, seed)


def test_planted_traces_are_read_from_json():
    """The same holds for a trace as PyTorch's profiler writes it."""
    from perfkit.timeline.chrome import read_chrome

    text = json.dumps(planted_json("blocking copy", seed=1)).encode()
    columns = read_chrome([text], "planted")
    causes = find_gaps(columns, columns.on_device("GPU 0")).causes
    assert sum(row.share for row in causes if row.cause == "blocking copy") >= 0.9


@real
def test_a_training_run():
    """In a real run the backward pass is the late one, and all idle time has a cause."""
    from perfkit.timeline.chrome import read_chrome
    from perfkit.timeline.files import pieces

    columns = read_chrome(pieces(path_of("training-a100")), "training-a100")
    found = find_gaps(columns, columns.on_device("GPU 3"))
    assert sum(row.idle_s for row in found.causes) == pytest.approx(76007e-6, abs=1e-9)
    assert (found.causes[0].cause, found.causes[0].host) == ("host late", "## backward ##")
    assert all(gap.cause != "unknown" for gap in found.largest)
