"""The report of a LineProfile: true words for each case, aligned, escaped, small, and a what-if."""

import re
from xml.etree import ElementTree

import msgspec
import pytest

from perfkit import machine
from perfkit.records.base import Quality
from perfkit.records.lines import Function, LineProfile, Loop, Statement
from perfkit.render import lines as view
from perfkit.render import source

WALL_S = 2.0


def row(line, text, share, hits=1, function="step", **fields):
    """A statement with a share of a run of two seconds."""
    defaults = {
        "end_line": line + text.count("\n"),
        "time_s": share * WALL_S,
        "self_s": share * WALL_S,
        "uncertainty": 0.04 if share else 0.0,
    }
    fields = {"function": function, "line": line, "source": text, "hits": hits} | fields
    return Statement(share=share, **defaults | fields)


def function(name, share, line=1):
    """A function with a share of the same run."""
    return Function(name=name, line=line, time_s=share * WALL_S, share=share)


CALL = row(9, "step()", 0.95, function="<cell>", self_s=0.0)
ROWS = (
    row(2, "    for x in xs:", 0.05, 11),
    row(3, "        y = f(\n            x)", 0.75, 10, loop=2),
    row(5, "    never()", 0.0, 0),
)


def profile(*rows, functions=(), **fields):
    """A profile in bursts; without rows that of a cell that calls a function with a loop."""
    defaults = {
        "label": "%%lprun",
        "mode": "bursts",
        "wall_s": WALL_S,
        "elapsed_s": 1.2 * WALL_S,
        "ticks": 1480,
        "statements": rows or (*ROWS, CALL),
        "functions": functions or (function("step", 0.95), function("<cell>", 1.0, line=9)),
        "machine": machine(),
        "quality": Quality(),
    }
    return LineProfile.of(**defaults | fields)


def tight(**fields):
    """A loop of two lines that are too short to be told apart, and one line that is not."""
    inside = {"loop": 2, "tight": True, "hits_exact": False, "uncertainty": 0.15}
    rows = (
        row(2, "for x in xs:", 0.1, 12345, **inside),
        row(3, "    y += x", 0.3, 12345, **inside),
        row(4, "    z += y", 0.2, 12345, **inside),
        row(5, "sort(xs)", 0.35),
    )
    sums = {"time_s": 1.2, "share": 0.6, "uncertainty": 0.04, "tight": True}
    loop = Loop(function="step", line=2, end_line=4, **sums)
    return profile(*rows, functions=(function("step", 1.0),), loops=(loop,), **fields)


def cells(record, **options):
    """The words of each row of the HTML's tables."""
    root = ElementTree.fromstring(view.html(record, **options))
    return [["".join(cell.itertext()) for cell in line] for line in root.iter("tr")]


def test_report():
    """Functions with the hottest first, statements in the order of the source, source at right."""
    assert view.text(profile()) == (
        "%%lprun: 2.00 s, of which 75 % in one statement (line 3 of `step`)\n"
        "  without it the run would be 4.00 x faster\n"
        "  lines traced in short bursts, times from 1,480 ticks in between; "
        "the cell ran 1.20 x slower under the profiler; shares ±4 points\n"
        "  line    time  share  ± points  hits  per hit  bound  source\n"
        "\n"
        "        2.00 s  100 %                                  the cell\n"
        "     9  1.90 s   95 %         4     1   1.90 s  x20.0  step()\n"
        "\n"
        "        1.90 s   95 %                                  step, line 1\n"
        "     2  100 ms  5.0 %         4    11  9.09 ms  x1.05  for x in xs:\n"
        "     3  1.50 s   75 %         4    10   150 ms  x4.00      y = f(\n"
        "                                                               x)\n"
        "     5                              0                  never()\n"
        "\n"
        "  time and share include all that the statement calls; "
        "bound: if it took no time, the run would be so many times faster"
    )


def test_html_says_the_same():
    """The table has the cells of the text, a statement of two lines in one row."""
    table = cells(profile())
    assert table[0][-1] == "source"
    assert table[2] == ["9", "1.90 s", "95 %", "4", "1", "1.90 s", "x20.0", "step()"]
    assert table[5][-1] == "    y = f(\n        x)"


def test_heat_follows_the_share():
    """The hotter a statement, the denser its share's ground; what never ran is dimmed."""
    html = view.html(profile())
    grounds = re.findall(r"rgba\(213,94,0,([\d.]+)\)[^>]*>([^<]+)<", html)
    assert grounds == [("0.57", "95 %"), ("0.07", "5.0 %"), ("0.46", "75 %")]
    assert html.count('opacity:0.65"') == 1


def test_lower_limits():
    """Hits that are not exact are lower limits, and a time per hit is not made from them."""
    text = view.text(profile(row(3, "y = f(x)", 0.75, 12345, hits_exact=False)))
    assert "75 %         4  >= 12,345      n/a  x4.00  y = f(x)" in text
    assert ">=: at least so many hits" in text
    assert ">=" not in view.text(profile())


