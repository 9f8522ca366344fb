"""Stopped after each statement: device time goes to what launched, memory to what allocated."""

import contextlib
import sys
import time

import numpy as np
import pytest
from devices.conftest import JaxDriver, OpenCLDriver

import perfkit
from perfkit.devices.thread import Stream
from perfkit.errors import DeviceError
from perfkit.measure.lines.profile import profile_lines

MEGABYTE = 2**20


def line(function, offset):
    """The line so far below the `def`."""
    return function.__code__.co_firstlineno + offset


def row(profile, function, offset):
    """The statement so far below the `def`."""
    return profile.at(line(function, offset), function.__qualname__)


@pytest.fixture
def stream():
    stream = Stream()
    yield stream
    stream.close()


# -- device time -------------------------------------------------------------------------------


def launches_and_reads(launch, read):
    launch(0.1)
    total = 0
    for i in range(3):
        total += i
    read()
    return total


def test_thread_device(stream):
    """The statement that launches has the device's time, the one that waits later has none."""
    profile = profile_lines(
        launches_and_reads,
        lambda seconds: stream.launch(time.sleep, seconds),
        stream.synchronize,
        sync=True,
    )
    launch, read = row(profile, launches_and_reads, 1), row(profile, launches_and_reads, 5)
    assert 0.09 < launch.device_s < 0.5 and launch.share > 0.6
    assert read.device_s < 0.02 and read.share < 0.2
    assert launch.host_s < 0.5 * launch.time_s
    assert profile.backends == ("thread",) and profile.synchronized and profile.mode == "steps"
    assert [each.hits for each in profile.statements] == [1, 1, 4, 3, 1, 1]


def test_opencl():
    """On PoCL the kernel's time is on the line that enqueued it, not on the one that waits."""
    driver = OpenCLDriver()
    queue = driver.queue()
    profile = profile_lines(
        launches_and_reads,
        lambda seconds: driver.spin(queue, seconds),
        queue.finish,
        sync=True,
    )
    launch, read = row(profile, launches_and_reads, 1), row(profile, launches_and_reads, 5)
    assert launch.device_s > 0.02 and launch.share > 0.5
    assert read.device_s < 0.3 * launch.device_s and read.share < 0.3
    assert "opencl" in profile.backends
    driver.close()


def test_jax():
    """With JAX the call that dispatches has the time, the block_until_ready after it has none."""
    driver, results = JaxDriver(), []

    def dispatch(seconds):
        turns = max(1, int(seconds * driver.turns_per_s))
        results.append(driver.spin(turns, driver.matrix))

    def read():
        results[0].block_until_ready()

    profile = profile_lines(launches_and_reads, dispatch, read, sync=True)
    launch, read_row = row(profile, launches_and_reads, 1), row(profile, launches_and_reads, 5)
    assert launch.share > 0.5 and read_row.share < 0.3
    assert launch.device_s > 3 * read_row.device_s
    assert "jax" in profile.backends


def test_called_function_passes_its_device_time_on(stream):
    """The line that calls a launching function has the device time too, in time_s not self_s."""

    def start():
        stream.launch(time.sleep, 0.05)
        return 1

    def body():
        first = start()
        return first + start()

    profile = profile_lines(body, sync=True)
    caller, inside = profile.at(line(body, 1)), profile.at(line(start, 1))
    assert caller.device_s > 0.04 and inside.device_s > 0.09
    assert caller.self_s < 0.5 * caller.time_s
    assert inside.hits == 2 and inside.share > 0.6


def test_loops_sum_up_device_time(stream):
    """A launch in a loop has the time of all its runs."""

    def body():
        for _ in range(4):
            stream.launch(time.sleep, 0.02)
        return stream

    profile = profile_lines(body, sync=True)
    launch = profile.at(line(body, 2))
    assert launch.hits == 4 and 0.07 < launch.device_s < 0.5
    assert profile.at(line(body, 1)).device_s < 0.3 * launch.device_s
    assert 0.6 < profile.loops[0].share <= 1


