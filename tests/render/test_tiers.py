"""Views of the tier table and its plan: aligned, escaped, without script, masked when stable."""

import re
from html.parser import HTMLParser

import matplotlib
import pytest

from perfkit import machine
from perfkit.magics.options import parse
from perfkit.magics.tiers import OPTIONS
from perfkit.records.base import Quality
from perfkit.records.tiers import PlannedPath, Target, Tier, TierPlan, TierTable
from perfkit.render import tiers as view
from perfkit.tiers import answers
from perfkit.tiers.reference import NAME, reference_tiers

VOID = {"br", "rect", "hr", "img"}
DISK = {
    "name": "scratch",
    "kind": "storage",
    "path": "/scratch",
    "capacity_bytes": 2**40,
    "free_bytes": 2**39,
    "read_Bps": 2e9,
    "write_Bps": 1e9,
    "latency_s": 1e-4,
    "iops": 123456.0,
    "note": "ext4 on /dev/vda, read by 4 readers",
}
MEMORY = Tier(
    name="CPU memory", kind="memory", persistent="no", shared="no", read_Bps=5e10, latency_s=1e-7
)
ABSENT = Tier(name="GPU memory", kind="device", figures="absent", note="import cupy first")


def table(*tiers, **fields):
    """A table of these rows beside the deck's."""
    defaults = {
        "label": "%tiers",
        "tiers": tiers or (ABSENT, MEMORY, Tier(**DISK)),
        "reference": reference_tiers(),
        "reference_name": NAME,
        "spent_s": 3.0,
        "machine": machine(),
        "quality": Quality(),
    }
    return TierTable.of(**defaults | fields)


def plan(*paths, **fields):
    """A plan with these rows."""
    defaults = {"quick": True, "budget_s": 9.0, "memory_bytes": 2**28, "memory_s": 5.0}
    return TierPlan.of(**defaults | fields, paths=paths)


def folder(**fields):
    """A folder of a plan."""
    target = Target(path="/scratch", fstype="ext4")
    defaults = {"path": "/scratch", "name": "scratch", "why": "$SCRATCH", "target": target}
    return PlannedPath(**defaults | {"write_bytes": 2**28, "seconds": 3.0} | fields)


def row_of(text, name):
    """The line of a tier of this machine."""
    return next(line for line in text.splitlines() if line.strip().startswith(name))


class Checked(HTMLParser):
    """HTML whose tags are closed in order, without script, handlers and links."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.titles = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "style", "link", "iframe", "b", "img")
        assert not [name for name, _ in attributes if name.startswith("on") or name == "href"]
        self.titles += [value for name, value in attributes if name == "title"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_columns():
    """The columns are the deck's, and each row has a word in each."""
    lines = view.text(table()).splitlines()
    heads = ["tier", "persists", "shared", "capacity", "free", "read", "write", "latency", "IOPS"]
    assert lines[1].split() == heads
    assert " ".join(row_of(view.text(table()), "scratch").split()) == (
        "scratch unknown unknown 1.00 TiB 512 GiB 2.00 GB/s 1.00 GB/s 100 µs 123,456"
    )


def test_alignment():
    """Numbers of one column end in one place, in your rows and in the other machine's."""
    lines = view.text(table()).splitlines()
    mine, memory = (row_of("\n".join(lines), name) for name in ("scratch", "CPU memory"))
    theirs = next(line for line in lines if "local scratch" in line)
    ends = {line.index("GB/s") for line in (mine, memory, theirs)}
    assert len(ends) == 1
    assert lines[1].index("persists") == mine.index("unknown") == memory.index("no ")


def test_unknown_is_not_zero():
    """A figure that is not known is n/a, and no row shows a 0."""
    text = view.text(table(Tier(name="bare", kind="storage", path="/bare")))
    row = row_of(text, "bare")
    assert row.split().count("n/a") == 6
    assert not re.search(r"(?<![\d.,])0 ", row)


def test_absent_device():
    """Without a device the row says absent, has no figure, and a remark says what to do."""
    text = view.text(table())
    row = row_of(text, "GPU memory")
    assert "absent" in row and not re.search(r"\d", row)
    assert "import cupy first" in text


def test_where_reference_figures_come_from():
    """The deck's rows are marked nominal or measured elsewhere, yours are not, and signs have a
    legend.
    """
    text = view.text(table())
    yours, theirs = text.split(NAME)
    assert theirs.count("(n)") == 4 + 1 and theirs.count("(m)") == 3 + 1
    assert "(n)" not in yours and "(m)" not in yours
    assert "x nodes" in row_of(theirs, "BeeOND")


def test_doubt_is_shown():
    """A suspect row has ? and a refused one ! with the reason below; refused is struck out."""
    suspect = Tier(**DISK, quality=Quality(status="suspect", reasons=("few samples",)))
    refused = Tier(
        **DISK | {"name": "home"}, quality=Quality(status="refused", reasons=("cached",))
    )
    text = view.text(table(suspect, refused))
    assert row_of(text, "scratch").endswith("?") and row_of(text, "home").endswith("!")
    assert "? scratch: few samples" in text and "! home: cached" in text
    rows = view.html(table(suspect, refused)).split("<tr")
    assert [("line-through" in row) for row in rows if "1.00 TiB" in row] == [False, True]


def test_answers_are_yours():
    """What a person filled in says so."""
    row = Tier(**DISK, persistent="yes", filled_in=("persistent",))
    assert "yes (you)" in row_of(view.text(table(row)), "scratch")


