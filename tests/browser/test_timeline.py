import json
import re
import shutil

import pytest
from browser.test_lesson import (
    CELLS,
    CONTRASTS,
    ERRORS,
    HAS_RUN,
    PANEL,
    RUN_S,
    SHOTS,
    open_lesson,
    open_without_kernel,
    wait_for_kernel,
)

pytestmark = pytest.mark.browser

NOTEBOOK = "timeline.ipynb"
BUILD = """
from perfkit.records.base import Quality
from perfkit.records.timeline import CauseShare, DeviceTimeline, Gap, TimelineReport
from perfkit.timeline.columns import Columns, Event, Lane
from perfkit.timeline.picture import picture_of

US, STEPS, CALLS = 1000, 200, 333
main, stream = Lane("", "thread 42 (main)"), Lane("GPU 0", "stream 7")
events, gaps, now, link = [], [], 0, 0
for step in range(STEPS):
    begun = now
    for call in range(CALLS):
        link += 1
        name = "aten::needle" if (step, call) in ((3, 100), (50, 7), (199, 300)) else "aten::mm"
        events.append(Event(now, now + 20 * US, main, "op", name, detail="[64, 64]"))
        launch = "cudaLaunchKernel"
        events.append(Event(now + 4 * US, now + 9 * US, main, "runtime", launch, link=link))
        kernel = "void ns::gemm<float, 4, ns::Array<char*, 3> >(int, float const*)"
        events.append(Event(now + 12 * US, now + 31 * US, stream, "kernel", kernel, 4096, link))
        now += 20 * US
    end = now + 11 * US
    now += 4000 * US
    events.append(Event(end, now, main, "python", "train.py(12): log_step"))
    events.append(Event(begun, now, main, "step", f"ProfilerStep#{step}"))
    if step < STEPS - 1:
        gaps.append((end, now + 12 * US, step))
columns = Columns.of(events, source="made by hand")
span = 1e-9 * (end - 12 * US)
idle = 1e-9 * sum(stop - start for start, stop, _ in gaps)
device = DeviceTimeline(
    name="GPU 0", start_s=12e-6, span_s=span, busy_s=span - idle, idle_s=idle,
    compute_s=span - idle, non_compute_s=0.0, copy_s=0.0, collective_s=0.0, hidden_s=0.0,
    duty_cycle=(span - idle) / span, intervals=STEPS * CALLS, lanes=("stream 7",),
    gap_count=len(gaps),
    gaps=tuple(
        Gap(start_s=1e-9 * start, duration_s=1e-9 * (stop - start), cause="blocking copy",
            host="log_step", before=kernel, after=kernel, share=1 / len(gaps), step=step)
        for start, stop, step in gaps[:50]
    ),
    causes=(CauseShare(cause="blocking copy", host="log_step", idle_s=idle, count=199, share=1.0),),
)
report = TimelineReport.of(
    label="made", source="made by hand", events=len(columns), span_s=1e-9 * now,
    devices=(device,), quality=Quality(),
    picture=picture_of(columns),
)
"""
SHOW = """
%load_ext perfkit
from IPython.display import display
from perfkit.render.timeline_widget import TimelineWidget
display(report)
TimelineWidget(columns, report, alone=False)
"""
ALONE = "TimelineWidget(columns, report)"
CHANGED = """([canvas, before]) => canvas.dataset.range && canvas.dataset.range !== before"""
# How many colours the picture has, and what share of it is painted.
PAINTED = """canvas => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  let painted = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (!data[at + 3]) continue;
    painted++;
    colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  }
  return [colours.size, painted / (data.length / 4)];
}"""
# Milliseconds of each of some frames, drawn while it is zoomed and moved by keys.
FRAMES = """async canvas => {
  canvas.focus();
  const frame = () => new Promise(requestAnimationFrame), times = [];
  for (const key of '+d+d+d+a+a+a-d-d-a-a-d-a'.repeat(4)) {
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    await frame();
    await frame();
    times.push(Number(canvas.dataset.frameMs));
  }
  return times;
}"""