def test_tight_loop():
    """A tight loop is named as a whole; its rows are marked, with one sentence for the mark."""
    text = view.text(tight())
    assert text.startswith("%%lprun: 2.00 s, of which 60 % in one loop (line 2 of `step`)\n")
    assert "without it the run would be 2.50 x faster" in text
    assert "~10 %" in text
    assert re.search(r" 35 % .* sort\(xs\)", text)
    assert "for x in xs:  [loop 60 % ±4]\n" in text
    assert text.count("the split inside is approximate") == 1
    assert "loop 60 % ±4</span>" in view.html(tight())


def test_loop_without_a_row():
    """A loop whose header is not among the rows still shows its subtotal, in a sentence."""
    loop = Loop(function="step", line=7, end_line=8, time_s=0.8, share=0.4, uncertainty=0.04)
    assert "loop 40 % ±4: line 7 of `step`" in view.text(profile(loops=(loop,)))


def test_bound_that_is_not_known():
    """Where the share may be all of the run, its bound is a lower limit; all of it has none."""
    text = view.text(profile(row(3, "f()", 0.97)))
    assert "without it the run would be more than 14.3 x faster" in text
    assert "> x14.3" in text
    whole = view.text(profile(row(3, "f()", 1.0, uncertainty=0.0)))
    assert "it is the whole run" in whole
    assert re.search(r"n/a  f\(\)", whole)


def test_cold_functions_are_folded():
    """Functions under 1 % are one line with their shares; in HTML they open without a script."""
    cold = [row(1, "pass", share, function=name) for name, share in (("a", 0.006), ("b", 0.0))]
    known = [function("step", 0.95), function("a", 0.006), function("b", 0.0)]
    record = profile(*ROWS, *cold, functions=known)
    assert "  2 functions under 1 %: a 0.6 %, b 0 %\n" in view.text(record)
    assert "pass" not in view.text(record)
    details = ElementTree.fromstring(view.html(record)).find(".//details")
    assert details.find("summary").text == "2 functions under 1 %: a, b"
    assert "pass" in "".join(details.itertext())


def test_strip_zero():
    """-z leaves out what never ran, and keeps what has time although no hit was seen."""
    seen = row(7, "seen()", 0.1, 0, hits_exact=False)
    text = view.text(profile(*ROWS, seen), strip_zero=True)
    assert "never()" not in text
    assert "seen()" in text
    assert "n/a" in text
    assert not any("never()" in line for line in cells(profile(), strip_zero=True))


def test_unit():
    """-u prints times as plain numbers in the unit that the head names."""
    text = view.text(profile(), unit_s=1e-6)
    assert "  times in units of 1e-06 s\n" in text
    assert "     3  1,500,000   75 %         4    10    150,000  x4.00" in text
    assert "times in units of 0.001 s" in view.html(profile(), unit_s=1e-3)


def test_device_columns():
    """With --sync wall, host and device time stand side by side, and what is lost is said."""
    launch = row(3, "kernel()", 0.75, host_s=0.1, device_s=1.4)
    record = profile(launch, CALL, mode="steps", synchronized=True, backends=("jax",), ticks=0)
    assert cells(record)[0][1:4] == ["wall", "host", "device"]
    assert cells(record)[4][1:4] == ["1.50 s", "100 ms", "1.40 s"]
    assert cells(record)[2][3] == "n/a"
    text = view.text(record)
    assert "stopped after each statement until the devices were empty (jax)" in text
    assert "host and device do not overlap in this mode" in text


def test_memory_columns():
    """With --memory each row has what it kept and how far it grew; what nobody tells is n/a."""
    record = profile(row(3, "f()", 0.75, host_bytes=-(2**20), host_peak_bytes=2**30), memory=True)
    assert cells(record)[0][-4:-1] == ["allocated", "peak", "on device"]
    assert cells(record)[2][-4:-1] == ["-1.00 MiB", "1.00 GiB", "n/a"]
    assert "allocated" not in view.text(profile())


def test_doubts_are_sentences():
    """Notes, reasons and what stopped the run stand below the table."""
    reasons = ("stopped by ValueError", "the machine was busy")
    quality = Quality(status="suspect", reasons=reasons)
    noted = row(3, "f()", 0.75, notes=("its `await` is nobody's",))
    text = view.text(profile(noted, notes=("a child",), stopped="ValueError", quality=quality))
    assert "  stopped by ValueError: what was seen by then\n" in text
    assert "  note: a child\n  note: line 3 of `step`: its `await` is nobody's\n" in text
    assert text.endswith("  suspect, the machine was busy")
    assert text.count("stopped by") == 1


