"""GPU cells without a GPU: nothing is invented, and what others recorded says so."""

import sys

import pytest

from perfkit import time_call
from perfkit.errors import PerfkitError
from perfkit.lessons import recorded
from perfkit.records.lesson import Recorded
from perfkit.records.timing import Timing
from perfkit.render.lesson import bundle


@pytest.mark.parametrize("key", recorded.CELLS)
def test_cell_without_a_gpu(key, monkeypatch):
    """Without a GPU and without a record the cell says that there is nothing."""
    monkeypatch.setattr(recorded, "_read", list)
    shown = recorded.on_gpu(key)
    if isinstance(shown, Timing):
        assert shown.backends == ("cupy",)
    else:
        assert shown == Recorded.of(key=key)
        assert "nobody has recorded" in bundle(shown)["text/plain"]


def test_recorded_is_not_yours():
    """Figures of another machine are shown under its name."""
    timing = time_call(lambda: None)
    record = Recorded.of(key="31.product", device="NAME", at="2026-01-01", timing=timing)
    assert Recorded.from_json(record.to_json()) == record
    views = bundle(record)
    assert views["text/plain"].startswith("recorded on NAME, 2026-01-01: not yours\n")
    assert "not yours" in views["text/html"]


def test_record_all_says_why_not(monkeypatch):
    """Recording without CuPy is refused in one line."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(PerfkitError) as caught:
        recorded.record_all()
    assert "\n" not in str(caught.value)
