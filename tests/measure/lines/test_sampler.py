"""What ticks add up to, and when tracing stops, with ticks given by hand where that can be."""

import json
import sys
import threading
import time

import pytest

from perfkit.measure.lines.calibration import Costs, calibrate
from perfkit.measure.lines.events import LineEvents, refuse_other_tools
from perfkit.measure.lines.profile import profile_lines
from perfkit.measure.lines.profiled import Profiled, inner_code
from perfkit.measure.lines.sampler import Sampler
from perfkit.measure.lines.statements import Sources

FREE = Costs(event_s=1e-9, inline_s=1e-9, spread=0.0)


def outer(look):
    first = 1
    second = inner(look)
    return first + second


def inner(look):
    look(sys._getframe())
    return 1


def looks_in_comprehension(look):
    return [
        look(sys._getframe())
        for _ in range(1)
    ]  # fmt: skip


def recursive(depth, look):
    if depth:
        return recursive(depth - 1, look)
    return look(sys._getframe())


def profiled(*functions):
    """Profiled code without anything that runs."""
    found, sources = Profiled(), Sources()
    for function in functions:
        found.add(sources.layout(function.__code__))
    return found


def read(found, body, *arguments):
    """The stack that a tick inside `body` sees."""
    seen = []
    body(*arguments, lambda frame: seen.append(found.read(frame, lambda code: False)))
    return seen[0]


def lines(found, numbers):
    """Function and first line, counted from its def, of statements."""
    rows = [found.row(number) for number in numbers]
    return [(a.name, a.rows[i].line - a.code.co_firstlineno) for a, i in rows]


# -- stacks ------------------------------------------------------------------------------------


def test_stack_of_a_call():
    """The innermost statement is on top, those that wait for it are outer."""
    found = profiled(outer, inner)
    stack = read(found, outer)
    assert lines(found, [stack.top]) == [("inner", 1)] and not stack.called
    assert lines(found, stack.outer) == [("outer", 2)]


def test_stack_through_unknown_code():
    """Code that is not profiled belongs to the statement that called it."""
    found = profiled(outer)
    stack = read(found, outer)
    assert lines(found, [stack.top]) == [("outer", 2)]
    assert stack.called and stack.foreign and stack.outer == ()


def test_stack_in_a_comprehension():
    """A comprehension belongs to its statement on every Python."""
    found = profiled(looks_in_comprehension)
    stack = read(found, looks_in_comprehension)
    assert lines(found, [stack.top]) == [("looks_in_comprehension", 1)] and not stack.foreign


def test_stack_of_recursion():
    """A statement that waits at ten depths is in the stack once."""
    found = profiled(recursive)
    stack = read(found, recursive, 10)
    assert lines(found, stack.outer) == [("recursive", 2)]
    assert lines(found, [stack.top]) == [("recursive", 3)]


def test_stack_of_unknown_code_alone():
    """Where nothing profiled runs the stack is empty."""
    stack = read(profiled(outer), inner)
    assert (stack.top, stack.outer) == (-1, ())


def test_stack_in_a_profiled_function_that_unknown_code_called():
    """Profiled code under a library's function waits below it."""
    found = profiled(outer, inner)

    def library(look):
        return inner(look)

    stack = read(found, library)
    assert lines(found, [stack.top]) == [("inner", 1)] and stack.outer == ()


def test_numbers_belong_to_one_statement_each():
    """Each statement has one number, in source order, and adding twice changes nothing."""
    found = profiled(outer, inner, outer)
    assert len(found.layouts) == 2
    assert lines(found, found.numbers(0)) == [("outer", 1), ("outer", 2), ("outer", 3)]
    assert lines(found, found.numbers(1)) == [("inner", 1), ("inner", 2)]
    assert found.last_number() == 2


def test_inner_code():
    """Lambdas and comprehensions are part of a statement, functions inside are not."""

    def holds():
        def not_this():
            return 1

        return not_this, lambda: lambda: 2, (i for i in ())

    found = [code.co_name for code in inner_code(holds.__code__)]
    assert found == ["<lambda>", "<lambda>", "<genexpr>"]


# -- weights -----------------------------------------------------------------------------------


