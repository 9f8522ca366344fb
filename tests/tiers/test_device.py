"""Tiers of devices, on PoCL and JAX: which copies, which flags, and runtimes that fail."""

import jax
import pyopencl
import pytest

from perfkit.devices.detect import devices_in_use
from perfkit.records.tiers import TierProbe
from perfkit.tiers import rows
from perfkit.tiers.device import LEAST, QUICK_BYTES, probe_devices

HAS_RUN = (jax, pyopencl)


@pytest.fixture(scope="module")
def probes():
    """One quick probe of all runtimes here."""
    return probe_devices()


def of(probes, backend, kind=""):
    """The probes of one runtime and kind."""
    return [p for p in probes if p.tier == f"{backend} device" and kind in p.probe]


def test_runtimes(probes):
    """OpenCL and JAX are imported, so they are probed, each under its own name."""
    in_use = {device.name for device in devices_in_use()}
    assert {"opencl", "jax"} <= in_use
    assert {"opencl device", "jax device"} <= {probe.tier for probe in probes}
    assert all(probe.target.device for probe in probes if probe.quality.status == "valid")


def test_opencl_ways(probes):
    """OpenCL copies both ways from pageable and pinned memory, and within the device."""
    copies = [(p.job.kernel, p.job.pinned) for p in of(probes, "opencl", "copy")]
    assert sorted(copies) == [
        ("device_to_host_memcpy_ce", False),
        ("device_to_host_memcpy_ce", True),
        ("host_to_device_memcpy_ce", False),
        ("host_to_device_memcpy_ce", True),
    ]
    assert [p.job.kernel for p in of(probes, "opencl", "bandwidth")] == ["device_local_copy"]
    assert len(of(probes, "opencl", "launch")) == 1


def test_jax_ways(probes):
    """JAX has one way each: whether memory is pinned is not known, so it is not said."""
    kinds = [(p.probe, p.job.pinned) for p in of(probes, "jax")]
    copy = ("device.copy", None)
    assert kinds == [copy, copy, ("device.bandwidth", None), ("device.launch", None)]


@pytest.mark.parametrize("backend", ["opencl", "jax"])
def test_figures(probes, backend):
    """Figures are positive and stand on several samples; what a probe does not give is None."""
    for probe in of(probes, backend):
        figure = probe.latency_s if "launch" in probe.probe else probe.bandwidth_Bps
        other = probe.bandwidth_Bps if "launch" in probe.probe else probe.latency_s
        assert other is None and probe.iops is None and figure.n >= LEAST
        assert 0 < figure.min <= figure.median <= figure.max


@pytest.mark.parametrize("backend", ["opencl", "jax"])
def test_counting(probes, backend):
    """A copy counts its bytes once, one within the device twice; the size is that of the data."""
    for probe in of(probes, backend, "copy"):
        assert probe.job.size == QUICK_BYTES
        assert probe.io_bytes == QUICK_BYTES * probe.bandwidth_Bps.n
    (inside,) = of(probes, backend, "bandwidth")
    assert inside.job.size == QUICK_BYTES and "twice" in inside.job.rules
    assert inside.io_bytes == 2 * QUICK_BYTES * inside.bandwidth_Bps.n


def test_which_clock(probes):
    """OpenCL's copies are timed by the device, JAX's by the host, and both say so."""
    assert {p.quality.source for p in of(probes, "opencl", "copy")} == {"device clock"}
    assert {p.quality.source for p in of(probes, "jax", "copy")} == {"host clock"}


def test_round_trip(probes):
    """Each probe is one line of JSON and comes back as it was."""
    for probe in probes:
        assert "\n" not in probe.to_json() and TierProbe.from_json(probe.to_json()) == probe


def test_rows_of_devices(probes):
    """Each device is one row of kind device; its copies are in the note, launches its latency."""
    found = {row.name: row for row in rows.device_rows(probes)}
    row = found["opencl device memory"]
    assert (row.kind, row.persistent, row.shared) == ("device", "no", "no")
    assert row.read_Bps > 0 and row.latency_s > 0 and row.iops is None
    assert "to device pinned" in row.note and "to host pageable" in row.note
    assert "to device " in found["jax device memory"].note


def test_no_runtime():
    """Without probes there is one row that is absent: no figure of it is 0."""
    (row,) = rows.device_rows([])
    assert (row.figures, row.kind) == ("absent", "device") and "import" in row.note
    figures = (row.read_Bps, row.write_Bps, row.latency_s, row.iops, row.capacity_bytes)
    assert figures == (None,) * 5


def test_broken_runtime(monkeypatch):
    """A runtime that fails gives one refused probe with its reason; the others are probed."""

    def broken():
        raise RuntimeError("the driver is gone\nand says it in two lines")

    monkeypatch.setattr(pyopencl, "get_platforms", broken)
    found = probe_devices(budget_s=0.3)
    (refused,) = of(found, "opencl")
    assert refused.quality.status == "refused" and refused.bandwidth_Bps is None
    assert "the driver is gone" in refused.quality.reasons[0]
    assert len(of(found, "jax")) == 4


def test_row_of_a_broken_runtime(monkeypatch):
    """Its row is refused with the reason in one line, without figures and without empty words."""

    def broken():
        raise RuntimeError("the driver is gone\nand says it in two lines")

    monkeypatch.setattr(pyopencl, "get_platforms", broken)
    row = next(r for r in rows.device_rows(probe_devices(budget_s=0.3)) if "opencl" in r.name)
    assert row.quality.status == "refused" and row.read_Bps is row.latency_s is None
    assert "the driver is gone" in row.quality.reasons[0]
    assert "\n" not in "".join(row.quality.reasons)
    assert all(part.strip() for part in row.note.split(";")) and "n/a" not in row.note


def test_no_opencl_device(monkeypatch):
    """An OpenCL without any platform is refused as well."""
    monkeypatch.setattr(pyopencl, "get_platforms", list)
    (refused,) = of(probe_devices(budget_s=0.3), "opencl")
    assert refused.quality.status == "refused"


def test_failure_in_the_middle(monkeypatch):
    """What was measured before a runtime failed is kept beside the refusal."""

    def broken(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(pyopencl, "Program", broken)
    found = of(probe_devices(budget_s=0.3), "opencl")
    assert sum(probe.bandwidth_Bps is not None for probe in found) == 5
    assert [p.quality.status for p in found].count("refused") == 1


def test_interrupt_comes_through(monkeypatch):
    """An interrupt is not taken for a broken runtime."""

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(pyopencl, "get_platforms", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe_devices(budget_s=0.3)
