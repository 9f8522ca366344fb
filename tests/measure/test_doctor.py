"""The examination of this process: complete, quick, and nothing is changed without being asked."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import threadpoolctl

import perfkit
from perfkit.measure import doctor as subject
from perfkit.records.doctor import Diagnosis

SETTINGS = """
import json, os, sys, threading, threadpoolctl, numpy
def state():
    pools = {p["filepath"]: p["num_threads"] for p in threadpoolctl.threadpool_info()}
    torch = sys.modules.get("torch")
    return (pools, torch and torch.get_num_threads(), dict(os.environ), threading.active_count(),
            numpy.geterr())
"""


def run(code):
    """What Python prints in a process of its own, as JSON."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETTINGS + code],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_it_is_complete():
    """Each part has something to say on this machine, and the record survives JSON."""
    seen = perfkit.diagnose()
    assert seen.limits == perfkit.machine().limits
    assert seen.processor.cpus and seen.file_systems and seen.weather.spin_s
    assert {row.kind for row in seen.libraries} >= {"BLAS", "SIMD", "FFT", "package"}
    assert seen.gpus or seen.gpu_stack.needs
    assert Diagnosis.from_json(seen.to_json()) == seen
    assert perfkit.last() is seen


def test_it_is_quick():
    """Two seconds are promised; even a busy machine takes no ten."""
    perfkit.diagnose()
    start_s = time.perf_counter()
    seen = perfkit.diagnose()
    assert seen.seconds <= time.perf_counter() - start_s < 10


def test_nothing_changes():
    """Threads, environment, error state: all as before, with torch and too many threads too."""
    before, after = run("""
import torch, perfkit
torch.set_num_threads(6); threadpoolctl.threadpool_limits(6)
before = state(); perfkit.diagnose(); print(json.dumps([before, state()]))
""")
    assert before == after


def test_too_many_threads_are_put_right():
    """`fix` sets them to what fits, says so, and its own lines take it back."""
    seen = run("""
import torch, perfkit
torch.set_num_threads(64); threadpoolctl.threadpool_limits(64)
before = state()[:2]
ill = perfkit.diagnose()
seen = perfkit.diagnose(fix=True)
after = state()
for change in seen.changes:
    exec(change.undo)
print(json.dumps([before, after[0], after[1], state()[:2], [f.id for f in ill.findings],
    [f.id for f in seen.findings], [[c.before, c.after] for c in seen.changes], ill.thread_gain]))
""")
    before, pools, torch, undone, ill, well, changes, gain = seen
    wanted = max(1, int(perfkit.machine().limits.cpus))
    assert "threads-over-limit" in ill and "threads-over-limit" not in well
    assert set(pools.values()) == {wanted} and torch == wanted
    assert changes and all(change == ["64", str(wanted)] for change in changes)
    assert undone == before
    assert gain > 1.5


def test_a_fix_without_a_fault_changes_nothing():
    """Threads that fit stay as they are, one of two as well."""
    with threadpoolctl.threadpool_limits(1):
        before = threadpoolctl.threadpool_info()
        assert perfkit.diagnose(fix=True).changes == ()
        assert threadpoolctl.threadpool_info() == before


def test_wide_arrays():
    """Large float64 arrays whose values fit into float32 are named, others are only listed."""
    rng = np.random.default_rng(0)
    names = {
        "whole": np.arange(2**18, dtype="float64"),
        "fine": rng.random(2**18),
        "small": np.ones(9),
        "narrow": np.ones(2**20, "float32"),
        "_hidden": np.ones(2**18),
        "nan": np.full(2**17, np.nan),
        "text": "x",
    }
    seen = perfkit.diagnose(arrays=names)
    assert {row.name: row.exact for row in seen.arrays} == {
        "whole": True, "fine": False, "nan": True,
    }  # fmt: skip
    assert seen.float32_gain > 0.5
    (found,) = (f for f in seen.findings if f.id == "float64-arrays")
    assert "whole" in found.evidence and "fine" not in found.evidence


def test_a_huge_number_does_not_fit():
    """What overflows in float32 is not held by it, and warns nobody."""
    values = np.ones(2**17)
    values[0] = 1e300
    (row,) = perfkit.diagnose(arrays={"x": values}).arrays
    assert not row.exact


READERS = [
    "read_gpus", "read_frameworks", "denormals", "read_processor", "read_surroundings",
    "read_weather", "read_file_systems",
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_a_part_that_fails(monkeypatch, reader):
    """Its reason is in the report; the rest still comes."""

    def broken(**_):
        raise RuntimeError(f"{reader} broke\nand more")

    monkeypatch.setattr(subject, reader, broken)
    seen = perfkit.diagnose()
    assert [reason for reason in seen.reasons if f"RuntimeError: {reader} broke" in reason]
    assert all("\n" not in reason for reason in seen.reasons)
    assert any(row.kind == "BLAS" for row in seen.libraries)


def test_without_numpy():
    """No NumPy: no products and no arrays, and still a report."""
    machine, reasons = run("""
sys.modules["numpy"] = None
import perfkit
seen = perfkit.diagnose(bench=True)
print(json.dumps([seen.machine.system, seen.reasons]))
""")
    assert machine and any("NumPy n/a" in reason for reason in reasons)


def test_products():
    """With `bench` the products of this machine are there."""
    seen = perfkit.diagnose(bench=True)
    assert {row.dtype for row in seen.products} == {"float64", "float32"}
    assert seen.seconds < 30
