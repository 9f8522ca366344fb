"""Bandwidth: what is counted, on made-up slices and in real runs on small arrays."""

import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from perfkit.errors import NotSupportedHere, UsageError
from perfkit.tiers import bandwidth as subject
from perfkit.tiers.bandwidth import KERNELS, Arrays, Slice, calls, probe_bandwidth, together
from perfkit.tiers.samples import Team

GB = 10**9


@pytest.fixture
def small(monkeypatch):
    """Arrays of 4 MiB, so that a run needs no time to make them."""
    monkeypatch.setattr(subject, "_array_bytes", lambda _: 2**22)


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def stretch(*spans, clean=True):
    return [Slice(start, end, clean) for start, end in spans]


def test_one_thread():
    """The rate of one thread is bytes over seconds of each clean slice."""
    samples = together([stretch((0, 1), (1, 3)) + stretch((3, 13), clean=False)], GB)
    assert sorted(samples.clean) == [0.5e9, 1e9]
    assert samples.disturbed == [1e8]


def test_threads_are_added():
    """Two threads side by side give the sum, seen from each of their slices."""
    samples = together([stretch((0, 1), (1, 2)), stretch((0, 2))], GB)
    assert samples.clean == pytest.approx([1.5e9] * 3)


def test_a_slice_alone_is_not_clean():
    """While the other thread has lost its core the memory is not shared: that is no sample."""
    other = stretch((0, 1)) + stretch((1, 2), clean=False)
    samples = together([stretch((0, 1), (1, 2)), other], GB)
    assert samples.clean == [2e9, 2e9] and len(samples.disturbed) == 2


def test_short_gaps_are_forgiven():
    """Between two slices of a thread lies a little time of the interpreter's."""
    samples = together([stretch((0, 1)), stretch((0.02, 0.5), (0.52, 1))], GB)
    assert len(samples.clean) == 3


def test_no_slices():
    """A thread that never came to run leaves no figure for all."""
    assert together([stretch((0, 1)), []], GB).clean == []
    assert together([], GB).clean == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_arrays_are_cut(threads):
    """Every thread has as many slices of one size, and together they are what was asked."""
    arrays = Arrays(20_000_000, threads)
    assert len({len(part) for part in arrays.parts}) == 1
    slices = [triple for part in arrays.parts for triple in part]
    assert {array.nbytes for triple in slices for array in triple} == {arrays.slice_bytes}
    assert 20_000_000 <= arrays.nbytes == len(slices) * arrays.slice_bytes < 20_200_000
    assert arrays.slice_bytes <= 2**23


def test_kernels_compute():
    """Each kernel writes what STREAM says, into the array that it says."""
    for kernel, value in {"copy": (1, 2, 1), "scale": (1, 9, 3), "add": (1, 2, 3)}.items():
        a, b, c = (np.full(8, x) for x in (1.0, 2.0, 3.0))
        calls([kernel])[kernel]((a, b, c))
        assert (a[0], b[0], c[0]) == value
    a, b = np.full(8, 1.0), np.full(8, 2.0)
    calls(["update"])["update"]((a, b, None))
    assert a[7] == 3.0 and calls(["read"])["read"]((a, b, None)) == 3.0


def test_a_real_run(small, no_torch):
    """One probe for each kernel and team, with what it was asked and what it saw."""
    said = []
    probes = probe_bandwidth(budget_s=0.8, threads=1, tick=lambda *told: said.append(told))
    assert [probe.job.kernel for probe in probes] == ["read", "copy", "scale", "add", "update"]
    for probe in probes:
        assert probe.job.threads == 1 and probe.job.bytes_per_element == KERNELS[probe.job.kernel]
        assert probe.job.page_size and "variant of the STREAM rules" in probe.job.rules
        assert probe.noise.clean + probe.noise.disturbed > 5 and probe.io_bytes > 0
        assert 1e8 < probe.sustained_Bps < 1e13 and probe.bandwidth_Bps.n == probe.noise.clean
        assert type(probe).from_json(probe.to_json()) == probe
    assert all(0 <= done <= 1 for _, done in said) and said[-1][0].startswith("bandwidth")


def test_every_core_and_one(small, no_torch):
    """Without a count of threads there is one run on one, and one on all cores."""
    widths = [probe.job.threads for probe in probe_bandwidth(budget_s=0.3, kernels=["add"])]
    assert widths[0] == 1 and widths == sorted(set(widths))


def test_a_rule_that_is_not_met_is_said(small, no_torch, monkeypatch):
    """Arrays below four times the last level make a figure suspect, at the best."""
    monkeypatch.setattr(subject, "last_levels_bytes", lambda _: 2**22)
    (probe,) = probe_bandwidth(budget_s=0.2, threads=1, kernels=["read"])
    assert probe.job.array_to_llc == 1.0 and "rule not met" in probe.notes[0]
    assert probe.quality.status != "valid" and "rule not met" in probe.quality.reasons[-1]


def test_sizes_keep_to_the_memory(monkeypatch):
    """Four times the last level, or eight percent of the memory where that is less."""
    monkeypatch.setattr(subject, "spare_memory_bytes", lambda: 2**31)
    assert subject._array_bytes(2**20) == 2**22
    assert subject._array_bytes(2**30) == int(0.08 * 2**31)


def test_memory_that_is_not_to_be_had(small, no_torch, monkeypatch):
    """Refused with the reason, and without a figure."""

    def refuse(nbytes):
        raise MemoryError("no more")

    monkeypatch.setattr(subject, "anonymous_memory", refuse)
    (probe,) = probe_bandwidth(threads=1, kernels=["add"])
    assert probe.quality.status == "refused" and "not to be had" in probe.quality.reasons[0]
    assert probe.bandwidth_Bps is None and probe.sustained_Bps is None


def test_wrong_questions(no_torch):
    """Unknown kernels, impossible threads and a triad without torch have their own words."""
    with pytest.raises(UsageError, match="no kernel 'triumph'"):
        probe_bandwidth(kernels=["triumph"])
    with pytest.raises(UsageError, match="may run 1 to"):
        probe_bandwidth(threads=10_000)
    with pytest.raises(NotSupportedHere, match="needs torch"):
        probe_bandwidth(kernels=["triad"])


def test_triad_leaves_torch_as_it_was(small, monkeypatch):
    """Where torch is imported the triad runs on it, and its threads are put back."""
    threads = [6]
    torch = SimpleNamespace(
        from_numpy=lambda array: array,
        add=lambda b, c, alpha, out: np.add(b, c, out=out),
        get_num_threads=lambda: threads[-1],
        set_num_threads=threads.append,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert probe_bandwidth(budget_s=0.1, threads=1)[-1].job.kernel == "triad"
    assert threads == [6, 1, 6]


def test_an_interrupt_leaves_nothing(small, no_torch):
    """No thread stays, and the caller may run where it could before."""
    before, mask = threading.active_count(), os.sched_getaffinity(0)

    def tick(words, done):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_bandwidth(budget_s=5, tick=tick)
    assert threading.active_count() == before and os.sched_getaffinity(0) == mask


def test_touch_makes_the_pages():
    """Every slice is written before anything is measured."""
    arrays = Arrays(2**22, 1)
    with Team([min(os.sched_getaffinity(0))]) as team:
        arrays.touch(team)
    assert all(array.all() for part in arrays.parts for triple in part for array in triple)
    assert "KiB" in arrays.page_size or "huge" in arrays.page_size
