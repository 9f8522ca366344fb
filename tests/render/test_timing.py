"""The report of a Timing: what is said in which case, aligned, escaped, without script."""

import re
from xml.etree import ElementTree

import pytest

from perfkit import machine
from perfkit.records.base import Quality
from perfkit.records.timing import Sample, Span, Timing, Transfer
from perfkit.render import timing as view

DEVICE = Sample(
    naive_s=2e-4, wall_s=0.2, host_s=2e-4, device_s=0.199, device_busy_s=0.198, launches=1
)
HOST = Sample(naive_s=3e-6, wall_s=3e-6, host_s=3e-6)
SPANS = (
    Span(lane="host", kind="host", name="body", start_s=0.0, end_s=0.05),
    Span(lane="host", kind="drain", name="drains", start_s=0.05, end_s=0.2),
    Span(lane="queue <0>", kind="kernel", name="spin & co", start_s=0.001, end_s=0.2),
)


def timing(sample=DEVICE, **fields):
    """A Timing of one sample."""
    device = sample is DEVICE
    defaults = {
        "label": "%%gpu_time",
        "repeat": 1,
        "budget_s": 2.0,
        "first": sample,
        "samples": (sample,),
        "backends": ("opencl",) if device else ("host",),
        "spans": SPANS if device else (),
        "machine": machine(),
        "quality": Quality(),
    }
    return Timing.of(**defaults | fields)


def test_device_report():
    """Names left, values right, notes left; a sentence says who sets the pace."""
    assert view.text(timing()) == (
        "%%gpu_time: 200 ms wall time, first call\n"
        "  wall     200 ms  from the start of the body until the device was empty\n"
        "  naive    200 µs  what a stopwatch around the body says\n"
        "  host     200 µs  no waiting inside, 1 launch\n"
        "  device   199 ms  first start to last end of its work\n"
        "  busy     198 ms  99 % of the wall time\n"
        "  idle    1.00 ms  device waits between pieces of work\n"
        "  device-bound: the device was busy 99 % of the wall time; the host needed 200 µs"
    )


def test_host_report():
    """Without device work the device's row says n/a and why, never 0."""
    text = view.text(timing(HOST))
    assert re.search(r"device +n/a  nothing was given to a device", text)
    assert "synchronous" in text
    assert "idle" not in text


def test_unknown_device_time():
    """Device figures that are not known are n/a, with the reason, and there is no verdict."""
    sample = Sample(naive_s=1.0, wall_s=1.0, host_s=1.0, launches=1)
    quality = Quality(status="suspect", reasons=("no device time: no profiling",))
    text = view.text(timing(sample, backends=("opencl",), quality=quality))
    assert "n/a" in text
    assert "idle" not in text
    assert "suspect, no device time: no profiling" in text
    assert "no verdict" in text


def test_repeats_show_quartiles_and_first_call():
    """Several samples show their quartiles, and the first call in a row of its own."""
    samples = tuple(Sample(naive_s=s, wall_s=s, host_s=s) for s in (1e-3, 2e-3, 3e-3, 4e-3))
    text = view.text(timing(HOST, repeat=4, samples=samples, number=7))
    assert "median of 4 samples of 7 runs each" in text
    assert "quartiles 1.75 ms to 3.25 ms, fastest 1.00 ms" in text
    assert "first call  3.00 µs  kept apart" in text


def test_lie_is_struck_through():
    """An unsynchronised headline is struck through, and what was still running is named."""
    lie = timing(Sample(naive_s=2e-4), synchronized=False, pending=1)
    assert "<s>200 µs</s> on a stopwatch that waits for nobody" in view.html(lie)
    assert "1 command had not ended" in view.text(lie)
    assert "wall" not in view.text(lie)


def test_partial_report():
    """A body that raised in its first call still shows how far it came."""
    text = view.text(timing(HOST, samples=(), stopped="an error or an interrupt in the first call"))
    assert text.startswith("%%gpu_time: no complete run: an error or an interrupt")


def test_transfers_have_bytes_and_bandwidth():
    """Copies show count, capacity in binary and bandwidth in decimal units."""
    copies = (Transfer(direction="h2d", count=2, nbytes=2**27, seconds=0.01),)
    assert "2 copies, 128 MiB, 13.4 GB/s" in view.text(timing(transfers=copies))


@pytest.mark.parametrize("record", [timing(), timing(HOST), timing(label="<script>x</script>")])
def test_html_is_safe(record):
    """The HTML is well-formed, escaped, and has neither script nor anything from elsewhere."""
    html = view.html(record)
    ElementTree.fromstring(html)
    assert "<script" not in html
    assert "src=" not in html


def test_picture_has_lanes_axis_and_legend():
    """The picture names its lanes and kinds and has a time axis with units."""
    words = "".join(ElementTree.fromstring(view.html(timing())).itertext())
    assert all(word in words for word in ("host", "queue <0>", "50 ms", "kernel"))


def test_svg_has_no_words():
    """A notebook that is not trusted drops the tags of SVG and keeps its words: there are none."""
    root = ElementTree.fromstring(view.html(timing()))
    pictures = root.findall(".//{http://www.w3.org/2000/svg}svg")
    assert len(pictures) == 2
    assert not any("".join(picture.itertext()).strip() for picture in pictures)


def test_no_picture_without_a_device():
    """A cell that stayed on the host has no picture."""
    assert "<svg" not in view.html(timing(HOST))


def test_stable_mode_masks(monkeypatch):
    """PERFKIT_OUTPUT=stable gives the same text for other times."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    slower = Sample(
        naive_s=4e-4, wall_s=0.9, host_s=2e-4, device_s=0.8, device_busy_s=0.1, launches=1
    )
    other = timing(slower, backends=("opencl",), spans=SPANS)
    assert view.bundle(timing()) == view.bundle(other)
    assert not re.search(r"\d", view.text(timing()))


def test_summary_json():
    """The JSON for front ends has the derived figures and no samples."""
    summary = view.bundle(timing())[view.MIME]
    assert summary["wall_s"] == 0.2
    assert summary["verdict"] == "device"
    assert "samples" not in summary
