"""The picture of a trace: few bars, which together last as long as the work does."""

import numpy as np
import pytest
from timeline.planted import planted

from perfkit.intervals import merged
from perfkit.timeline.columns import Columns, Event, Lane
from perfkit.timeline.picture import lane_order, picture_of

STREAM, OTHER, MAIN = Lane("GPU 0", "stream 7"), Lane("GPU 0", "stream 13"), Lane("", "thread 1")
US = 1000


def by_lane(columns, **limits):
    """Bars by the name of their lane."""
    return {picture.lane: picture.bars for picture in picture_of(columns, **limits)}


def lasting_s(bars):
    """How long all bars last together."""
    return sum(end - start for start, end, _, _ in bars)


def test_long_bars_are_exact():
    """Where bars are longer than a cell they are what they were, names and kinds included."""
    events = [
        Event(0, 400 * US, STREAM, "kernel", "gemm"),
        Event(400 * US, 700 * US, STREAM, "h2d", "copy"),
        Event(900 * US, 1000 * US, STREAM, "kernel", "gemm"),
    ]
    assert by_lane(Columns.of(events))["stream 7"] == (
        (0.0, pytest.approx(400e-6), "kernel", "gemm"),
        (pytest.approx(400e-6), pytest.approx(700e-6), "h2d", "copy"),
        (pytest.approx(900e-6), pytest.approx(1e-3), "kernel", "gemm"),
    )


@pytest.mark.parametrize("part", [0.01, 0.3, 0.9])
def test_a_crowd_does_not_look_busy(part):
    """Ten thousand kernels that work a part of the time do so in the picture as well."""
    events = [Event(at, at + int(part * US), STREAM, "kernel", "k") for at in range(0, 10**7, US)]
    bars = by_lane(Columns.of(events))["stream 7"]
    assert len(bars) <= 400
    assert lasting_s(bars) == pytest.approx(part * 1e-2, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_bars_last_as_long_as_the_work(seed):
    """On each lane of a device the bars do not overlap, and last as long as its union."""
    columns = planted("host late", "blocking copy", "launch gap", seed=seed).columns
    for picture in picture_of(columns, bars_most=50):
        assert len(picture.bars) <= 50
        ends = [end for _, end, _, _ in picture.bars]
        starts = [start for start, _, _, _ in picture.bars]
        assert all(a <= b + 1e-12 for a, b in zip(ends, starts[1:], strict=False))
        if picture.device:
            lane = columns.of_lanes(
                one == (picture.device, picture.lane) for one in columns.lanes
            ) & columns.on_device(picture.device)
            begin_ns, end_ns = merged(columns.start_ns[lane], columns.end_ns[lane])
            assert lasting_s(picture.bars) == pytest.approx(1e-9 * (end_ns - begin_ns).sum())


def test_the_kind_of_most_of_a_cell():
    """A cell with several kinds takes the one that lasts longest in it, and its longest name."""
    events = [
        Event(0, 2 * US, STREAM, "h2d", "copy"),
        *(Event(at * US, at * US + 900, STREAM, "kernel", "small") for at in range(2, 6)),
        Event(6 * US, 7 * US, STREAM, "kernel", "larger"),
        Event(9_999 * US, 10_000 * US, STREAM, "kernel", "last"),
    ]
    first = by_lane(Columns.of(events))["stream 7"][0]
    assert first == (0.0, pytest.approx(6.6e-6), "kernel", "larger")


def test_a_thread_shows_what_is_innermost():
    """Where an operator holds a call that holds a wait, the wait is drawn."""
    events = [
        Event(0, 1000 * US, MAIN, "op", "aten::item"),
        Event(200 * US, 900 * US, MAIN, "runtime", "memcpy"),
        Event(300 * US, 800 * US, MAIN, "wait", "sync"),
    ]
    kinds = [bar[2] for bar in by_lane(Columns.of(events))["thread 1"]]
    assert kinds == ["op", "runtime", "wait", "runtime", "op"]


def test_names_return_after_what_they_hold():
    """Behind an inner interval the bar has the outer one's name again."""
    events = [
        Event(0, 1000 * US, MAIN, "python", "outer"),
        Event(300 * US, 600 * US, MAIN, "python", "inner"),
    ]
    assert [bar[3] for bar in by_lane(Columns.of(events))["thread 1"]] == [
        "outer",
        "inner",
        "outer",
    ]


def test_steps_and_annotations_have_rows():
    """Rows come in order: devices, steps, annotations, threads; steps keep their borders."""
    events = [
        Event(0, 300 * US, STREAM, "kernel", "k"),
        *(Event(at * US, (at + 90) * US, MAIN, "step", f"step#{at}") for at in (0, 100, 200)),
        Event(0, 50 * US, MAIN, "annotation", "forward"),
        Event(0, 50 * US, MAIN, "op", "aten::mm"),
        Event(0, 300 * US, STREAM, "device_mark", "Stream Wait Event"),
    ]
    pictures = picture_of(Columns.of(events))
    assert [picture.lane for picture in pictures] == [
        "stream 7",
        "steps",
        "annotations",
        "thread 1",
    ]
    assert [bar[3] for bar in pictures[1].bars] == ["step#0", "step#100", "step#200"]
    assert {bar[2] for bar in pictures[0].bars} == {"kernel"}


def test_lanes_are_chosen():
    """Of too many lanes each device keeps its busiest, and one thread stays."""
    events = [
        Event(0, (1 + stream) * US, Lane(f"GPU {device}", f"stream {stream}"), "kernel", "k")
        for device in range(4)
        for stream in range(4)
    ]
    events += [Event(0, 9 * US, Lane("", f"thread {n}"), "op", "x") for n in range(5)]
    pictures = picture_of(Columns.of(events), lanes_most=6)
    assert [(p.device, p.lane) for p in pictures[:-1]] == [
        ("GPU 0", "stream 2"),
        *((f"GPU {device}", "stream 3") for device in range(4)),
    ]
    assert pictures[-1].lane == "thread 0"


def test_order_of_lanes():
    """Streams count as people do; of the threads those that launch come before the busier."""
    events = [
        Event(0, 1, OTHER, "kernel", "k"),
        Event(0, 1, STREAM, "kernel", "k"),
        Event(0, 100, Lane("", "thread 8"), "op", "busy"),
        Event(0, 2, MAIN, "runtime", "launch", link=1),
    ]
    columns = Columns.of(events)
    ordered = [columns.lanes[code].name for code in lane_order(columns)]
    assert ordered == ["stream 7", "stream 13", "thread 1", "thread 8"]


def test_long_names_are_cut():
    """A name of 100 kB does not stand in the record for every bar."""
    bars = by_lane(Columns.of([Event(0, 9, STREAM, "kernel", "x" * 100_000)]))["stream 7"]
    assert len(bars[0][3]) == 80


def test_nothing_to_draw():
    """Without intervals there is no picture; an instant alone has a lane without bars."""
    assert picture_of(Columns.of([])) == ()
    assert by_lane(Columns.of([Event(5, 5, STREAM, "kernel", "k")])) == {"stream 7": ()}


def test_many_kinds_of_lanes():
    """With more lanes than sixteen bits hold, all is drawn the same."""
    lanes = [Lane("", f"thread {n}") for n in range(4000)]
    events = [Event(n, n + 10, lane, "op", "x") for n, lane in enumerate(lanes)]
    assert len(picture_of(Columns.of(events), lanes_most=5)) == 5
    assert np.iinfo(np.int16).max < 4000 * 16