def test_launch_over_lines(stream):
    """A launch spread over lines is one row with one hit and all the time."""

    def body():
        stream.launch(
            time.sleep,
            0.05,
        )
        return stream

    profile = profile_lines(body, sync=True)
    launch = profile.at(line(body, 1))
    assert launch.end_line - launch.line == 3
    assert launch.hits == 1 and launch.device_s > 0.04


def test_no_device_at_work():
    """Where no device works there is no device time, and the report says so."""

    def body():
        return sum(range(1000))

    profile = profile_lines(body, sync=True)
    assert profile.backends == ()
    assert all(not each.device_s for each in profile.statements)
    assert any("no device" in note for note in profile.notes)


def test_own_waiting_is_told_from_the_bodys(stream):
    """A body that waits for its device itself keeps the wait as its own, once."""

    def body():
        stream.launch(time.sleep, 0.05)
        stream.synchronize()
        return 1

    profile = profile_lines(body, sync=True)
    assert profile.at(line(body, 1)).device_s > 0.04
    assert profile.at(line(body, 2)).device_s < 0.02
    total_s = sum(each.device_s for each in profile.statements)
    assert total_s < 0.15 and all(0 <= each.share <= 1 for each in profile.statements)


def test_launch_and_wait_on_one_line(stream):
    """A statement that launches and waits itself has its device time, and host time besides."""

    def body():
        stream.launch(time.sleep, 0.05), stream.synchronize()
        return 1

    here = profile_lines(body, sync=True).at(line(body, 1))
    assert 0.04 < here.device_s < 0.3 and here.share > 0.6


def test_work_before_the_body_is_not_charged(stream):
    """Work that was given before the profile is waited for, and charged to nobody."""
    stream.launch(time.sleep, 0.1)

    def body():
        total = 1
        return total + 1

    profile = profile_lines(body, sync=True)
    assert sum(each.device_s or 0 for each in profile.statements) < 0.02


def test_errors_of_the_device(stream):
    """Work that fails on the device raises the device's error, and what was seen is kept."""

    def body():
        stream.launch(lambda: 1 / 0)
        return stream

    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        profile_lines(body, sync=True)
    assert sys.gettrace() is None


def test_error_of_the_device_at_the_very_end(stream):
    """Work of the last statement that fails leaves no tracing on: the next profile works."""

    def body():
        return stream.launch(lambda: 1 / 0)

    with contextlib.suppress(DeviceError):
        profile_lines(body, sync=True)
    assert sys.gettrace() is None
    assert profile_lines(many_kinds, sync=True).statements[0].hits == 1


# -- memory ------------------------------------------------------------------------------------


def test_what_is_kept():
    """A statement that allocates 8 MB and keeps them shows 8 MB, the one that frees shows -8."""

    def body():
        kept = bytearray(8 * MEGABYTE)
        size = len(kept)
        del kept
        return size

    profile = profile_lines(body, memory=True)
    made, same, freed = (profile.at(line(body, offset)) for offset in (1, 2, 3))
    assert 7 < made.host_bytes / MEGABYTE < 9
    assert abs(same.host_bytes) < MEGABYTE
    assert -9 < freed.host_bytes / MEGABYTE < -7
    assert profile.memory and all(each.hits == 1 for each in profile.statements)


def test_arrays():
    """NumPy's arrays are counted like Python's objects."""

    def body():
        kept = np.zeros(MEGABYTE)
        return kept.size

    made = profile_lines(body, memory=True).at(line(body, 1))
    assert 7 < made.host_bytes / MEGABYTE < 9


def test_peak_of_a_statement():
    """What a statement allocates and frees itself is its peak, and not what it keeps."""

    def body():
        size = len(bytearray(8 * MEGABYTE))
        return size + 1

    here = profile_lines(body, memory=True).at(line(body, 1))
    assert here.host_peak_bytes > 7 * MEGABYTE and abs(here.host_bytes) < MEGABYTE