class Shown:
    """The widget in the page."""

    def __init__(self, opened):
        self.page = opened.page
        self.root = self.page.locator(f"{PANEL} .perfkit-timeline").first
        self.canvas, self.panel = self.root.locator("canvas"), self.root.locator(".panel")

    def range(self):
        """What is in view: from and to, in ns."""
        return [float(number) for number in self.canvas.get_attribute("data-range").split()]

    def fit(self):
        """Show all of it, with the canvas in focus."""
        self.canvas.focus()
        self.press("0")
        self.page.wait_for_function("c => c.dataset.range.startsWith('0 ')", arg=self.handle())

    def handle(self):
        """The canvas itself."""
        return self.canvas.element_handle()

    def press(self, key):
        """Press a key, and wait for the frame."""
        self.page.keyboard.press(key)
        self.page.evaluate("() => new Promise(go => requestAnimationFrame(() => setTimeout(go)))")

    def click_at(self, ns, y):
        """Click where a time is, `y` CSS pixels below the top of the canvas."""
        start, end = self.range()
        width = self.canvas.bounding_box()["width"]
        self.canvas.click(position={"x": width * (ns - start) / (end - start), "y": y})


@pytest.fixture(scope="module")
def notebook(lab, chromium):
    """A notebook that shows 200,000 intervals, run and saved."""
    cells = [
        {"cell_type": "code", "id": name, "metadata": {}, "source": source.strip(), "outputs": [],
         "execution_count": None}
        for name, source in {"build": BUILD, "show": SHOW, "alone": ALONE}.items()
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    text = json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    (lab.folder / NOTEBOOK).write_text(text)
    opened = open_lesson(chromium, lab, NOTEBOOK)
    wait_for_kernel(opened, lab)
    opened.command("notebook:run-all-cells")
    opened.page.wait_for_function(HAS_RUN, arg=[PANEL, ERRORS], timeout=1000 * RUN_S)
    assert opened.page.locator(ERRORS).all_inner_texts() == []
    opened.page.locator(f"{PANEL} .perfkit-timeline canvas[data-range]").last.wait_for()
    opened.command("docmanager:save")
    SHOTS.mkdir(exist_ok=True)
    yield opened
    lab.end_kernels()


@pytest.fixture
def shown(notebook):
    """The widget, with all of the trace in view and nothing chosen."""
    notebook.use_theme("JupyterLab Light")
    widget = Shown(notebook)
    widget.root.scroll_into_view_if_needed()
    widget.fit()
    widget.press("Escape")
    return widget


def test_all_is_drawn(shown):
    """All intervals arrive, and the canvas is painted in the colours of several kinds."""
    assert int(shown.canvas.get_attribute("data-intervals")) == 200 * (3 * 333 + 2)
    colours, painted = shown.canvas.evaluate(PAINTED)
    assert colours > 5
    assert painted > 0.3
    assert shown.root.locator(".label").all_inner_texts()[0] == "GPU 0, stream 7"


def test_wheel_zooms_where_it_points(shown):
    """The wheel zooms around the pointer, once the picture has the focus."""
    before = shown.range()
    box = shown.canvas.bounding_box()
    shown.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 40)
    shown.page.mouse.wheel(0, -400)
    shown.page.wait_for_function(CHANGED, arg=[shown.handle(), " ".join(map(str, before))])
    start, end = shown.range()
    assert end - start < 0.9 * (before[1] - before[0])
    assert (start + 0.25 * (end - start)) / before[1] == pytest.approx(0.25, abs=0.02)


def test_page_scrolls_without_focus(shown):
    """The wheel of a reader who only passes by does not zoom."""
    shown.canvas.evaluate("canvas => canvas.blur()")
    before = shown.range()
    shown.canvas.hover()
    shown.page.mouse.wheel(0, 100)
    shown.page.wait_for_timeout(100)
    assert shown.range() == before


def test_search_goes_from_one_to_the_next(shown):
    """The search counts what it finds; Enter and Shift+Enter go through it and show it."""
    field, count = shown.root.locator("input"), shown.root.locator("output").first
    field.fill("NEEDLE")
    assert count.inner_text() == "3 found"
    seen = []
    for key in ("Enter", "Enter", "Enter", "Shift+Enter"):
        field.press(key)
        seen.append((count.inner_text(), shown.range()))
    assert [text for text, _ in seen] == ["1 of 3", "2 of 3", "3 of 3", "2 of 3"]
    assert shown.panel.locator(".title").inner_text() == "aten::needle"
    assert seen[0][1][0] < (3 * (333 * 20 + 4000) + 100 * 20) * 1000 < seen[0][1][1]
    shown.root.screenshot(path=SHOTS / "timeline-search.png")
    field.fill("")


def test_gap_tells_its_cause(shown):
    """A click on a gap says why the device waited, what the host did, and in which step."""
    shown.click_at((333 * 20 + 2000) * 1000, 33)
    said = shown.panel.inner_text()
    assert "GPU 0 was idle for 4.00 ms: blocking copy" in said
    assert "the host had waited for a result, so nothing was queued behind it" in said
    assert re.search(r"the host was in\s+log_step", said)
    assert re.search(r"step\s+0\b", said)