def test_time_is_that_between_ticks():
    """All seconds from the start to the last tick are in the weights, once."""
    found = profiled(outer, inner)
    sampler = Sampler(found, LineEvents(), FREE, "never")
    start_s = time.perf_counter()
    sampler.start()
    for _ in range(5):
        time.sleep(0.005)
        outer(sampler.tick)
    sampler.stop()
    took_s = time.perf_counter() - start_s
    total_s = sum(weight.true_s for weight in sampler.weights.values())
    assert sampler.ticks == 5 and 0.02 < total_s <= took_s
    assert total_s + sampler.own_s <= took_s * 1.001


def test_errors_of_ours_stay_inside():
    """A tick never raises: what goes wrong in it is said in `failure`, and ticks end."""
    sampler = Sampler(profiled(outer, inner), LineEvents(), FREE, "never")
    sampler.start()
    sampler.tick(3)
    assert "perfkit stopped looking" in sampler.failure
    sampler.tick(sys._getframe())
    sampler.stop()
    assert sampler.ticks <= 1


@pytest.mark.parametrize("mode", ["bursts", "always", "never"])
def test_stop_leaves_nothing_on(mode):
    """However it is traced, after the stop nothing is."""
    events = LineEvents()
    events.add(outer.__code__)
    events.open()
    sampler = Sampler(profiled(outer), events, FREE, mode)
    try:
        sampler.start()
        assert events.on == (mode != "never")
        outer(sampler.tick)
        sampler.stop()
        assert not events.on
    finally:
        events.close()
    refuse_other_tools()


def test_cheap_tracing_stays_on():
    """While events cost next to nothing the first burst does not end where code is local."""
    events = LineEvents()
    found = profiled(outer, inner)
    for function in (outer, inner):
        events.add(function.__code__)
    events.open()
    sampler = Sampler(found, events, FREE, "bursts")
    try:
        sampler.start()
        for _ in range(10):
            time.sleep(0.003)
            outer(sampler.tick)
        sampler.stop()
    finally:
        events.close()
    assert sampler.bursts == 1 and sampler.off_s == 0


def test_costly_tracing_stops():
    """Where events cost most of the time tracing is off for most of it."""
    events = LineEvents()
    events.add(outer.__code__)
    events.open()
    sampler = Sampler(profiled(outer, inner), events, Costs(1.0, 1.0, 0.0), "bursts")
    try:
        sampler.start()
        for _ in range(40):
            time.sleep(0.002)
            outer(sampler.tick)
        sampler.stop()
    finally:
        events.close()
    assert sampler.bursts > 1
    assert sampler.off_s > 0.04


def test_calibration():
    """An event costs something, the line is charged no more than that, and nothing is left on."""
    events = LineEvents()
    events.open()
    try:
        costs = calibrate(events)
        assert not events.on
    finally:
        events.close()
    assert 1e-9 < costs.event_s < 1e-4
    assert 0 <= costs.inline_s <= costs.event_s and costs.spread >= 0


# -- bursts at work ----------------------------------------------------------------------------


def tight(number):
    total = 0
    for i in range(number):
        total += i * i
        total ^= i
    return total


def loop_and_sort(number):
    values = list(range(1_500_000, 0, -1)) * 2
    total = tight(number)
    ordered = sorted(values, key=None)
    return total, len(ordered)


def matrices(runs, size):
    import numpy as np

    a = np.ones((size, size)) / size
    for _ in range(runs):
        b = a @ a
        c = b @ a
    return c


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def test_hot_hits_are_lower_limits():
    """Hits of a loop of millions are shown as lower limits, those of the lines around exactly."""
    number = 4_000_000
    profile = profile_lines(loop_and_sort, number)
    for offset in (2, 3, 4):
        row = profile.at(line(tight, offset))
        assert not row.hits_exact and 0 < row.hits <= number + 1
        assert row.raw_s is None
    for offset in (1, 2, 3, 4):
        row = profile.at(line(loop_and_sort, offset))
        assert (row.hits, row.hits_exact) == (1, True)


def test_callers_time_is_whole():
    """The call's row has the loop's time, and its own self time is next to nothing."""
    profile = profile_lines(loop_and_sort, 4_000_000)
    call, loop = profile.at(line(loop_and_sort, 2)), profile.loops[0]
    assert call.share > 0.3 and abs(call.share - loop.share) < 0.1
    assert call.self_s < 0.3 * call.time_s


def test_bursts_are_cheaper_than_tracing():
    """Bursts slow a tight loop far less than tracing it whole."""
    bursts = profile_lines(tight, 500_000)
    exact = profile_lines(tight, 500_000, mode="exact")
    assert bursts.elapsed_s < 0.7 * exact.elapsed_s
    assert bursts.traced_share < 0.7 and exact.traced_share == 1


