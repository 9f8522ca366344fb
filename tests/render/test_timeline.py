"""The report of a timeline: a verdict first, nothing that misleads, safe whatever the names are."""

import json
import re
from xml.etree import ElementTree

import pytest

from perfkit.records.base import Quality
from perfkit.records.timeline import (
    CAUSES,
    CauseShare,
    Compile,
    Copies,
    DeviceTimeline,
    Difference,
    Gap,
    Kernel,
    Launches,
    Operator,
    Picture,
    Step,
    TimelineReport,
)
from perfkit.render import grid
from perfkit.render import timeline as view
from perfkit.render import timeline_picture as picture
from perfkit.render.theme import COLOURS
from perfkit.timeline.columns import KINDS, Columns, Event, Lane

EVIL = '<script>alert("x")</script>\n\x1b[31m`' + "y" * 100_000
SVG = "{http://www.w3.org/2000/svg}svg"
KERNEL = "void ns::gemm<float, 4, ns::Array<char*, 3> >(int, float const*, ns::Array<char*, 3>)"


def gap(start_s=0.3, duration_s=0.4, **fields):
    """A gap of a device."""
    defaults = {"cause": "blocking copy", "host": "log_step", "share": 0.5, "step": 4}
    beside = {"before": "gemm", "after": "relu"}
    return Gap(start_s=start_s, duration_s=duration_s, **(defaults | beside | fields))


def device(name="GPU 0", busy_s=0.3, **fields):
    """A device over one second."""
    idle_s = 1.0 - busy_s
    defaults = {
        "start_s": 0.0, "span_s": 1.0, "busy_s": busy_s, "idle_s": idle_s, "compute_s": busy_s,
        "non_compute_s": 0.0, "copy_s": 0.0, "collective_s": 0.0, "hidden_s": 0.0,
        "duty_cycle": busy_s, "intervals": 7, "lanes": ("stream 7",), "gap_count": 9,
        "gaps": (gap(),),
        "causes": (
            CauseShare(cause="blocking copy", host="log_step", idle_s=0.4, count=3, share=0.58),
            CauseShare(cause="launch gap", idle_s=0.3, count=6, share=0.42),
        ),
    }  # fmt: skip
    return DeviceTimeline(name=name, **(defaults | fields))


def report(**fields):
    """The report of one device."""
    bars = ((0.0, 0.3, "kernel", "gemm"), (0.7, 1.0, "h2d", "copy"))
    defaults = {
        "label": "trace.json", "source": "Chrome JSON", "events": 12, "span_s": 1.0,
        "devices": (device(),), "quality": Quality(),
        "picture": (Picture(device="GPU 0", lane="stream 7", bars=bars),),
    }  # fmt: skip
    return TimelineReport.of(**(defaults | fields))


def host(**fields):
    """The host's operators, where there is no device."""
    return device(name="operators, thread 1", lanes=("thread 1",), busy_s=0.81, **fields)


def steps(count, slow=()):
    """Steps of a tenth of a second; the slow ones take five times as long."""
    return tuple(
        Step(
            name=f"ProfilerStep#{number}",
            number=number,
            start_s=0.1 * number,
            duration_s=0.5 if number in slow else 0.1,
            busy_s=0.05,
            duty_cycle=0.5,
            outlier=number in slow,
        )
        for number in range(count)
    )


FULL = {
    "steps": steps(3),
    "kernels": (Kernel(name=KERNEL, device="GPU 0", kind="kernel", count=4, total_s=1, share=0.5),),
    "compiles": (Compile(name="forward", count=2, total_s=0.5, shapes=("f32[8]", "f32[16]")),),
    "copies": (
        Copies(direction="d2h", device="GPU 0", count=3, nbytes=2**20, seconds=0.01, blocking=2),
    ),
    "differences": (
        Difference(what="median step", here=0.2, there=0.1),
        Difference(what="duty cycle", here=0.3, there=0.9, unit="share"),
        Difference(what="programs compiled", here=2, there=0, unit="count"),
    ),
    "against": "other.json",
    "devices": (device(launches=Launches(count=5, latency_median_s=2e-5, depth_max=3)),),
    "notes": ("2 events left out",),
}


# -- the verdict -----------------------------------------------------------------------------------


def test_verdict_names_cause_and_host():
    """The first line says how busy, for whom the device waited, and what that means."""
    first = view.text(report()).partition("\n")[0]
    assert first == (
        "trace.json: GPU 0 was busy 30 % of 1.00 s; 58 % of the idle time is `log_step`: "
        "the host had waited for a result, so nothing was queued behind it"
    )


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("name", ["log_step", ""])
def test_every_cause_is_a_sentence(cause, name):
    """Each cause reads as a sentence, with what the host was in and without."""
    only = CauseShare(cause=cause, host=name, idle_s=0.7, count=1, share=1.0)
    said = view.sentence(report(devices=(device(causes=(only,)),))).partition("; ")[2]
    assert re.match(r"(for )?100 % of the idle time ", said)
    assert ("`log_step`" in said) == bool(name)
    assert re.search(r"the (host|next work|trace) ", said)


