"""Records of tiers: the fields that were agreed, JSON both ways, and what is no figure."""

import json

import msgspec
import pytest

from perfkit import machine
from perfkit.records.base import Quality
from perfkit.records.tiers import (
    CacheState,
    IoTime,
    Job,
    PlannedPath,
    Summary,
    Target,
    Tier,
    TierAnswer,
    TierPlan,
    TierProbe,
    TierTable,
)

FIELDS = {
    "": {"record", "schema", "probe", "tier", "time", "host", "rank", "target", "job"}
    | {"bandwidth_Bps", "iops", "latency_s", "io_bytes", "cache", "noise", "limits", "quality"}
    | {"bw_first_done_Bps", "bw_last_done_Bps", "start_skew_s", "plateaus", "percentiles_s"},
    "target": {"path", "fstype", "source", "st_dev", "mount_options", "memory_backed"}
    | {"network", "stripe", "free_bytes"},
    "job": {"rw", "bs", "size", "ioengine", "iodepth", "numjobs", "direct", "end_fsync"}
    | {"runtime_s", "ramp_time_s", "kernel", "threads", "array_bytes", "array_to_llc"}
    | {"bytes_per_element", "page_size", "pattern", "working_set_bytes", "items", "file_bytes"}
    | {"tasks", "clients_per_node", "access", "reorder_tasks", "pinned", "rules"},
    "cache": {"device_share", "resident_before", "dio_align", "second_pass_ratio", "state"},
    "noise": {"clean", "disturbed", "psi_cpu_some", "nr_throttled", "loadavg"},
    "quality": {"status", "reasons"},
}
PROBE = TierProbe.of(
    probe="storage.read",
    tier="scratch",
    target=Target(path="/scratch", fstype="ext4", free_bytes=2**40),
    job=Job(rw="randread", bs=4096, numjobs=16, direct=True),
    bandwidth_Bps=Summary(median=2.0, min=1.0, max=4.0, p25=1.5, p75=2.5, n=5),
    percentiles_s=((50.0, 1e-4), (99.9, 1e-2)),
    cache=CacheState(device_share=1.0, state="uncached"),
)


@pytest.mark.parametrize("part", FIELDS)
def test_agreed_fields(part):
    """A probe's JSON has the fields that were agreed on, each part those of its own."""
    found = json.loads(PROBE.to_json())
    assert FIELDS[part] <= set(found[part] if part else found)


def test_one_line_and_back():
    """A probe is one line of JSON, and what is read back is equal."""
    assert len(PROBE.to_json().splitlines()) == 1
    assert TierProbe.from_json(PROBE.to_json()) == PROBE


def test_unknown_is_null():
    """Figures that a probe does not give are null in JSON, not 0."""
    found = json.loads(TierProbe.of(probe="memory.latency").to_json())
    for name in ("bandwidth_Bps", "sustained_Bps", "iops", "latency_s", "io_bytes", "cache"):
        assert found[name] is None
    assert found["job"]["direct"] is found["target"]["free_bytes"] is None


def test_spread():
    """The spread is the IQR over the median; unknown below four samples and for a median of 0."""
    assert PROBE.bandwidth_Bps.spread == pytest.approx(0.5)
    assert Summary(median=1.0, min=1.0, max=1.0, n=1).spread is None
    assert Summary(median=0.0, min=0.0, max=0.0, p25=0.0, p75=0.0, n=9).spread is None


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (TierProbe, {"probe": "x", "io_bytes": -1}),
        (TierProbe, {"probe": "x", "quality": {"status": "good"}}),
        (TierProbe, {"probe": "x", "cache": {"state": "warm"}}),
        (TierProbe, {"probe": "x", "start_skew_s": float("nan")}),
        (TierAnswer, {"path": "/x", "shared": "maybe"}),
        (TierAnswer, {}),
        (TierPlan, {"quick": True, "budget_s": -1.0, "memory_bytes": 0, "memory_s": 0.0}),
    ],
)
def test_wrong_values(kind, fields):
    """Records that cannot be are refused when they are made."""
    with pytest.raises(msgspec.ValidationError):
        kind.of(**fields)


def test_sums_of_a_plan():
    """A plan's bytes and seconds are those of its parts."""
    paths = [
        PlannedPath(path=n, name=n, why="", target=Target(), write_bytes=10, seconds=2.0)
        for n in "ab"
    ]
    plan = TierPlan.of(
        quick=True, budget_s=9.0, memory_bytes=5, memory_s=3.0, paths=paths, devices=("jax",)
    )
    assert plan.write_bytes == 20 and plan.seconds == pytest.approx(7.5)
    assert TierPlan.from_json(plan.to_json()) == plan


def test_table_by_name():
    """A row is found by its name; a name that is not there is a KeyError, as is promised."""
    row = Tier(name="home", kind="storage")
    table = TierTable.of(tiers=(row,), machine=machine(), quality=Quality())
    assert table.tier("home") == row
    with pytest.raises(KeyError):
        table.tier("scratch")


@pytest.mark.parametrize(
    ("requested", "device", "share"),
    [(100, 0, 1.0), (100, 25, 0.75), (100, 100, 0.0), (100, 140, 0.0), (0, 0, None)],
)
def test_cached_share(requested, device, share):
    """What did not come from a device came from the cache; read-ahead makes it no less than 0."""
    record = IoTime.of(
        wall_s=2.0,
        read_requested_bytes=requested,
        read_device_bytes=device,
        machine=machine(),
        quality=Quality(),
    )
    assert record.cached_share == share
    assert record.read_Bps == (requested / 2 if requested else None)


def test_uncounted_io():
    """Where the kernel does not count, shares and rates are not known either."""
    record = IoTime.of(wall_s=1.0, machine=machine(), quality=Quality(status="refused"))
    assert record.cached_share is record.read_Bps is None
    assert IoTime.from_json(record.to_json()) == record