def test_peak_inside_a_called_function():
    """A peak in a called function is seen at the caller's statement, and not at others."""

    def inside():
        much = bytearray(8 * MEGABYTE)
        return len(much)

    def body():
        before = 1
        size = inside()
        after = size
        return before + after

    profile = profile_lines(body, memory=True)
    peaks = [profile.at(line(body, offset)).host_peak_bytes for offset in (1, 2, 3)]
    assert peaks[1] > 7 * MEGABYTE and max(peaks[0], peaks[2]) < MEGABYTE
    assert profile.at(line(inside, 1)).host_bytes > 7 * MEGABYTE
    assert abs(profile.at(line(body, 2)).host_bytes) < MEGABYTE


def test_peak_before_a_statement_is_not_its_own():
    """A peak is how far a statement grew, not what was there before it."""

    def body():
        kept = bytearray(16 * MEGABYTE)
        more = bytearray(2 * MEGABYTE)
        return len(kept) + len(more)

    profile = profile_lines(body, memory=True)
    assert 1 < profile.at(line(body, 2)).host_peak_bytes / MEGABYTE < 4


def test_growth_in_a_loop():
    """A statement in a loop has the sum of what its runs kept."""

    def body():
        kept = []
        for number in range(8):
            kept += [bytearray(MEGABYTE + number)]
        return len(kept)

    here = profile_lines(body, memory=True).at(line(body, 3))
    assert 7 < here.host_bytes / MEGABYTE < 9 and here.hits == 8


def test_memory_of_an_error():
    """A body that fails keeps the memory of the statements until then."""

    def body():
        kept = bytearray(8 * MEGABYTE)
        raise ValueError(len(kept))

    with pytest.raises(ValueError, match="8388608"):
        profile_lines(body, memory=True)
    assert perfkit.last().at(line(body, 1)).host_bytes > 7 * MEGABYTE


def test_without_memory_there_is_none():
    """The columns are empty where they were not asked for."""

    def body():
        return bytearray(MEGABYTE)

    for options in ({}, {"sync": True}):
        profile = profile_lines(body, **options)
        assert {each.host_bytes for each in profile.statements} == {None}
        assert {each.host_peak_bytes for each in profile.statements} == {None}
    assert {each.device_s for each in profile_lines(body, memory=True).statements} == {None}


# -- hits --------------------------------------------------------------------------------------


def numbers(n):
    for i in range(n):
        yield i + 0


def many_kinds():
    total = 0
    for i in numbers(5):
        total += i
    while total > 0:
        total -= max(
            3,
            i,
        )
    try:
        total += 1 // 0
    except ZeroDivisionError:
        total = [
            x + 1
            for x in range(4)
        ]  # fmt: skip
    return total


WANTED = [1, 6, 5, 4, 3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("way", [{"sync": True}, {"memory": True}], ids=str)
def test_hits(way):
    """Hits are those counted by hand, with generators, errors and statements over lines."""
    profile = profile_lines(many_kinds, **way)
    found = [each for each in profile.statements if each.function == "many_kinds"]
    assert [each.hits for each in found] == WANTED
    assert [row(profile, numbers, offset).hits for offset in (1, 2)] == [6, 5]


def test_same_hits_as_traced_whole():
    """Stopping after each statement counts what mode exact counts."""
    exact = profile_lines(many_kinds, mode="exact")
    steps = profile_lines(many_kinds, memory=True)
    assert {(each.function, each.line): each.hits for each in exact.statements} == {
        (each.function, each.line): each.hits for each in steps.statements
    }


def test_recursion():
    """A statement that calls itself has its time once and all its hits."""

    def down(n):
        if n:
            return down(n - 1)
        return time.sleep(0.02)

    profile = profile_lines(down, 20, sync=True)
    again = profile.at(line(down, 2))
    assert again.hits == 20 and 0.5 < again.share <= 1
    assert sum(each.self_s for each in profile.statements) <= 1.3 * profile.wall_s
