"""The picture of lanes: an axis for every duration, no label cut off."""

import re
from xml.etree import ElementTree

import pytest

from perfkit.records.timing import Span
from perfkit.render import svg


def picture(end_s):
    """The picture of one bar that ends at `end_s`."""
    return svg.lanes([Span(lane="host", kind="host", name="", start_s=0.0, end_s=end_s)], "title")


@pytest.mark.parametrize("digits", [1.0, 1.01, 2.9, 5.99, 6.0, 6.01, 9.999])
@pytest.mark.parametrize("power", range(-9, 5))
def test_axis_for_every_duration(digits, power):
    """Every duration has three to seven ticks with round labels in one unit."""
    labels = re.findall(
        r"border-left:1px solid\">([\d.]+) (\S+)</span>", picture(digits * 10**power)
    )
    assert 2 <= len(labels) <= 7
    assert len({unit for _, unit in labels}) == 1
    assert all(len(number) <= 6 for number, _ in labels)


def test_no_duration():
    """A run of no length at all still has a picture."""
    assert "<svg" in picture(0.0)


def test_short_bars_stay_visible():
    """A bar far shorter than the picture is drawn, inside it."""
    spans = [
        Span(lane="host", kind="host", name="", start_s=0.0, end_s=1.0),
        Span(lane="queue", kind="kernel", name="", start_s=1.0 - 1e-9, end_s=1.0),
    ]
    root = ElementTree.fromstring(f"<div>{svg.lanes(spans, '')}</div>")
    bars = root.findall(".//{http://www.w3.org/2000/svg}rect")
    assert all(float(b.get("x")) + float(b.get("width")) <= svg.WIDTH + 0.01 for b in bars)
    assert all(float(b.get("width")) >= svg.LEAST for b in bars)
