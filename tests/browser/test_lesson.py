import json
import re
import shutil
from pathlib import Path

import pytest

from perfkit import units
from perfkit.render.theme import COLOURS

pytestmark = pytest.mark.browser

NOTEBOOK = "31_stopwatch.ipynb"
SHOTS = Path(__file__).parent / "screenshots"
SHOWN = (
    "predict-growth", "reveal-growth", "measure-lie", "measure-truth", "measure-streams",
    "measure-once", "measure-each", "measure-tiny", "measure-loop", "ex1-check", "ex1-solution",
    "transfer-truth",
)  # fmt: skip
MIME = "application/vnd.perfkit.timing.v1+json"
TIME = re.compile(r"\d[\d.,]* (s|ms|µs|ns)")
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
CELLS = f"{PANEL} .jp-Notebook .jp-Cell"
# JupyterLab 4.6 shows an error as it shows what is written to stderr.
ERRORS = ", ".join(
    f'{PANEL} .jp-OutputArea-output[data-mime-type="application/vnd.jupyter.{kind}"]'
    for kind in ("error", "stderr")
)
RUN_S = 60
NO_KERNELS = {"default": "", "kernelspecs": {}}

HAS_RUN = """([panel, errors]) => {
  const prompts = [...document.querySelectorAll(`${panel} .jp-CodeCell .jp-InputPrompt`)];
  const open = prompts.filter(prompt => /\\[[ *]\\]/.test(prompt.textContent));
  const idle = document.querySelector(
    `${panel} .jp-Notebook-ExecutionIndicator[data-status=idle]`);
  return (prompts.length && !open.length && idle) || document.querySelector(errors);
}"""

# Contrast as WCAG 2 defines it, of each piece of text in `root` with what is painted behind it.
# The squares of a legend are not text.
CONTRASTS = """root => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below, alpha) => below.map((c, i) => alpha * top[i] + (1 - alpha) * c);
  const chain = element => element ? [...chain(element.parentElement), element] : [];
  const background = element => chain(element).reduce((below, one) => {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    return over(colour, below, colour[3]);
  }, [255, 255, 255]);
  const opacity = element =>
    chain(element).reduce((product, one) => product * getComputedStyle(one).opacity, 1);
  const luminance = colour => {
    const [r, g, b] = colour.map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = element => {
    const style = getComputedStyle(element), below = background(element);
    const ink = rgba(style.color);
    const seen = luminance(over(ink, below, ink[3] * opacity(element)));
    const [low, high] = [seen, luminance(below)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (text && text !== '■') found.push([text, contrast(element)]);
  }
  return found;
}"""

# What is wrong with a picture: words cut off, or on one another or the bars; labels off their tick.
UNTIDY = """picture => {
  const box = node => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getBoundingClientRect();
  };
  const words = [...picture.querySelectorAll('td, span')]
    .flatMap(one => [...one.childNodes])
    .filter(node => node.nodeType === Node.TEXT_NODE && node.data.trim())
    .map(node => [node.data.trim(), box(node)]);
  const frame = picture.getBoundingClientRect();
  const cut = words.filter(([, one]) => one.left < frame.left - 1 || one.right > frame.right + 1);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const bars = [...picture.querySelectorAll('svg')]
    .map(lane => ['the bars', lane.getBoundingClientRect()]);
  const covered = words.flatMap(([text, one], i) => [...words.slice(i + 1), ...bars]
    .filter(([, other]) => meet(one, other)).map(([other]) => `${text} meets ${other}`));
  const start = picture.querySelector('svg').getBoundingClientRect().left;
  const labels = words.filter(([text]) => /^\\d/.test(text));
  const step = labels[1][1].left - labels[0][1].left;
  const astray = labels.filter(([, one], i) => Math.abs(one.left - start - i * step) > 6);
  return [...cut.map(([text]) => `${text} is cut off`), ...covered,
    ...astray.map(([text]) => `${text} is not at its tick`),
    ...(labels.length > 1 ? [] : ['there is no axis'])];
}"""

# The words outside pictures.
WORDS = """report => {
  const copy = report.cloneNode(true);
  copy.querySelectorAll('svg').forEach(picture => picture.remove());
  return copy.textContent;
}"""