def test_interval_tells_its_figures(shown):
    """A click on a bar gives its figures; what the kernel alone knows is asked for."""
    for _ in range(17):
        shown.press("w")
    shown.canvas.focus()
    middle = sum(shown.range()) / 2
    shown.click_at(middle - middle % 20_000 + 20_000, 33)
    shown.panel.get_by_text("launched by").wait_for()
    said = shown.panel.inner_text()
    assert "void ns::gemm<float, 4, ns::Array<char*, 3> >(int, float const*)" in said
    assert re.search(r"lasts\s+19\.0 µs", said)
    assert re.search(r"bytes\s+4\.00 KiB", said)
    assert re.search(r"launched by\s+cudaLaunchKernel, 8\.00 µs", said)
    shown.root.screenshot(path=SHOTS / "timeline-interval.png")


def test_keys(shown):
    """Keys zoom, move, show all of it and go through the gaps; Tab shows where the focus is."""
    whole = shown.range()
    shown.press("+")
    zoomed = shown.range()
    shown.press("ArrowRight")
    moved = shown.range()
    shown.press("g")
    gap = shown.range()
    shown.press("Home")
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    assert moved[0] > zoomed[0]
    assert gap[1] - gap[0] < 20e6
    assert shown.range() == whole
    assert "blocking copy" in shown.panel.inner_text()
    assert shown.canvas.evaluate("c => getComputedStyle(c).outlineStyle") == "solid"


def test_keys_are_no_shortcuts_of_jupyterlab(shown, notebook):
    """Keys that JupyterLab would take for its own, such as `a` and `d d`, leave the cells alone."""
    for key in ("a", "d", "d", "s"):
        shown.press(key)
    assert notebook.page.locator(f"{PANEL} .jp-CodeCell").count() == 3


def test_frames_are_fast(shown):
    """A frame takes a few milliseconds, far from what can be felt."""
    times = shown.canvas.evaluate(FRAMES)
    print(f"frames: median {sorted(times)[len(times) // 2]} ms, longest {max(times)} ms")
    assert len(times) == 96
    assert sorted(times)[len(times) // 2] < 200


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_themes(shown, notebook, theme):
    """In both themes all words can be read, those of the report too, and the canvas takes the
    colour of the page's text.
    """
    notebook.use_theme(f"JupyterLab {theme}")
    notebook.page.locator("#jupyterlab-splash").wait_for(state="detached")
    shown.press("g")
    shown.root.screenshot(path=SHOTS / f"timeline-gap-{theme.lower()}.png")
    shown.fit()
    shown.root.screenshot(path=SHOTS / f"timeline-{theme.lower()}.png")
    texts = [*shown.root.evaluate(CONTRASTS), *notebook.report("show").evaluate(CONTRASTS)]
    assert len(texts) > 100
    assert [(text, round(ratio, 2)) for text, ratio in texts if ratio < 4.5] == []
    ink = shown.root.evaluate("root => getComputedStyle(root).color")
    numbers = [int(number) for number in re.findall(r"\d+", ink)[:3]]
    assert all(number > 150 for number in numbers) == (theme == "Dark")


def test_report_stays_without_kernel(notebook, lab, chromium):
    """Opened again where no kernel is, the report beside the widget is there; no state of the
    widget is in the file.
    """
    shutil.copy(notebook.file, lab.folder / "timeline_again.ipynb")
    assert "widgets" not in json.loads(notebook.file.read_text())["metadata"]
    reopened = open_without_kernel(chromium, lab, "timeline_again.ipynb")
    static = reopened.report("show")
    assert "GPU 0 was busy 63 % of" in static.inner_text()
    assert static.locator("svg").count() == 3
    assert reopened.page.locator(f"{PANEL} canvas").count() == 0
    reopened.page.close()


def test_widget_has_a_stand_in(notebook, lab, chromium):
    """In a notebook of somebody else the widget by itself is the report's HTML."""
    changed = json.loads(notebook.file.read_text())
    changed["metadata"]["title"] = "changed, so this server's signature does not fit"
    (lab.folder / "timeline_untrusted.ipynb").write_text(json.dumps(changed))
    untrusted = open_without_kernel(chromium, lab, "timeline_untrusted.ipynb")
    untrusted.report("alone").screenshot(path=SHOTS / "timeline-untrusted.png")
    assert "blocking copy" in untrusted.report("alone").inner_text()
    assert "needs the kernel" in untrusted.page.locator(CELLS).nth(1).inner_text()
    untrusted.page.close()
