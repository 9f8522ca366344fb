"""Matrix products against the peak; thread counts come back."""

import subprocess
import sys

import pytest

from perfkit.measure import products as subject
from perfkit.measure.products import measure_products, thread_gain, threads_now, with_threads


@pytest.fixture(scope="module")
def measured():
    return measure_products(2, budget_s=2.0)


def test_each_case_is_there(measured):
    """Both precisions, one thread and all, of equal size, three samples each or more."""
    numpy = [(row.dtype, row.threads) for row in measured if row.library == "NumPy"]
    assert sorted(numpy) == [(d, t) for d in ("float32", "float64") for t in (1, 2)]
    assert len({row.n for row in measured}) == 1
    assert all(row.samples >= 3 for row in measured)


def test_no_more_than_the_peak(measured):
    """A product is never faster than the registers, and a tuned one is not far below."""
    for row in measured:
        if row.of_peak is not None:
            assert row.of_peak <= 1.05
    single = [row for row in measured if row.threads == 1 and row.library == "NumPy"]
    assert all(row.of_peak is None or row.of_peak > 0.3 for row in single)


def test_float32_is_faster(measured):
    """Half the bytes, twice the numbers in a vector."""
    one = {row.dtype: row.flops for row in measured if row.threads == 1 and row.library == "NumPy"}
    assert one["float32"] > 1.3 * one["float64"]


def test_one_thread_is_measured_once():
    """Where there is one CPU there is nothing to compare."""
    rows = [row for row in measure_products(1, budget_s=0.1) if row.library == "NumPy"]
    assert [row.threads for row in rows] == [1, 1]


def test_threads_come_back():
    """Also after an error in the middle."""
    before = threads_now()
    with pytest.raises(ZeroDivisionError), with_threads(1):
        assert threads_now() == 1
        raise ZeroDivisionError
    assert threads_now() == before


def test_torch_is_measured_where_it_is_loaded():
    """Only then; its threads come back as well."""
    code = """
import torch
torch.set_num_threads(2)
from perfkit.measure.products import measure_products
rows = measure_products(1, budget_s=0.1)
assert {row.library for row in rows} == {"NumPy", "torch"}
assert torch.get_num_threads() == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_too_many_threads_cost():
    """Twice as many threads as CPUs, or more, are not faster than as many as fit."""
    usable = subject.require("perfkit.system.limits", "test").read_limits().affinity_cpus or 1
    with with_threads(8 * usable):
        set_to = threads_now()
    gain = thread_gain(8 * usable, max(1, usable))
    assert gain > 0.5 if set_to == 8 * usable else gain > 0


def test_a_library_that_beats_the_loop(monkeypatch):
    """Wider units than the loop's: no peak, and the reason."""
    case = subject._Case("NumPy", "float64", 1, 100, lambda: None, [1e-3] * 5, [1e9])
    row = subject._product(case, "")
    assert row.peak_flops is None and "wider units" in row.quality.reasons[0]


def test_scatter_is_told():
    """Samples that lie far apart make the row suspect."""
    case = subject._Case("NumPy", "float64", 1, 100, lambda: None, [1.0, 1.0, 2.0, 3.0, 4.0], [])
    row = subject._product(case, "no peak: no machine code: none")
    assert row.quality.status == "suspect" and row.quality.spread > 0.2
    assert row.quality.reasons[0].startswith("no peak")