class Lesson:
    """The lesson in a page of its own, with its cells by their ids."""

    def __init__(self, page, file):
        self.page, self.file = page, file
        self.ids = [cell["id"].removeprefix("31-") for cell in self.cells()]

    def cells(self):
        """The cells as the file has them now."""
        return json.loads(self.file.read_text())["cells"]

    def saved(self, name, mime):
        """One view of the first output of a cell that has it, as saved."""
        outputs = self.cells()[self.ids.index(name)]["outputs"]
        return next(o["data"][mime] for o in outputs if mime in o.get("data", {}))

    def report(self, name):
        """The HTML that a cell shows."""
        cell = self.page.locator(CELLS).nth(self.ids.index(name))
        return cell.locator('.jp-OutputArea-output[data-mime-type="text/html"]').first

    def reports(self):
        """All timing reports in the page, by the name of their cell."""
        timed = [c["id"][3:] for c in self.cells() if "".join(c["source"]).startswith("%%gpu_time")]
        return {name: self.report(name) for name in timed}

    def pictures(self):
        """The pictures of the timing reports that have one, by the name of their cell."""
        found = {
            name: report.locator("table", has=self.page.locator("svg"))
            for name, report in self.reports().items()
        }
        return {name: picture for name, picture in found.items() if picture.count()}

    def rows(self, name):
        """The table of a report: from a row's name to its value."""
        rows = self.report(name).locator("table").first.locator("tr").all()
        return dict(row.locator("th, td").all_inner_texts()[:2] for row in rows)

    def command(self, name, **arguments):
        """Run a command of JupyterLab and wait until it is done."""
        self.page.evaluate(
            "async ([name, args]) => { await jupyterapp.commands.execute(name, args); }",
            [name, arguments],
        )

    def use_theme(self, theme):
        """Change the theme, as the Settings menu does."""
        self.command("apputils:change-theme", theme=theme)
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=theme)


def open_lesson(browser, lab, name, *, kernels=True):
    """Open a notebook in a page and a workspace of its own, with or without kernels to be had."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
    page.set_default_timeout(20_000)
    if not kernels:
        page.route("**/api/kernelspecs*", lambda route: route.fulfill(json=NO_KERNELS))
    page.goto(f"{lab.url}/lab/workspaces/{Path(name).stem}/tree/{name}?token={lab.token}")
    opened = Lesson(page, lab.folder / name)
    page.locator(CELLS).nth(len(opened.ids) - 1).wait_for(state="attached")
    return opened


def wait_for_kernel(lesson, lab):
    """Return when the server and the page agree that there is a kernel and that it is idle."""
    for _ in range(10 * RUN_S):
        states = [session["kernel"]["execution_state"] for session in lab.request("sessions")]
        names = lesson.page.locator(f"{PANEL} .jp-Toolbar-kernelName").all_inner_texts()
        if states == ["idle"] and names and "No Kernel" not in names[0]:
            return
        lesson.page.wait_for_timeout(100)
    pytest.fail(f"no idle kernel after {RUN_S} s: {states}, {names}")


@pytest.fixture(scope="module")
def lesson(lab, chromium):
    """The lesson after Run All, saved."""
    opened = open_lesson(chromium, lab, NOTEBOOK)
    wait_for_kernel(opened, lab)
    opened.page.get_by_role("menuitem", name="Run", exact=True).click()
    opened.page.locator('li[data-command="runmenu:run-all"]').click()
    opened.page.wait_for_function(HAS_RUN, arg=[PANEL, ERRORS], timeout=1000 * RUN_S)
    assert opened.page.locator(ERRORS).all_inner_texts() == []
    opened.command("docmanager:save")
    SHOTS.mkdir(exist_ok=True)
    yield opened
    lab.end_kernels()


def open_without_kernel(chromium, lab, name):
    """A saved notebook as it looks where no kernel can be had."""
    opened = open_lesson(chromium, lab, name, kernels=False)
    opened.page.locator(".jp-Dialog button.jp-mod-reject", has_text="No Kernel").click()
    opened.page.locator(".jp-Dialog").wait_for(state="detached")
    assert name not in [session["path"] for session in lab.request("sessions")]
    return opened


def test_all_cells_run(lesson):
    """Run All runs every code cell of the lesson as shipped, and none ends in an error."""
    code = [cell for cell in lesson.cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert "error" not in [output["output_type"] for cell in code for output in cell["outputs"]]


def test_report_has_the_figures(lesson):
    """The report shows the record's times with their units, and says who set the pace."""
    record, rows = lesson.saved("measure-truth", MIME), lesson.rows("measure-truth")
    shown = {"wall": "wall_s", "naive": "naive_s", "device": "device_s", "busy": "device_busy_s"}
    for row, field in shown.items():
        assert TIME.fullmatch(rows[row])
        assert rows[row] == units.seconds(record[field])
    report = lesson.report("measure-truth").inner_text()
    assert f"{rows['wall']} wall time" in report
    assert re.search(r"device-bound: the device was busy \d+ % of the wall time", report)


