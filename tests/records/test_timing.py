"""What a Timing derives from its samples: medians, verdicts, the samples that count."""

import msgspec
import pytest

from perfkit import machine
from perfkit.records.base import Quality, Record
from perfkit.records.timing import THRESHOLDS, Sample, Timing, Transfer


def timing(*samples, **fields):
    """A Timing of these samples."""
    defaults = {
        "repeat": len(samples) or 1,
        "budget_s": 2.0,
        "first": Sample(naive_s=1.0, wall_s=1.0),
        "samples": samples,
        "machine": machine(),
        "quality": Quality(),
    }
    return Timing.of(**defaults | fields)


def device_sample(busy, *, host_s=0.1, launches=1):
    """One second of wall time in which the device was busy for `busy` seconds."""
    return Sample(
        naive_s=1.0,
        wall_s=1.0,
        host_s=host_s,
        device_s=1.0,
        device_busy_s=busy,
        launches=launches,
    )


def copied(seconds, direction="h2d"):
    """Copies that took so long."""
    return (Transfer(direction=direction, count=1, nbytes=100, seconds=seconds),)


def test_medians():
    """Each figure is the median over the samples; the first call is not among them."""
    record = timing(*(Sample(naive_s=s, wall_s=2 * s) for s in (3.0, 1.0, 2.0)))
    assert (record.naive_s, record.wall_s, record.first_s) == (2.0, 4.0, 1.0)


def test_unknown_in_one_sample_is_unknown():
    """A figure that one sample could not know is None, not the median of the rest."""
    record = timing(Sample(naive_s=1.0, device_s=1.0), Sample(naive_s=1.0))
    assert record.device_s is None
    assert record.idle_s is None


def test_idle_is_the_rest():
    """Idle time is the device's span less its busy time."""
    assert timing(device_sample(0.25), backends=("opencl",)).idle_s == 0.75


@pytest.mark.parametrize(
    ("sample", "fields", "verdict"),
    [
        (Sample(naive_s=1.0, wall_s=1.0), {"backends": ("host",)}, "synchronous"),
        (device_sample(0.9), {}, "device"),
        (device_sample(0.9), {"transfers": copied(0.5)}, "transfer"),
        (device_sample(0.9), {"transfers": copied(0.4)}, "device"),
        (device_sample(0.9), {"transfers": copied(0.8, "d2d")}, "device"),
        (device_sample(0.1, host_s=0.01, launches=500), {}, "launch"),
        (device_sample(0.1, host_s=0.9, launches=500), {}, "host"),
        (device_sample(0.1, host_s=1e-4, launches=5), {}, "host"),
        (device_sample(0.5), {}, None),
        (device_sample(0.9), {"synchronized": False}, None),
        (Sample(naive_s=1.0, wall_s=1.0, launches=1), {}, None),
    ],
)
def test_verdicts(sample, fields, verdict):
    """Each verdict follows from the thresholds."""
    assert timing(sample, **{"backends": ("opencl",)} | fields).verdict == verdict


def test_thresholds_leave_a_gap():
    """Between busy and idle there is no verdict."""
    assert THRESHOLDS.device_idle < THRESHOLDS.device_busy


def test_clean_samples_are_used():
    """Where enough samples of one thread are clean, the disturbed ones do not count."""
    clean = [Sample(naive_s=1.0, wall_s=1.0, wait_s=0.0)] * 12
    late = [Sample(naive_s=9.0, wall_s=9.0, wait_s=8.0)] * 20
    assert timing(*clean, *late, single_thread=True).wall_s == 1.0
    assert timing(*clean, *late).wall_s == 9.0
    assert timing(*clean[:3], *late, single_thread=True).wall_s == 9.0


def test_trimmed_samples_do_not_count():
    """Samples that belong to the warm-up stay in the record and out of the medians."""
    slow, fast = Sample(naive_s=9.0, wall_s=9.0), Sample(naive_s=1.0, wall_s=1.0)
    record = timing(*[slow] * 5, *[fast] * 4, trimmed=5)
    assert record.wall_s == 1.0
    assert len(record.samples) == 9


def test_json_round_trip():
    """A record comes back equal from its JSON, which names its type and schema."""
    record = timing(device_sample(0.5), transfers=copied(0.5))
    assert Timing.from_json(record.to_json()) == record
    assert msgspec.json.decode(record.to_json())["record"] == "Timing"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "1"])
def test_impossible_numbers_are_refused(value):
    """NaN, infinity, negative seconds and text never get into a record."""
    with pytest.raises(msgspec.ValidationError):
        timing(budget_s=value)


def test_records_do_not_change():
    """A record is frozen."""
    with pytest.raises(AttributeError):
        timing().label = "other"


def test_other_records_are_refused():
    """The JSON of one type of record is not read as another."""
    with pytest.raises(msgspec.ValidationError):
        Timing.from_json(machine().to_json())


def test_every_record_says_its_schema():
    """Each type of record carries a schema version."""
    assert all(kind.SCHEMA >= 1 for kind in Record.__subclasses__())