def test_nothing_was_profiled():
    """An empty cell has a headline that says so, and no table."""
    record = profile(wall_s=0.0, elapsed_s=0.0).to_json()
    empty = msgspec.structs.replace(LineProfile.from_json(record), statements=(), functions=())
    assert view.text(empty).startswith("%%lprun: no statement was profiled: ")
    assert "<table" not in view.html(empty)


@pytest.mark.parametrize(
    "text",
    [
        "x = '<script>alert(1)</script>' & y",
        "s = '''<b>\n\t</td>\x1b[31m\x00'''",
        "unfinished = 'abc <",
        "lambda: (yield)",
    ],
)
def test_html_is_safe(text):
    """Whatever the source holds, the HTML is well-formed and has nothing but inline styles."""
    record = profile(row(3, text, 0.75, function="<b>"), label="<i>", notes=("`<u>`",))
    html = view.html(record)
    ElementTree.fromstring(html)
    assert not re.search(r"<(script|style|svg|b|i|u)\b", html)
    assert "\x1b" not in view.text(record)


def test_source_is_unchanged_by_colour():
    """Colours add tags, never a letter: tabs are spaces, wide letters stay."""
    text = "\tif s == '<成分>':  # 応答 & Ω"
    shown = "\n".join(source.lines(text))
    assert shown == "    if s == '<成分>':  # 応答 & Ω"
    coloured = ElementTree.fromstring(f"<p>{source.coloured(shown)}</p>")
    assert "".join(coloured.itertext()) == shown
    assert [span.text for span in coloured] == ["if", "'<成分>'", "# 応答 & Ω"]


def test_wide_letters_count_twice():
    """Widths are columns of a terminal: source is cut by them, and never in the middle."""
    assert [source.width(text) for text in ("abc", "成分", "e\u0301")] == [3, 4, 1]
    assert source.fit("成分分析", 8) == "成分分析"
    assert source.fit("成分分析", 7) == "成分分…"
    assert source.fit("成分分析", 6) == "成分…"
    text = view.text(profile(row(3, f"s = '{'成' * 80}'", 0.75)))
    (line,) = [line for line in text.splitlines() if "成" in line]
    assert source.width(line[line.index("s =") :]) == 100


def test_long_statements_are_cut():
    """A statement of a thousand lines shows twenty, and says how many there are more."""
    shown = source.lines("\n".join(f"x{n}," for n in range(1000)))
    assert len(shown) == 20
    assert shown[-1] == "… 981 more lines"


def test_size_is_capped():
    """A function of 5,000 lines shows its hottest 400, says how many not, and stays small."""
    rows = [row(n, f"    x{n} = f('<{n}>', {n})", n / 2e7, n % 2 * n) for n in range(5000)]
    record = profile(*rows, functions=(function("step", 0.95),))
    assert "4,600 statements left out" in view.text(record)
    assert len(cells(record)) == 402
    assert any("x4999" in line[-1] for line in cells(record))
    assert len(view.html(record)) < 1_000_000
    assert "left out" not in view.text(profile())


def test_stable_mode_masks(monkeypatch):
    """PERFKIT_OUTPUT=stable gives the same for other times: only exact hits and words stay."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    slower = [msgspec.structs.replace(r, time_s=9.0, share=0.001, tight=True) for r in ROWS[:2]]
    known = (function("<cell>", 0.2, line=9), function("step", 0.001))
    other = profile(CALL, *slower, ROWS[2], functions=known, wall_s=9.0, ticks=3, notes=("busy",))
    assert view.bundle(profile()) == view.bundle(other)
    assert view.text(profile()).startswith("%%lprun: #\n")
    assert "     2     #      #         #     #        #      #  for x in xs:" in view.text(other)
    masked = view.text(tight())
    assert not re.search(r"12,345|~|\d %", masked)


def test_summary_json():
    """The JSON for front ends has the headline's figures and no rows."""
    summary = view.bundle(profile())[view.MIME]
    assert summary["wall_s"] == 2.0
    assert summary["overhead"] == pytest.approx(1.2)
    assert summary["hottest"]["line"] == 3
    assert summary["hottest"]["bound"] == pytest.approx(4)
    assert "statements" not in summary


def test_widget_answers():
    """The slider's value changes the sentence to what Amdahl's law says."""
    which, factor, says = view.widget(profile()).children
    assert which.options[1][0] == "line 3 of step, 75 %: y = f("
    assert which.label == which.options[1][0]
    assert "the run takes 1.25 s instead of 2.00 s: 1.60 x faster" in says.value
    factor.value = 10
    assert "line 3 of <code>step</code> 10 x faster" in says.value
    assert "the run takes 650 ms instead of 2.00 s: 3.08 x faster" in says.value
    factor.value = 0
    assert "gone, the run takes 500 ms instead of 2.00 s: 4.00 x faster" in says.value
    which.value = 0
    assert "line 9 of the cell gone, the run takes 100 ms" in says.value