def test_picture_has_two_lanes(lesson):
    """The picture has the host's lane first and the device's below, with bars in their colours."""
    picture = lesson.pictures()["measure-truth"]
    host, device, *_ = picture.locator("tr").all()
    assert host.locator("td").first.inner_text() == "host"
    assert re.match("opencl|thread", device.locator("td").first.inner_text())
    assert host.locator(f'rect[fill="{COLOURS["host"]}"]').count() == 1
    assert device.locator(f'rect[fill="{COLOURS["kernel"]}"]').count() == 1


@pytest.mark.parametrize("width", [1280, 900])
def test_reports_fit(lesson, width):
    """Beside an open file browser, no report has to be scrolled sideways and no words collide."""
    lesson.page.set_viewport_size({"width": width, "height": 900})
    wide = [
        name
        for name, report in lesson.reports().items()
        if report.evaluate("e => e.scrollWidth > e.clientWidth + 1")
    ]
    lesson.report("measure-each").screenshot(path=SHOTS / f"width-{width}-measure-each.png")
    pictures = lesson.pictures()
    untidy = [f"{n}: {fault}" for n, one in pictures.items() for fault in one.evaluate(UNTIDY)]
    lesson.page.set_viewport_size({"width": 1280, "height": 900})
    assert len(pictures) >= 6
    assert (wide, untidy) == ([], [])


def test_stopwatch_is_struck_through(lesson):
    """Only where nobody waited for the device the headline is struck through."""
    struck = {
        name: report.locator("s").all_inner_texts() for name, report in lesson.reports().items()
    }
    lies = {name for name, texts in struck.items() if texts}
    assert lies == {"measure-lie", "transfer-lie"}
    assert len(struck["measure-lie"]) == 1
    assert struck["measure-lie"][0].endswith("s")


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_text_can_be_read(lesson, theme):
    """In both themes all text of the reports has a contrast of at least 4.5 to its background."""
    lesson.use_theme(f"JupyterLab {theme}")
    lesson.page.locator(CELLS).first.scroll_into_view_if_needed()
    lesson.page.screenshot(path=SHOTS / f"{theme.lower()}-top.png")
    for name in SHOWN:
        lesson.report(name).screenshot(path=SHOTS / f"{theme.lower()}-{name}.png")
    texts = [pair for name in lesson.ids for pair in contrasts(lesson, name)]
    assert len(texts) > 100
    assert [(text, round(ratio, 2)) for text, ratio in texts if ratio < 4.5] == []


def contrasts(lesson, name):
    """The pieces of text that a cell shows as HTML, each with its contrast."""
    report = lesson.report(name)
    return report.evaluate(CONTRASTS) if report.count() else []


def test_reports_outlive_the_kernel(lesson, lab, chromium):
    """The saved lesson shows the same reports where there is no kernel."""
    shutil.copy(lesson.file, lab.folder / "reopened.ipynb")
    reopened = open_without_kernel(chromium, lab, "reopened.ipynb")
    for name, report in lesson.reports().items():
        assert reopened.report(name).inner_text() == report.inner_text()
        assert reopened.report(name).locator("svg").count() == report.locator("svg").count()
    reopened.page.close()


def test_reports_need_no_trust(lesson, lab, chromium):
    """Where JupyterLab drops the picture, as it does in another's notebook, its words go too."""
    notebook = json.loads(lesson.file.read_text())
    notebook["metadata"]["title"] = "changed, so this server's signature does not fit"
    (lab.folder / "untrusted.ipynb").write_text(json.dumps(notebook))
    untrusted = open_without_kernel(chromium, lab, "untrusted.ipynb")
    untrusted.report("measure-truth").screenshot(path=SHOTS / "untrusted-measure-truth.png")
    for name, report in lesson.reports().items():
        assert untrusted.report(name).evaluate(WORDS) == report.evaluate(WORDS)
    untrusted.page.close()
