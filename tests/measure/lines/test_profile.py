"""What holds for every line profile, whatever ran and however it was profiled."""

import asyncio
import contextlib
import functools
import itertools
import json
import threading
import time

import numpy as np
import pytest

import perfkit
from perfkit.errors import UsageError
from perfkit.measure.lines.profile import profile_lines
from perfkit.records.lines import LineProfile

WAYS = {
    "bursts": {},
    "exact": {"mode": "exact"},
    "twice": {"mode": "twice"},
    "sync": {"sync": True},
    "memory": {"memory": True},
}
MODES = ("bursts", "exact", "twice")


def line(function, offset):
    """The line so far below the `def`."""
    return function.__code__.co_firstlineno + offset


def row(profile, function, offset):
    """The statement so far below the `def`."""
    return profile.at(line(function, offset), function.__qualname__)


# -- small programs ----------------------------------------------------------------------------


def loops():
    total = 0
    for i in range(50):
        for j in range(40):
            total += i * j
    return total


def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def recursion():
    return fib(13)


def small(x):
    return x + 1


def calls():
    total = 0
    for _ in range(1000):
        total = small(total)
    return total


def numbers(n):
    for i in range(n):
        yield i + 0


def generators():
    total = 0
    for x in numbers(1000):
        total += x
    return total


async def waits(seconds):
    await asyncio.sleep(seconds)
    return seconds


async def coroutine():
    first = await waits(0.05)
    total = 0
    for i in range(1000):
        total += i
    return first, total


def coroutines():
    return asyncio.run(coroutine())


def errors():
    count = 0
    for i in range(1000):
        try:
            count += 1 // (i % 2)
        except ZeroDivisionError:
            count += 2
    return count


def comprehensions():
    found = []
    for n in range(60):
        found = [
            small(i)
            for i in range(n)
        ]  # fmt: skip
    return found


def arrays():
    a = np.ones((200, 200))
    for _ in range(20):
        b = a @ a
    return b


def sleeps():
    time.sleep(0.03)
    time.sleep(0.01)


def library():
    for _ in range(30):
        text = json.dumps({"a": list(range(100))}, indent=1)
    return text


def managers():
    for _ in range(500):
        with contextlib.nullcontext(), contextlib.suppress(ValueError):
            raise ValueError


def nothing():
    pass


PROGRAMS = (
    loops,
    recursion,
    calls,
    generators,
    coroutines,
    errors,
    comprehensions,
    arrays,
    sleeps,
    library,
    managers,
    nothing,
)


@functools.cache
def profiled(program, way):
    """One profile of a program, for all who ask."""
    return profile_lines(program, **WAYS[way])


def test_last_is_the_record():
    """A profile is perfkit.last() as soon as it is made."""
    assert profile_lines(sleeps) is perfkit.last()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_invariants(program, way):
    """Shares, times, hits and the record itself keep what the record's docstring promises."""
    profile = profiled(program, way)
    rows = profile.statements
    assert rows and profile.wall_s > 0
    for each in rows:
        assert 0 <= each.share <= 1 and 0 < each.uncertainty <= 1
        assert 0 <= each.self_s <= each.time_s
        assert each.bound is None if each.share == 1 else each.bound == 1 / (1 - each.share)
        assert each.share == pytest.approx(min(1, each.time_s / profile.wall_s))
    assert sum(each.self_s for each in rows) <= 1.3 * profile.wall_s
    assert profile.overhead == pytest.approx(profile.elapsed_s / profile.wall_s)
    assert LineProfile.from_json(profile.to_json()) == profile
    assert not profile.stopped


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_rows_are_in_source_order(program, way):
    """Within a function rows go down the page, none twice, and lie in their function's loops."""
    profile = profiled(program, way)
    for function in profile.functions:
        rows = [each for each in profile.statements if each.function == function.name]
        assert [each.line for each in rows] == sorted({each.line for each in rows})
        assert all(a.end_line < b.line for a, b in itertools.pairwise(rows))
        heads = {loop.line for loop in profile.loops if loop.function == function.name}
        assert {each.loop for each in rows} - {0} <= heads
        assert 0 <= function.share <= 1
    assert len({(each.function, each.line) for each in profile.statements}) == len(
        profile.statements
    )


