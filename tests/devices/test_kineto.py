"""PyTorch's profiler as a source of intervals; on a processor operators stand for kernels."""

import sys
import time
from types import SimpleNamespace

import pytest

from perfkit.devices import kineto

torch = pytest.importorskip("torch")


def test_intervals_lie_in_the_run():
    """Real events of the profiler come out on the measurement's clock, inside the run."""
    x = torch.ones(600, 600)
    start = time.perf_counter()
    with kineto.profiled(time.perf_counter, kinds=("CPU",)) as rows:
        x @ x
        end = time.perf_counter()
    products = [row for row in rows if row.name == "aten::mm"]
    assert len(products) == 1
    assert start <= products[0].start_s <= products[0].end_s <= end + 0.01


def test_cpu_events_are_no_device_work():
    """Operators of the processor are not taken for kernels."""
    with kineto.profiled(time.perf_counter) as rows:
        torch.ones(3) + 1
    if not kineto.can_profile():
        assert rows == []


def event(name, start, end, kind="CUDA"):
    """An event as the profiler gives it: µs, with a device type."""
    span = SimpleNamespace(start=start, end=end)
    device = SimpleNamespace(name=kind)
    return SimpleNamespace(name=name, time_range=span, device_type=device, device_index=0)


def test_kernels_and_copies():
    """Kernels and copies are told apart by name, and placed behind the anchor."""
    events = [
        event(kineto.ANCHOR, 100.0, 101.0, "CPU"),
        event("Memcpy HtoD (Pinned -> Device)", 200.0, 300.0),
        event("sgemm", 400.0, 900.0),
        event("aten::mm", 150.0, 160.0, "CPU"),
    ]
    copy, kernel = kineto._intervals(events, 5.0, ("CUDA",))
    assert (copy.kind, kernel.kind, kernel.lane) == ("h2d", "kernel", "cuda:0")
    assert copy.start_s == pytest.approx(5.0001)
    assert kernel.end_s - kernel.start_s == pytest.approx(500e-6)


def test_without_torch(monkeypatch):
    """Without torch in the process there is no profiler, and none is imported."""
    monkeypatch.delitem(sys.modules, "torch")
    assert kineto.can_profile() is False