def test_no_idle_time():
    """A device that was busy all the time has no cause looked for."""
    assert view.sentence(report(devices=(device(busy_s=0.97),))) == (
        "GPU 0 was busy 97 % of 1.00 s: no idle time to speak of"
    )


def test_unknown_causes():
    """Idle time whose causes are not known is not talked away."""
    said = view.sentence(report(devices=(device(causes=()),)))
    assert said == "GPU 0 was busy 30 % of 1.00 s"


def test_many_small_causes():
    """Where no cause stands out, none is blamed."""
    causes = tuple(
        CauseShare(cause=cause, idle_s=0.1, count=1, share=share)
        for cause, share in zip(CAUSES, (0.2, 0.2, 0.15, 0.15, 0.1, 0.1, 0.1), strict=True)
    )
    said = view.sentence(report(devices=(device(causes=causes),)))
    assert "no one cause: host late 20 %, waiting on a stream 20 %" in said


def test_host_is_named_only_for_most_of_it():
    """What the host was in is named only if it stands for at least half of the cause."""
    causes = tuple(
        CauseShare(cause="host late", host=f"f{n}", idle_s=0.1, count=1, share=0.2)
        for n in range(5)
    )
    said = view.sentence(report(devices=(device(causes=causes),)))
    assert said.endswith("for 100 % of the idle time the host had not launched the next work yet")


def test_idlest_device_first():
    """Several devices have a line each, the idlest first; many are summed up."""
    devices = tuple(device(f"GPU {n}", busy_s=0.9 - 0.05 * n) for n in range(10))
    lines = view.sentence(report(devices=devices)).split("\n")
    assert lines[0].startswith("GPU 9 was busy 45 %")
    assert lines[-1] == "2 more devices were busy 85 % to 90 %"


@pytest.mark.parametrize("seen", [host(), None])
def test_no_device_is_never_zero(seen):
    """Without device events this is said, and what the host shows; nothing is 0 %."""
    text = view.text(report(devices=(), host=seen, picture=()))
    assert "this trace has no device events" in text
    assert ("operators took 81 % of 1.00 s on thread 1" in text) == (seen is not None)
    assert "duty cycle" not in text
    assert not re.search(r"\b0 %", text)


def test_gaps_of_the_host_blame_nobody():
    """The host's stretches without an operator are listed without a cause: nothing waited."""
    text = view.text(report(devices=(), host=host(), picture=()))
    assert "largest stretches without an operator, 1 of 9" in text
    assert "blocking copy" not in text


def test_recording_that_ended_early():
    """What stopped the recording stands before the figures."""
    said = view.sentence(report(stopped="an error or an interrupt"))
    assert said.startswith("stopped by an error or an interrupt; until then GPU 0 was busy")


# -- the tables ------------------------------------------------------------------------------------


def test_all_sections():
    """Everything that the record has is in the text, with units."""
    text = view.text(report(**FULL))
    for words in (
        r"GPU 0 +1\.00 s +300 ms +700 ms +300 ms",
        r"blocking copy +log_step +400 ms +3 +58 %",
        r"1 +0\.300 s +400 ms +blocking copy +log_step +4 +gemm → relu",
        r"median step +200 ms +100 ms +2\.00 x",
        r"duty cycle +30 % +90 % +-60\.0 points",
        r"programs compiled +2 +0 +new",
        r"forward +2 +500 ms +f32\[8\]; f32\[16\]",
        r"to host +3 +1\.00 MiB +10\.0 ms +105 MB/s +2",
        r"GPU 0 +5 +20\.0 µs +n/a +n/a +3",
        r"gemm<float, 4, Array<char\*, 3> > +kernel +4 +1\.00 s +250 ms +50 %",
        "note: 2 events left out",
        "busy is not useful",
    ):
        assert re.search(words, text), words


def test_nothing_empty_is_shown():
    """A section that has nothing to say is left out."""
    text = view.text(report(devices=(device(gaps=(), causes=(), gap_count=0),)))
    for word in ("gaps", "cause", "steps", "copies:", "launches", "compiled", "changed", "note"):
        assert word not in text


def test_operators_only_without_a_device():
    """Operators are listed where no device is; else work of the device is."""
    operators = (Operator(name="aten::mm", count=3, total_s=0.2, self_s=0.1),)
    assert "aten::mm" not in view.text(report(operators=operators))
    assert "aten::mm" in view.text(report(devices=(), host=host(), operators=operators))