TRUE_HITS = {
    (loops, 2): 51,
    (loops, 3): 50 * 41,
    (loops, 4): 50 * 40,
    (fib, 1): 753,
    (fib, 2): 377,
    (fib, 3): 376,
    (calls, 3): 1000,
    (small, 1): 1000,
    (numbers, 2): 1000,
    (generators, 3): 1000,
    (waits, 1): 1,
    (coroutine, 1): 1,
    (coroutine, 4): 1000,
    (errors, 4): 1000,
    (errors, 6): 500,
    (arrays, 3): 20,
    (managers, 2): 500,
    (managers, 3): 500,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_hits(program, way):
    """Hits are those counted by hand, or are marked as a lower limit and are none too high."""
    profile = profiled(program, way)
    for (function, offset), true in TRUE_HITS.items():
        here = [
            each
            for each in profile.statements
            if each.function == function.__qualname__ and each.line == line(function, offset)
        ]
        for each in here:
            if program is comprehensions and function is small:
                continue
            assert each.hits == true if each.hits_exact else each.hits <= true
            assert each.hits_exact or way == "bursts"


@pytest.mark.parametrize("way", WAYS)
def test_sleep_is_where_it_is(way):
    """Three quarters of the time are on the line that slept three times as long."""
    profile = profile_lines(sleeps, **WAYS[way])
    assert 0.5 < row(profile, sleeps, 1).share < 0.95
    assert 0.05 < row(profile, sleeps, 2).share < 0.5


@pytest.mark.parametrize("mode", MODES)
def test_recursion_counts_once(mode):
    """The statement that calls itself has all of the time, and no more than that."""
    profile = profile_lines(fib, 24, mode=mode)
    last = row(profile, fib, 3)
    assert 0.5 < last.share <= 1 and last.self_s <= last.time_s
    assert all(function.share <= 1 for function in profile.functions)


def halves():
    total = 0
    for i in range(1_200_000):
        total += i * i
    ordered = sorted(list(range(400_000, 0, -1)) * 2, key=abs)
    return total, ordered


@pytest.mark.parametrize("mode", ["bursts", "twice"])
def test_loop_is_not_made_larger(mode):
    """A tight loop beside a sort has the share that it has when both are timed alone."""
    alone = []
    for _ in range(3):
        start_s = time.perf_counter()
        total = 0
        for i in range(1_200_000):
            total += i * i
        middle_s = time.perf_counter()
        sorted(list(range(400_000, 0, -1)) * 2, key=abs)
        alone.append((middle_s - start_s) / (time.perf_counter() - start_s))
    profile = profile_lines(halves, mode=mode)
    assert abs(profile.loops[0].share - sorted(alone)[1]) < 0.2


def test_awaiting_statement_has_the_wait():
    """The time in which a coroutine sleeps belongs to the statement that awaits."""

    async def main():
        await asyncio.sleep(0.2)
        return sum(i for i in range(1000))

    def body():
        return asyncio.run(main())

    profile = profile_lines(body)
    here = [each for each in profile.statements if "asyncio.sleep" in each.source]
    assert here and here[0].share > 0.6


def test_awaits_of_awaits_have_the_wait():
    """A wait three coroutines deep is on all three awaiting statements, and self on the last."""
    profile = profile_lines(coroutines)
    outer, inner = row(profile, coroutine, 1), row(profile, waits, 1)
    assert outer.share > 0.4 and inner.share > 0.4
    assert outer.self_s < 0.5 * outer.time_s


def test_gathered_waits():
    """Three waits at once take the time of one, each on its statement, none above 1."""

    async def main():
        return await asyncio.gather(waits(0.1), waits(0.1), waits(0.1))

    def body():
        return asyncio.run(main())

    profile = profile_lines(body)
    waiting = row(profile, waits, 1)
    assert 0.4 < waiting.share <= 1
    assert waiting.hits == 3 or not waiting.hits_exact


def test_generator_left_open():
    """A generator that is not run to its end is counted as far as it went."""

    def body():
        return next(numbers(100))

    profile = profile_lines(body, mode="exact", functions=[numbers])
    assert [row(profile, numbers, offset).hits for offset in (1, 2)] == [1, 1]


def test_twice_runs_twice():
    """Mode twice runs the function twice, the other ways once."""
    for way, options in WAYS.items():
        runs = []

        def body():
            runs.append(1)  # noqa: B023

        profile_lines(body, **options)
        assert len(runs) == (2 if way == "twice" else 1)


def test_twice_has_a_plain_time():
    """Mode twice keeps the plain run's time, and its hits are of one run."""
    profile = profile_lines(loops, mode="twice")
    assert profile.plain_s > 0
    assert row(profile, loops, 4).hits == 50 * 40 and row(profile, loops, 4).hits_exact
    assert profile_lines(loops).plain_s is None


def test_arguments_are_passed_on():
    """The function gets its arguments, positional and by name."""
    seen = []

    def body(*args, **kwargs):
        seen.append((args, kwargs))

    profile_lines(body, 1, 2, a=3)
    assert seen == [((1, 2), {"a": 3})]


def test_label():
    """A profile is labelled with the name of its function."""
    assert profile_lines(loops).label == "loops"


def test_raw_time_only_where_all_was_traced():
    """raw_s is the tracer's clock in mode exact, not below the corrected time."""
    profile = profile_lines(loops, mode="exact")
    for each in profile.statements:
        assert each.raw_s is not None and each.raw_s >= 0
    hot = row(profile, loops, 4)
    assert hot.raw_s > hot.time_s > 0


def test_exact_says_how_slow_it_was():
    """A tight loop traced whole is several times slower, and the report knows."""
    profile = profile_lines(loops, mode="exact")
    assert profile.overhead > 1.5 and profile.traced_share == 1


def test_bursts_are_cheap_on_long_lines():
    """Sleeping and matrix products are hardly slowed at all."""
    assert profile_lines(sleeps).overhead < 1.2
    assert profile_lines(arrays).overhead < 1.5


def test_functions_found_by_ticks_have_rows():
    """A function that only ticks can find has rows with time in the record."""
    table = {"a": loops}

    def body():
        for _ in range(300):
            for name in table:
                table[name]()

    profile = profile_lines(body)
    hot = [each for each in profile.statements if each.function == "loops"]
    assert max(each.share for each in hot) > 0.2


@pytest.mark.parametrize("mode", MODES)
def test_nested_profiling_threads_share(mode):
    """Shares of statements that run in two threads at once stay at or below 1."""

    def body():
        threads = [threading.Thread(target=loops) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    profile = profile_lines(body, mode=mode)
    assert all(0 <= each.share <= 1 for each in profile.statements)
    assert all(loop.share <= 1 for loop in profile.loops)
    assert all(function.share <= 1 for function in profile.functions)


def test_function_that_changes_itself():
    """A body that redefines a profiled function while it runs is profiled as it ran."""

    def body():
        def one():
            return 1

        first = one()

        def one():
            return 2

        return first + one()

    profile = profile_lines(body, mode="exact")
    found = [each.hits for each in profile.statements if each.function.endswith("one")]
    assert found == [1, 1]


def test_long_run_of_short_profiles():
    """Times that are tiny still make a record: thirty profiles of next to nothing."""
    for _ in range(10):
        for mode in MODES:
            profile = profile_lines(small, 1, mode=mode)
            assert profile.statements[0].hits == 1


def test_what_if():
    """A row's speed_up meets its bound from below, and nonsense is refused."""
    hot = row(profile_lines(sleeps), sleeps, 1)
    assert 1 < hot.speed_up(10) < hot.speed_up(1000) < hot.bound
    with pytest.raises(UsageError, match="above 0"):
        hot.speed_up(0)
