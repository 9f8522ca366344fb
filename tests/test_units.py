"""Numbers to text: three digits, the right unit, and n/a for what is not known."""

import random

import pytest

from perfkit import units

FORMATS = [units.seconds, units.bandwidth, units.capacity, units.share, units.ratio]


@pytest.mark.parametrize("show", FORMATS, ids=lambda show: show.__name__)
def test_unknown_is_not_zero(show):
    """What is not known is n/a, and zero is not."""
    assert show(None) == units.NOT_AVAILABLE == "n/a"
    assert show(0).startswith("0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (1.5, "1.50 s"),
        (12.34, "12.3 s"),
        (123.4, "123 s"),
        (12345.6, "12,346 s"),
        (0.1, "100 ms"),
        (0.0123, "12.3 ms"),
        (1e-6, "1.00 µs"),
        (35e-9, "35.0 ns"),
        (0.9996, "1.00 s"),
        (999.6e-6, "1.00 ms"),
        (99.96e-6, "100 µs"),
        (9.996e-6, "10.0 µs"),
        (-0.0123, "-12.3 ms"),
    ],
)
def test_seconds(value, text):
    """A duration has three digits and the unit that fits."""
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.4e9, "12.4 GB/s"),
        (1e9, "1.00 GB/s"),
        (2**30, "1.07 GB/s"),
        (3.35e12, "3.35 TB/s"),
        (470e6, "470 MB/s"),
        (512e3, "512 kB/s"),
        (17, "17.0 B/s"),
        (999.6e6, "1.00 GB/s"),
    ],
)
def test_bandwidth_is_decimal(value, text):
    """1 GB/s is 1e9 bytes a second."""
    assert units.bandwidth(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (2**30, "1.00 GiB"),
        (64 * 2**20, "64.0 MiB"),
        (1000, "1,000 B"),
        (1e9, "954 MiB"),
        (1.5 * 2**40, "1.50 TiB"),
        (2**20 - 1, "1.00 MiB"),
    ],
)
def test_capacity_is_binary(value, text):
    """1 GiB is 2**30 bytes."""
    assert units.capacity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (0.973, "97 %"), (0.0123, "1.2 %"), (1, "100 %"), (2.5, "250 %"), (0.1, "10 %")],
)
def test_share(value, text):
    """A part of one is percent, with a decimal only below ten."""
    assert units.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.14159, "3.14 x"), (12.5, "12.5 x"), (1234.4, "1,234 x"), (1, "1.00 x")]
)
def test_ratio(value, text):
    """A factor is followed by x."""
    assert units.ratio(value) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "launch", "1 launch"),
        (500, "launch", "500 launches"),
        (0, "sample", "0 samples"),
        (1234567, "run", "1,234,567 runs"),
        (2, "pass", "2 passes"),
        (2, "box", "2 boxes"),
        (3, "copy", "3 copies"),
    ],
)
def test_count(number, noun, text):
    """A number comes with its noun in the right form."""
    assert units.count(number, noun) == text


def test_seconds_lose_no_digits():
    """What is shown is within half a percent of the value, whatever its size."""
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    rng = random.Random(1)
    for _ in range(2000):
        value = 10 ** rng.uniform(-8.9, 5)
        number, unit = units.seconds(value).split()
        assert float(number.replace(",", "")) * scale[unit] == pytest.approx(value, rel=0.0051)
        assert unit == "s" or float(number) < 1000


def test_small_share_is_not_zero():
    """A share that is not zero is never shown as zero."""
    number, _, _ = units.share(0.0004).partition(" ")
    assert float(number.strip("<")) > 0


def test_share_near_ten():
    """Just below ten percent there are never three digits and a decimal."""
    assert units.share(0.0999) == units.share(0.1) == "10 %"
