"""Ticks come from the alarm where it is free, from a thread where it is not, and leave no trace."""

import signal
import sys
import threading
import time

import pytest

from perfkit.measure.lines.profile import profile_lines
from perfkit.measure.lines.ticks import AlarmTicks, ThreadTicks, why_no_alarm

MODES = ("bursts", "exact", "twice")


def spin(seconds=0.05):
    end_s = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end_s:
        count += 1
    return count


def mine(number, frame):
    MINE.append(number)


MINE = []


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves a trace function to the next one."""
    yield
    left = sys.gettrace()
    sys.settrace(None)
    assert left is None


@pytest.fixture
def handled():
    """The user's own alarm handler."""
    MINE.clear()
    before = signal.signal(signal.SIGALRM, mine)
    yield MINE
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", [AlarmTicks, ThreadTicks])
def test_ticks_come(kind):
    """A tick comes again and again with the frame that runs, and none after the stop."""
    seen, ticks = [], kind()
    ticks.start(lambda frame: seen.append(frame and frame.f_code.co_name))
    assert ticks.is_ours()
    spin(0.2)
    ticks.stop()
    count = len(seen)
    spin(0.02)
    assert count == len(seen) > 10 and "spin" in seen


@pytest.mark.parametrize("kind", [AlarmTicks, ThreadTicks])
def test_all_is_put_back(kind):
    """Handler, timer, switch interval and threads are as before, also after two stops."""

    def look():
        timer = signal.getitimer(signal.ITIMER_REAL)
        return signal.getsignal(signal.SIGALRM), timer, sys.getswitchinterval(), threads()

    def threads():
        return threading.active_count()

    before, ticks = look(), kind()
    ticks.start(lambda frame: None)
    ticks.stop()
    ticks.stop()
    assert look() == before


@pytest.mark.parametrize("kind", [AlarmTicks, ThreadTicks])
def test_stop_before_start(kind):
    """Ticks that were never begun are stopped in vain."""
    before = signal.getsignal(signal.SIGALRM), sys.getswitchinterval()
    kind().stop()
    assert (signal.getsignal(signal.SIGALRM), sys.getswitchinterval()) == before


def test_alarm_is_free():
    """In the main thread with nothing set the alarm can be used."""
    assert why_no_alarm() == ""


def test_alarm_with_a_handler(handled):
    """A handler of the user's makes the alarm taken."""
    assert "in use" in why_no_alarm()


def test_alarm_ignored():
    """An alarm that is ignored on purpose is taken too."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        assert "in use" in why_no_alarm()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_alarm_timer_running():
    """A timer that runs makes the alarm taken, and is left running."""
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        assert "timer is in use" in why_no_alarm()
        profile_lines(spin)
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_no_alarm_in_other_threads():
    """In another thread the reason is that signals do not arrive there."""
    said = []
    thread = threading.Thread(target=lambda: said.append(why_no_alarm()))
    thread.start()
    thread.join()
    assert "main thread" in said[0]


# -- what a profile does without ---------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_taken_alarm_falls_back(handled, mode):
    """With the alarm taken the profile is made another way, says so, and the handler stays."""
    profile = profile_lines(spin, mode=mode)
    assert signal.getsignal(signal.SIGALRM) is mine
    row = profile.at(spin.__code__.co_firstlineno + 3)
    loop = profile.loops[0]
    assert row.hits > 10 and loop.share > 0.5
    assert profile.mode == ("twice" if mode == "twice" else "exact")
    assert mode != "bursts" or any("no bursts: the alarm" in note for note in profile.notes)


def test_users_timer_goes_on(handled):
    """Alarms that the user has ordered arrive while a profile runs."""
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    profile_lines(spin, 0.2)
    assert len(handled) > 2
    assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(0.01)


@pytest.mark.parametrize("mode", MODES)
def test_in_another_thread(mode):
    """In a thread the profile falls back, counts its lines and changes nothing for the others."""
    found, errors = [], []

    def run():
        try:
            found.append(profile_lines(spin, mode=mode))
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval(), signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors
    assert (sys.getswitchinterval(), signal.getsignal(signal.SIGALRM)) == before
    assert found[0].loops[0].share > 0.5 and found[0].statements[-1].hits == 1
    assert mode != "bursts" or any("main thread" in note for note in found[0].notes)


@pytest.mark.parametrize("mode", MODES)
def test_alarm_taken_inside(mode):
    """A body that takes the alarm keeps it, and the record says where the ticks ended."""
    before = signal.getsignal(signal.SIGALRM)

    def body():
        spin()
        signal.signal(signal.SIGALRM, mine)
        signal.setitimer(signal.ITIMER_REAL, 50)
        spin()

    try:
        profile = profile_lines(body, mode=mode)
        assert signal.getsignal(signal.SIGALRM) is mine
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any("alarm" in note for note in profile.notes)
    assert [row.hits for row in profile.statements if row.function.endswith("body")] == [1] * 4


def test_timer_stopped_inside():
    """A body that switches the timer off ends the ticks: the record says so or is exact."""

    def body():
        signal.setitimer(signal.ITIMER_REAL, 0)
        spin(0.2)

    profile = profile_lines(body)
    said = " ".join((*profile.notes, *profile.quality.reasons))
    assert "alarm" in said or "ticks" in said
    assert profile.at(body.__code__.co_firstlineno + 2).share > 0.5


def test_alarm_handler_set_and_put_back_inside():
    """A library that uses the alarm for a moment inside the body breaks nothing."""
    MINE.clear()

    def body():
        before = signal.signal(signal.SIGALRM, mine)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        spin(0.02)
        signal.signal(signal.SIGALRM, before)
        spin(0.02)

    before = signal.getsignal(signal.SIGALRM)
    profile_lines(body)
    assert MINE and signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_sleeping_calls_are_not_cut_short():
    """The ticks do not end a sleep, a lock's wait or a read before their time."""
    lock = threading.Lock()
    lock.acquire()

    def body():
        start_s = time.perf_counter()
        time.sleep(0.05)
        lock.acquire(timeout=0.05)
        return took.append(time.perf_counter() - start_s)

    took = []
    profile_lines(body)
    assert took[0] >= 0.0999


def test_time_goes_to_what_sleeps():
    """A sleep takes the share that it took."""

    def body():
        time.sleep(0.1)
        return spin(0.001)

    profile = profile_lines(body)
    assert profile.at(body.__code__.co_firstlineno + 1).share > 0.7