def test_heavy_lines_keep_exact_hits():
    """Lines of milliseconds are traced throughout: where events are local all hits are exact."""
    profile = profile_lines(matrices, 40, 400)
    rows = [profile.at(line(matrices, offset)) for offset in (4, 5, 6)]
    wanted = [41, 40, 40]
    for row, count in zip(rows, wanted, strict=True):
        assert row.hits == count if row.hits_exact else row.hits <= count
    if sys.version_info >= (3, 12):
        assert all(row.hits_exact for row in rows)
        assert profile.overhead < 1.5
    assert 0.1 < rows[1].share < 0.9 and 0.1 < rows[2].share < 0.9


def test_a_long_call_in_c_has_its_time():
    """One call into C that swallows all ticks keeps its time."""

    def body():
        text = json.dumps(list(range(700_000)))
        return len(text)

    assert profile_lines(body).at(line(body, 1)).share > 0.7


def test_last_statement_in_c():
    """A long call in C as the last thing of a function is not given to what came before."""

    def body(values):
        count = 0
        for i in range(1000):
            count += i
        return sorted(values, key=str)

    profile = profile_lines(body, list(range(300_000, 0, -1)))
    assert profile.at(line(body, 4)).share > 0.7


def test_very_short_function():
    """A function that is over before the first tick has its hits, and is called too short."""
    profile = profile_lines(outer, lambda frame: None)
    assert profile.ticks < 5
    assert {row.hits for row in profile.statements if row.function == "outer"} == {1}
    assert profile.quality.status == "suspect" or all(row.hits_exact for row in profile.statements)
    assert all(0 <= row.share <= 1 for row in profile.statements)


# -- threads -----------------------------------------------------------------------------------


def worker(number):
    total = 0
    for i in range(number):
        total += i
    return total


def two_workers(number):
    threads = [threading.Thread(target=worker, args=(number,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_hits_in_threads():
    """Traced throughout, lines that two threads run have the hits of both."""
    profile = profile_lines(two_workers, 30_000, mode="exact")
    found = [row.hits for row in profile.statements if row.function == "worker"]
    assert found == [2, 60_002, 60_000, 2]
    assert all(0 <= row.share <= 1 for row in profile.statements)


@pytest.mark.parametrize("mode", ["bursts", "exact", "twice"])
def test_lock_is_told(mode):
    """Where threads ran profiled code the report warns that waits for the lock count as time."""
    profile = profile_lines(two_workers, 300_000, mode=mode)
    assert any("interpreter lock" in note for note in profile.notes)
    assert all(0 <= row.share <= 1 for row in profile.statements)
    found = [row for row in profile.statements if row.function == "worker"]
    assert found and all(row.hits <= 600_002 for row in found)


def test_hits_in_threads_in_bursts():
    """Hits that threads may have left unseen are no exact ones."""
    profile = profile_lines(two_workers, 600_000)
    row = profile.at(line(worker, 3))
    assert row.hits == 1_200_000 or (not row.hits_exact and row.hits < 1_200_000)


def test_threads_that_outlive_the_profile():
    """A thread that goes on afterwards is not traced any more, and harms nothing."""
    go_on, threads = threading.Event(), []

    def body():
        threads.append(threading.Thread(target=go_on.wait))
        threads[0].start()
        return worker(10_000)

    profile = profile_lines(body, mode="exact")
    go_on.set()
    threads[0].join()
    again = profile_lines(worker, 10_000, mode="exact")
    assert [row.hits for row in again.statements] == [1, 10_001, 10_000, 1]
    assert profile.statements[0].hits == 1


def test_thread_that_was_there_before():
    """A thread that ran before the profile began is not counted as the body's."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [worker(100) for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        profile = profile_lines(worker, 100_000)
    finally:
        stop.set()
        thread.join()
    assert all(0 <= row.share <= 1 for row in profile.statements)


def test_errors_in_threads(capsys):
    """An error in a thread is that thread's, the profile is whole."""

    def body():
        thread = threading.Thread(target=worker, args=("no number",), name="mine")
        thread.start()
        thread.join()

    seen, before = [], threading.excepthook
    threading.excepthook = lambda args: seen.append(args.exc_type)
    try:
        profile = profile_lines(body, mode="exact")
    finally:
        threading.excepthook = before
    assert seen == [TypeError] and not profile.stopped
    assert profile.at(line(worker, 2)).hits == 1
