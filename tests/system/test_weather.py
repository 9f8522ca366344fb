"""Noise: the spin, the pressure files, the counters of the quota."""

import os
import threading

import pytest

from perfkit.system.noise import pressure, spin, stalled_s
from perfkit.system.weather import read_weather

PRESSURE = "some avg10=12.50 avg60=3.00 avg300=1.00 total=2500000\nfull avg10=0.00 total=1\n"


def test_pressure(tree):
    """Part of the last ten seconds, and seconds since the start."""
    root = tree({"proc/pressure/cpu": PRESSURE})
    assert pressure("cpu", root) == 0.125
    assert stalled_s("cpu", root) == 2.5
    assert pressure("io", root) is None and stalled_s("io", root) is None


@pytest.mark.parametrize("text", ["", "some", "some avg10=x", "full avg10=1.0"])
def test_strange_pressure(tree, text):
    """Nonsense is not known."""
    assert pressure("cpu", tree({"proc/pressure/cpu": text})) is None


def test_spin_sees_a_neighbour():
    """Two spinning threads of one interpreter lose about half to each other."""
    stop = threading.Event()
    neighbours = [threading.Thread(target=_burn, args=(stop,)) for _ in range(2)]
    for neighbour in neighbours:
        neighbour.start()
    try:
        seen = spin(0.3)
    finally:
        stop.set()
        for neighbour in neighbours:
            neighbour.join()
    assert seen.lost_share > 0.3
    assert 0.001 < seen.longest_gap_s < seen.spin_s < 3


def _burn(stop):
    while not stop.is_set():
        pass


def test_weather(tree):
    """The nearest limit says how much memory is left; the quota's stops are a share."""
    root = tree(
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/meminfo": "MemAvailable:  8192 kB\n",
            "proc/loadavg": "3.50 2.00 1.00 1/2 3\n",
            "sys/fs/cgroup/a/memory.max": "4194304",
            "sys/fs/cgroup/a/memory.current": "1048576",
            "sys/fs/cgroup/a/cpu.stat": "nr_periods 50\nnr_throttled 10\nthrottled_usec 7000000\n",
        }
    )
    seen = read_weather(root, spin_s=0)
    assert (seen.memory_used_bytes, seen.memory_available_bytes) == (2**20, 3 * 2**20)
    assert (seen.throttled_share, seen.throttled_s, seen.load) == (0.2, 7.0, 3.5)
    assert seen.lost_share is None


def test_nothing_to_read(tmp_path):
    """What another tree does not tell is None."""
    seen = read_weather(tmp_path, spin_s=0)
    assert seen == type(seen)()


def test_a_quota_without_periods(tree):
    """A group that has not run yet was not stopped in 0 of 0 periods."""
    stat = "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"
    root = tree({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.stat": stat})
    assert read_weather(root, spin_s=0).throttled_share is None


def test_this_machine():
    """On the machine at hand the spin spins as long as it was asked to."""
    seen = read_weather(spin_s=0.02)
    assert 0.02 <= seen.spin_s < 2 and 0 <= seen.lost_share <= 1
    assert seen.load == pytest.approx(os.getloadavg()[0], abs=50)