@pytest.mark.parametrize("path", ["/scratch", "/my disk", "/it's", "/a:b"])
def test_hint_can_be_typed(path):
    """The command that the table proposes is one that works as it stands."""
    text = view.text(table(Tier(**DISK | {"path": path})))
    (line,) = re.findall(r"%tiers (--fill .*)", text)
    asked, rest = parse("%tiers", OPTIONS, line)
    assert rest == ""
    assert answers.parse(asked["fill"]).path == path


def test_no_hint_without_need():
    """Where all is known nothing is to be filled in."""
    assert "--fill" not in view.text(table(MEMORY))


def test_stopped_and_waited():
    """The head says what stopped the survey and how long it waited for others."""
    head = view.text(table(stopped="an interrupt", waited_s=7.0)).splitlines()[0]
    assert "stopped by an interrupt" in head and "7.00 s of waiting" in head
    assert "waiting" not in view.text(table()).splitlines()[0]


def test_html_is_safe():
    """Names, notes, advice and reasons are text, whatever they contain, and tags are closed."""
    evil = '<script>alert(1)</script>"><b onclick="x">&'
    row = Tier(
        **DISK | {"name": evil, "path": evil, "note": evil},
        quality=Quality(status="suspect", reasons=(evil,)),
    )
    record = table(row, MEMORY, label=evil, advice=(evil,), notes=(evil,), reference_name=evil)
    found = Checked(view.html(record))
    assert sum(evil in words for words in found.words) >= 5 and evil in found.titles


def test_plan_is_safe():
    """So is the plan."""
    evil = "<script>&'\""
    rows = (folder(path=evil, name=evil, why=evil), folder(path="/x", refused=evil))
    found = Checked(view.bundle(plan(*rows, devices=(evil,)))["text/html"])
    assert sum(evil in words for words in found.words) >= 4


@pytest.mark.parametrize("name", ["two\nlines", "red\x1b[31m", "a\rb"])
def test_names_are_only_text(name):
    """A name cannot break a line or send orders to the terminal."""
    clean = view.text(table(Tier(**DISK | {"name": "x", "path": "x"})))
    text = view.text(table(Tier(**DISK | {"name": name, "path": name})))
    assert len(text.splitlines()) == len(clean.splitlines()) and "\x1b" not in text


def test_stable(monkeypatch):
    """In stable mode tables that differ only in figures, doubt and time have equal views."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    other = Tier(
        **DISK | {"read_Bps": 3e9, "free_bytes": 7, "iops": 9.0, "note": "read by 8 readers"},
        quality=Quality(status="suspect", reasons=("few samples",)),
    )
    first = view.bundle(table(Tier(**DISK)))
    second = view.bundle(table(other, spent_s=9.0, waited_s=5.0, advice=("a",), notes=("b",)))
    assert first == second
    assert "2.00 GB/s" not in first["text/plain"] and "scratch" in first["text/plain"]


def test_bundle():
    """The views are text, HTML and a summary under perfkit's own type."""
    found = view.bundle(table())
    assert set(found) == {"text/plain", "text/html", view.MIME}
    assert found[view.MIME]["tiers"][2]["read_Bps"] == 2e9
    assert found[view.MIME]["tiers"][0]["read_Bps"] is None


def test_empty_table():
    """A table that was stopped before the first row still has its views."""
    record = table(tiers=(), reference=(), stopped="an interrupt")
    assert "stopped by an interrupt" in view.text(record)
    Checked(view.html(record))


def test_bars_are_in_order():
    """On the logarithmic scale the faster tier has the longer bar, and no bar is negative."""
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="(\d+)"', view.html(table()))]
    memory, mine = widths[:2]
    assert memory > mine > 0 and all(0 < width <= 1000 for width in widths)


def test_figure():
    """Both axes are logarithmic; a filled point is yours, a hollow one theirs."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    drawing = view.figure(table(Tier(**DISK)))
    for axis in drawing.axes:
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    styles = [line.get_fillstyle() for line in drawing.axes[0].lines]
    assert styles.count("full") == 1 and styles.count("none") == 7
    pyplot.close(drawing)


def test_plan_says_all():
    """A plan names each folder with its reason, bytes and seconds, and that nothing was done."""
    text = view.text(plan(folder(), devices=("jax",)))
    assert "256 MiB written to these folders and to nothing else" in text
    assert "about 8.50 s in all; nothing has been done yet" in text
    assert "/scratch ($SCRATCH)" in text and "256 MiB written, then removed (ext4)" in text
    assert re.search(r"devices +jax", text)


def test_plan_of_folders_that_are_not_written():
    """Refused folders say why, second ones on a file system say whose figures count."""
    text = view.text(
        plan(
            folder(path="/a", refused="/a is full", write_bytes=0, seconds=0.0),
            folder(path="/b", same_as="/c", write_bytes=0, seconds=0.0),
            folder(target=Target(path="/m", fstype="tmpfs", memory_backed=True)),
        )
    )
    assert "left out: /a is full" in text and "same file system as /c" in text
    assert "(memory)" in text and text.count("then removed") == 1


def test_plan_aligns():
    """The plan's columns start in one place."""
    lines = view.text(plan(folder(), folder(path="/other/place", name="home"))).splitlines()
    assert len({line.index("256 MiB") for line in lines if "/" in line and "then" in line}) == 1
