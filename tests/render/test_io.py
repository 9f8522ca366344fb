"""The report of an IoTime: the plain sentence, honest blanks, stable masks."""

import re

import pytest

from perfkit import machine
from perfkit.records.base import Quality
from perfkit.records.tiers import IoTime
from perfkit.render import io as view

MIB = 2**20
EVIL = "<script>alert(1)</script>&"


def report(state="page cache", requested=100 * MIB, device=3 * MIB, **fields):
    """An IoTime of a body that read."""
    defaults = {
        "label": "%%io_time",
        "wall_s": 0.1,
        "read_requested_bytes": requested,
        "read_device_bytes": device,
        "write_requested_bytes": 0,
        "write_device_bytes": 0,
        "read_calls": 100,
        "write_calls": 0,
        "mapped_read_bytes": 0,
        "major_faults": 0,
        "state": state,
        "machine": machine(),
        "quality": Quality(),
    }
    return IoTime.of(**defaults | fields)


REFUSED = IoTime.of(
    label="%%io_time",
    wall_s=0.1,
    machine=machine(),
    quality=Quality(status="refused", reasons=("the kernel does not count",)),
)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (report(), "97 % of these bytes came from memory: this is not your disk"),
        (report(device=0), "100 % of these bytes came from memory: this is not your disk"),
        (report("device", device=100 * MIB), "these bytes came from a device"),
        (
            report("mixed", device=40 * MIB),
            "60 % of these bytes came from memory, the rest from a device: this speed is neither's",
        ),
        (report("none", 0, 0), "it read and wrote next to nothing"),
        (
            report("none", 0, 0, write_requested_bytes=MIB),
            "it wrote, and read next to nothing",
        ),
        (report("unknown"), "where these bytes came from is not known"),
        (REFUSED, "what it read and wrote cannot be told here"),
    ],
)
def test_sentence(record, sentence):
    """Each case has its plain sentence, which heads the text and the HTML."""
    assert view.sentence(record) == sentence
    assert view.text(record).splitlines()[0] == f"%%io_time: {sentence}"
    assert sentence.replace("'", "&#x27;") in view.html(record)


def test_rows_align():
    """Names start and values end in one place."""
    rows = view.text(report(mapped_read_bytes=MIB, major_faults=7)).splitlines()[1:]
    rows = [line for line in rows if re.match(r"  \w", line)]
    ends = {re.match(r"  .*?  +[\d.,]+ ?[\w/µ]*(?=  )", line).end() for line in rows}
    assert len(rows) >= 6 and len(ends) == 1


def test_read_figures():
    """Requested, device and rate are what was counted, with the number of calls."""
    text = view.text(report())
    assert re.search(r"read +100 MiB +asked for, in 100 calls", text)
    assert re.search(r"from device +3\.00 MiB", text) and "1.05 GB/s" in text


def test_writes():
    """Written bytes have rows, and the hint that only fsync brings them to the device."""
    text = view.text(report(write_requested_bytes=8 * MIB, write_device_bytes=8 * MIB))
    assert re.search(r"written +8\.00 MiB", text) and "os.fsync" in text
    assert "fsync" not in view.text(report())


def test_uncounted_is_not_zero():
    """Where the kernel does not count, figures are n/a with the reason: no 0 B and no 0 calls."""
    text = view.text(REFUSED)
    assert "n/a" in text and "refused, the kernel does not count" in text
    assert "0 call" not in text and "0 B" not in text


def test_doubt_and_partial():
    """Reasons and a stop are said below the figures."""
    quality = Quality(status="suspect", reasons=("stopped by an interrupt",))
    record = report(stopped="an interrupt", quality=quality)
    assert "suspect, stopped by an interrupt" in view.text(record)
    assert "suspect, stopped by an interrupt" in view.html(record)


def test_html_is_escaped():
    """Label, notes and reasons are text, whatever they contain."""
    quality = Quality(status="suspect", reasons=(EVIL,))
    html = view.html(report(label=EVIL, notes=(EVIL,), quality=quality))
    assert "<script" not in html and html.count("&lt;script&gt;") == 3


def test_stable(monkeypatch):
    """In stable mode two runs of one body have equal views, without figures and sentence."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    quiet = report(write_requested_bytes=MIB, write_device_bytes=MIB)
    other = report(
        requested=101 * MIB,
        device=0,
        wall_s=7.0,
        write_requested_bytes=MIB + 5,
        read_calls=3,
        mapped_read_bytes=4096,
        major_faults=3,
        quality=Quality(status="suspect", reasons=("x",)),
    )
    assert view.bundle(quiet) == view.bundle(other)
    assert "MiB" not in view.text(quiet) and "memory" not in view.text(quiet)


def test_bundle():
    """The views are text, HTML and a summary with the state."""
    found = view.bundle(report())
    assert set(found) == {"text/plain", "text/html", view.MIME}
    assert found[view.MIME]["state"] == "page cache"
    assert found[view.MIME]["read_requested_bytes"] == 100 * MIB