def test_many_steps_are_summed_up():
    """Of many steps the median and the outliers are shown, and how many are left out."""
    text = view.text(report(steps=steps(300, slow=(17, 203))))
    assert re.search(r"median +100 ms", text)
    assert re.findall(r"^ +(\d+) .*outlier$", text, re.M) == ["17", "203"]
    assert "297 ordinary steps are left out" in text


def test_gaps_of_all_devices_by_length():
    """The longest gaps come first, whichever device they are on."""
    devices = (
        device("GPU 0", gaps=(gap(duration_s=0.1), gap(duration_s=0.02))),
        device("GPU 1", gaps=(gap(duration_s=0.3),)),
    )
    rows = re.findall(
        r"^ +\d+ +\S+ s +(\S+ ms) +(GPU \d)", view.text(report(devices=devices)), re.M
    )
    assert rows == [("300 ms", "GPU 1"), ("100 ms", "GPU 0"), ("20.0 ms", "GPU 0")]


def test_work_of_several_devices_is_added():
    """Work of one name on two devices is one row with its share of all work."""
    kernels = tuple(
        Kernel(name="gemm", device=f"GPU {n}", kind="kernel", count=2, total_s=0.1, share=0.5)
        for n in range(2)
    )
    text = view.text(report(devices=(device(), device("GPU 1")), kernels=kernels))
    assert re.search(r"gemm +kernel +4 +200 ms +50\.0 ms +50 %", text)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        (KERNEL, "gemm<float, 4, Array<char*, 3> >"),
        ("abcdefghij" * 9, "abcdefghijabcdefghijabc…efghijabcdefghij"),
        ("one\ntwo\x1b[0m", "one two␛[0m"),
        ("図" * 60, "図" * 11 + "…" + "図" * 8),
    ],
)
def test_names_are_cut_in_the_middle(name, shown):
    """Names that fit are whole; long ones keep both ends, and take no more than they may."""
    assert grid.shorten(name, 40) == shown
    assert grid.source.width(grid.shorten(name, 40)) <= 40


# -- HTML ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        report(),
        report(**FULL),
        report(devices=(), host=host(), picture=()),
        report(devices=(), picture=(), events=0, span_s=None),
        report(
            label=EVIL,
            source=EVIL,
            notes=(EVIL,),
            devices=(
                device(
                    EVIL,
                    gaps=(gap(host=EVIL, before=EVIL, after=EVIL),),
                    causes=(CauseShare(cause="unknown", host=EVIL, idle_s=1, count=1, share=1.0),),
                ),
            ),
            kernels=(
                Kernel(name=EVIL, device=EVIL, kind="kernel", count=1, total_s=1.0, share=1.0),
            ),
            picture=(Picture(device=EVIL, lane=EVIL, bars=((0.0, 1.0, "kernel", EVIL),)),),
            quality=Quality(status="suspect", reasons=(EVIL,)),
        ),
    ],
    ids=["plain", "full", "host", "nothing", "evil"],
)
def test_views_are_safe(record):
    """The HTML is well-formed, without script or anything from elsewhere, and of a sane length;
    no control character reaches a terminal.
    """
    html, text = view.html(record), view.text(record)
    ElementTree.fromstring(html)
    assert "<script" not in html
    assert "src=" not in html
    assert len(html) + len(text) < 60_000
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text + html)
    json.dumps(view.bundle(record))


def test_whole_names_are_in_the_tooltip():
    """A name that is cut has the whole of it as its title."""
    cells = ElementTree.fromstring(view.html(report(**FULL))).iter("td")
    assert KERNEL in [cell.get("title") for cell in cells]


def test_svg_has_no_words():
    """A notebook that is not trusted drops the tags of SVG and keeps its words: there are none."""
    root = ElementTree.fromstring(view.html(report()))
    pictures = root.findall(f".//{SVG}")
    assert len(pictures) == 1
    assert not "".join(pictures[0].itertext()).strip()
    assert pictures[0].get("aria-label") == "GPU 0, stream 7"


def test_picture_has_axis_legend_and_gaps():
    """Bars have the colour of their kind, the legend only kinds that occur, gaps their number."""
    html = picture.html(report())
    assert COLOURS["kernel"] in html
    words = "".join(ElementTree.fromstring(html).itertext())
    assert all(word in words for word in ("0.6 s", "kernel", "copy to the device", "idle"))
    assert "collective" not in words
    numbers = re.findall(r"width:([\d.]+)%;white-space:nowrap\">(\d*)</span>", html)
    assert numbers == [("50.00", ""), ("50.00", "1")]


def test_small_gaps_are_not_marked():
    """A gap of less than a hundredth of the picture is not tinted."""
    html = picture.html(report(devices=(device(gaps=(gap(duration_s=0.009),)),)))
    assert picture.IDLE not in html


def test_short_bars_are_seen_but_do_not_look_busy():
    """A bar alone is at least a thousandth wide; those in a crowd are not widened to a wall."""
    alone = ((0.5, 0.5 + 1e-7, "kernel", "k"), (0.9, 1.0, "kernel", "k"))
    crowd = tuple((n / 400, n / 400 + 1e-5, "kernel", "k") for n in range(400))
    widths = []
    for bars in (alone, crowd):
        lane = Picture(device="GPU 0", lane="stream 7", bars=bars)
        html = picture.html(report(picture=(lane,), devices=(device(gaps=()),)))
        widths.append([float(width) for width in re.findall(r"h([\d.]+)v", html)])
    assert widths[0] == [1.0, 100.0]
    assert sum(widths[1]) < 0.11 * picture.WIDTH


def test_every_kind_has_a_colour_and_a_word():
    """Nothing that is drawn is left without a colour and a word of its own."""
    drawn = set(KINDS) - {"device_mark"}
    assert drawn <= COLOURS.keys() & picture.WORDS.keys()
    assert len({COLOURS[kind] for kind in drawn}) == len(drawn)


def test_figure_has_labelled_axes():
    """The matplotlib figure has a row a lane, an axis with its unit, and is not pyplot's."""
    made = picture.figure(report())
    (axes,) = made.axes
    assert axes.get_xlabel() == "time since the trace began [s]"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["GPU 0, stream 7"]
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "copy to the device",
        "kernel",
        "idle",
    ]


# -- other views -----------------------------------------------------------------------------------


def test_stable_mode_masks(monkeypatch):
    """PERFKIT_OUTPUT=stable gives the same views for other figures."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    other = report(devices=(device(busy_s=0.6, gaps=()),), events=99, steps=steps(40))
    assert view.bundle(report(**FULL)) == view.bundle(other)
    assert not re.search(r"\d", view.text(report()).replace("GPU 0", ""))


def test_summary_json():
    """The JSON for front ends has each device's headline figures, and no rows."""
    summary = view.bundle(report(**FULL))[view.MIME]
    assert summary["devices"][0]["duty_cycle"] == 0.3
    assert summary["devices"][0]["causes"][0]["host"] == "log_step"
    assert summary["median_step_s"] == pytest.approx(0.1)
    assert "gaps" not in summary["devices"][0]


# -- the widget ------------------------------------------------------------------------------------


COLUMNS = Columns.of(
    [
        Event(0, 2000, Lane("", "thread 1"), "runtime", "cudaLaunchKernel", link=3),
        Event(5000, 9000, Lane("GPU 0", "stream 7"), "kernel", KERNEL, 4096, 3, "[64, 64]"),
        Event(4000, 9500, Lane("GPU 0", "stream 7"), "device_mark", "Stream Wait Event"),
    ]
)


def widget(**options):
    """The widget of three intervals."""
    from perfkit.render.timeline_widget import TimelineWidget

    return TimelineWidget(COLUMNS, report(), **options)


def test_widget_sends_columns():
    """Each interval is sent with its time, its lane, its kind and its name; marks apart."""
    import numpy as np

    made = widget()
    assert np.frombuffer(made.start, "<f8").tolist() == [0.0, 4000.0, 5000.0]
    assert np.frombuffer(made.end, "<f8").tolist() == [2000.0, 9500.0, 9000.0]
    lanes = [made.words["lanes"][code]["name"] for code in np.frombuffer(made.lane, "<u2")]
    assert lanes == ["thread 1", "stream 7 (marks)", "stream 7"]
    assert [made.words["names"][code] for code in np.frombuffer(made.name, "<u4")][2] == KERNEL
    assert len(made.words["kinds"]) == len(KINDS)
    assert made.words["gaps"][0]["meaning"] == CAUSES["blocking copy"]


def test_widget_answers():
    """Asked for one interval it says bytes, detail and the launching call; nonsense is ignored."""
    made, said = widget(), []
    made.send = said.append
    for asked in ({"row": 2}, {"row": 0}, {"row": 99}, {"row": "x"}, {}, None):
        made._answer(made, asked, [])
    assert said == [
        {"row": 2, "nbytes": 4096, "detail": "[64, 64]", "call": 0},
        {"row": 0, "nbytes": None, "detail": "", "call": -1},
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_widget_has_a_stand_in(alone):
    """Its bundle has the report's views, for readers without a kernel, unless that is beside it."""
    data, _ = widget(alone=alone)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert (data["text/html"] == view.html(report())) == alone
    assert ("needs the kernel" in data["text/plain"]) == (not alone)
