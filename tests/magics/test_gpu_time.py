"""`%gpu_time` and `%%gpu_time` in real kernels: options, the record and the report."""

from __future__ import annotations

import json
import re
import socket

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter

WORK = "import time, perfkit\nfrom perfkit.devices.thread import Stream\ns = Stream('side')"


@pytest.fixture
def device(kernel):
    """A kernel with a stream `s` of the thread device."""
    assert kernel.run(WORK).status == "ok"
    yield kernel
    kernel.run("s.close()")


# -- how often and how long ------------------------------------------------------------------------


def test_once(device):
    """Without options the body runs once, and the report says that it was the first call."""
    cell = device.run("%%gpu_time -o t\nn = globals().get('n', 0) + 1")
    assert device.value("[n, t.runs, len(t.samples), t.repeat]") == [1, 1, 1, 1]
    assert "first call" in cell.report["text/plain"].splitlines()[0]


@pytest.mark.parametrize("body", ["time.sleep(0.001)", "s.launch(time.sleep, 0.001)"])
def test_repeat(device, body):
    """`-r 5` takes five samples behind the first call, each of one run where runs are long."""
    cell = device.run(f"%%gpu_time -r 5 -w 0 -o t\nn = globals().get('n', 0) + 1\n{body}")
    assert device.value("[n, t.runs, len(t.samples), t.number]") == [6, 6, 5, 1]
    assert device.value("t.quality.spread > 0") is True
    head, *rows = cell.report["text/plain"].splitlines()
    assert "median of 5 samples" in head
    assert any(row.startswith("  first call") for row in rows)


def test_repeat_of_a_cheap_body(kernel):
    """Samples of a cheap body are batches; the report says of how many runs each."""
    cell = kernel.run("%%gpu_time -r 3 -w 0 -o t\nn = globals().get('n', 0) + 1")
    runs, number, samples = kernel.value("[n, t.number, len(t.samples)]")
    assert number > 10 and samples == 3 and runs >= 3 * number
    assert kernel.value("t.runs") == runs
    assert f"3 samples of {number:,} runs each" in cell.report["text/plain"]


def test_repeat_auto(kernel):
    """`-r auto` takes several samples and stays near its budget, an empty body's too."""
    kernel.run("import time\nstart = time.perf_counter()")
    assert kernel.run("%%gpu_time -r auto -b 0.3 -o t\npass").status == "ok"
    assert kernel.value("[len(t.samples) > 3, t.repeat]") == [True, "auto"]
    assert kernel.value("0 < t.wall_s < 1e-4") is True
    assert kernel.value("time.perf_counter() - start < 3") is True


def test_first_call_is_kept_apart(kernel):
    """What only the first call costs is in `first_s` and in no average."""
    kernel.run(
        "import time\ndef slow_at_first(seen=[]):\n    time.sleep(0.001 if seen else 0.3)\n"
        "    seen.append(1)"
    )
    cell = kernel.run("%%gpu_time -r 3 -w 0 -o t\nslow_at_first()")
    assert kernel.value("[t.first_s > 0.29, t.wall_s < 0.15]") == [True, True]
    assert "kept apart" in cell.report["text/plain"]


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_warmup(kernel, warmup):
    """`-w N` runs the body N times between the first call and the first sample."""
    kernel.run("import time")
    kernel.run(f"%%gpu_time -r 2 -w {warmup} -o t n = 0\nn += 1\ntime.sleep(0.001)")
    assert kernel.value("[n, len(t.samples), t.warmup]") == [1 + warmup + 2, 2, warmup]


@pytest.mark.parametrize("repeat", ["1000", "1000000", "9" * 23])
def test_budget(kernel, repeat):
    """Sampling ends when the budget is spent, however much was asked, and the report says so."""
    kernel.run("import time")
    cell = kernel.run(f"%%gpu_time -r {repeat} -w 0 -b 0.2 -o t\ntime.sleep(0.01)")
    assert (cell.status, cell.traceback) == ("ok", "")
    assert kernel.value("[0 < len(t.samples) < 25, t.runs < 50]") == [True, True]
    assert "the budget of 0.2 s was spent" in cell.report["text/plain"]
    assert "-b" in cell.report["text/plain"]


# -- the record ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["%%gpu_time -o t\nx = 3", "%gpu_time -o t x = 3"])
def test_output(kernel, cell):
    """`-o t` binds the record, which is also `perfkit.last()`, and the report is shown."""
    assert len(kernel.run(cell).reports) == 1
    kernel.run("import perfkit")
    assert kernel.value("[perfkit.last() is t, isinstance(t, perfkit.Timing)]") == [True, True]
    assert kernel.value("[x, t.label]") == [3, cell.split()[0]]


def test_output_of_a_failed_cell(kernel):
    """When a run fails, `-o` binds what was seen by then."""
    kernel.run("import time, perfkit")
    cell = kernel.run("%%gpu_time -r 9 -w 0 -o t n = 0\nn += 1\ntime.sleep(0.001)\n1 / (4 - n)")
    assert (cell.status, cell.error) == ("error", "ZeroDivisionError")
    assert kernel.value("[len(t.samples), t.quality.status, perfkit.last() is t]") == [
        *(2, "suspect", True)
    ]
    assert "sample 3" in kernel.value("t.stopped")


def test_quiet(kernel):
    """`-q` shows nothing but what the body shows; the record is made all the same."""
    cell = kernel.run("%%gpu_time -q -o t\nprint('out')\n3")
    assert (cell.displays, cell.stdout, cell.results) == ([], "out\n", ["3"])
    failed = kernel.run("%%gpu_time -q -o u\n1 / 0")
    assert (failed.displays, failed.error) == ([], "ZeroDivisionError")
    assert kernel.value("[len(t.samples), len(u.samples)]") == [1, 0]


@pytest.mark.parametrize(
    "cell", ["%%gpu_time --name 'first try' -o t\n3", "%gpu_time -q --name 'first try' -o t 3"]
)
def test_name(kernel, cell):
    """`--name` adds one line to the ledger, and without it none is written."""
    kernel.ledger.unlink(missing_ok=True)
    kernel.run("%%gpu_time\n3")
    assert not kernel.ledger.exists()
    assert kernel.run(cell).status == "ok"
    (line,) = map(json.loads, kernel.ledger.read_text().splitlines())
    assert line["name"] == "first try" and line["record"]["record"] == "Timing"
    assert line["record"] == json.loads(kernel.value("t.to_json()"))


def test_name_that_cannot_be_kept(kernel):
    """A ledger that cannot be written fails the cell in one line, behind report and record."""
    kernel.run(
        "import os\nkept = os.environ['PERFKIT_RESULTS']\n"
        "os.environ['PERFKIT_RESULTS'] = '/dev/null/no/file'"
    )
    cell = kernel.run("%%gpu_time --name first -o t\n3")
    kernel.run("os.environ['PERFKIT_RESULTS'] = kept")
    assert (cell.status, cell.error, len(cell.reports)) == ("error", "PerfkitError", 1)
    assert len(cell.traceback.splitlines()) == 1 and "PERFKIT_RESULTS" in cell.traceback
    assert kernel.value("len(t.samples)") == 1
    assert kernel.run("%%gpu_time\n3").results == ["3"]


# -- devices ---------------------------------------------------------------------------------------


def test_backend(device):
    """`--backend thread` watches the streams, `--backend host` does not."""
    device.run("%%gpu_time --backend thread -o t\ns.launch(time.sleep, 0.01)")
    device.run("%%gpu_time --backend host -o h\ns.launch(time.sleep, 0.01)")
    assert device.value("[t.backends, t.launches, h.backends, h.device_s]") == [
        *(["thread"], 1, ["host"], None)
    ]


def test_unknown_backend(kernel):
    """A backend that is not known gives one line with the nearest name."""
    assert "did you mean opencl?" in kernel.run("%%gpu_time --backend opncl\n1").usage_error
    assert "host, thread" in kernel.run("%%gpu_time --backend zzz\n1").usage_error


def test_backend_that_is_not_imported(kernel):
    """A backend that nothing has imported gives one line with the import; it is not imported."""
    message = kernel.run("%%gpu_time --backend opencl\nx = 1").usage_error
    assert "import pyopencl first" in message
    assert kernel.value("'x' in globals()") is False
    assert kernel.value("'pyopencl' in __import__('sys').modules") is False


def test_host_cell_initialises_nothing(kernel):
    """Timing a plain cell imports no runtime."""
    runtimes = "{'torch', 'jax', 'cupy', 'pyopencl', 'numba', 'pynvml'}"
    assert kernel.run("%%gpu_time -r 3\nsum(range(9))").status == "ok"
    assert kernel.value(f"sorted({runtimes} & __import__('sys').modules.keys())") == []


def test_wall_is_the_headline(device):
    """For work that a launch only starts, the headline is the wall time, not the launch."""
    cell = device.run("%%gpu_time -o t\ns.launch(time.sleep, 0.2)")
    assert device.value("[t.naive_s < 0.1, t.wall_s > 0.19, t.device_s > 0.19]") == [True] * 3
    head, *rows = cell.report["text/plain"].splitlines()
    assert re.search(r": 2\d\d ms wall time", head)
    assert any(row.startswith("  naive") and "stopwatch" in row for row in rows)
    assert "device-bound" in cell.report["text/plain"]


def test_stream_made_in_the_body(device):
    """Work on a stream that the body itself makes is waited for and seen."""
    device.run("%%gpu_time -o t\nmine = Stream('mine')\nmine.launch(time.sleep, 0.2)")
    device.run("mine.close()")
    assert device.value("[t.wall_s > 0.19, t.device_s > 0.19, t.launches]") == [True, True, 1]


def test_overlapping_streams(device):
    """The busy time of two streams that work at once is counted once."""
    device.run("other = Stream('other')")
    device.run("%%gpu_time -o t\ns.launch(time.sleep, 0.2)\nother.launch(time.sleep, 0.2)")
    device.run("other.close()")
    assert device.value("[t.launches, 0.19 < t.device_busy_s < 0.35]") == [2, True]


def test_work_of_before_is_not_counted(device):
    """Work that an earlier cell left on the device is drained before the clock starts."""
    device.run("s.launch(time.sleep, 0.3)")
    device.run("%%gpu_time -o t\nx = 1")
    assert device.value("[t.wall_s < 0.2, t.launches]") == [True, 0]


def test_work_that_fails(device):
    """Work that fails on the device fails the cell in one line that names stream and reason."""
    device.run("def broken():\n    raise ValueError('no such kernel')")
    cell = device.run("%%gpu_time\ns.launch(broken)")
    assert (cell.status, cell.error) == ("error", "DeviceError")
    assert cell.traceback.strip() == "DeviceError: work on side failed: ValueError: no such kernel"
    assert device.run("%%gpu_time\n3").results == ["3"]


def test_no_sync(device):
    """`--no-sync` strikes its number through, names what was pending, and is no measurement."""
    body = "s.launch(time.sleep, 0.1)\ns.launch(time.sleep, 0.1)"
    lie = device.run(f"%%gpu_time --no-sync -o lie\n{body}")
    device.run(f"%%gpu_time -o truth\n{body}")
    assert re.search(
        r"<strong><s>[\d.]+ \S+</s> on a stopwatch [^<]*</strong>", lie.report["text/html"]
    )
    assert "2 commands had not ended" in lie.report["text/plain"]
    assert "2 commands had not ended" in lie.report["text/html"]
    assert device.value("[lie.pending, lie.wall_s, lie.verdict, lie.quality.status]") == [
        *(2, None, None, "refused")
    ]
    assert device.value("lie.naive_s < truth.wall_s / 2") is True


def test_sync_is_not_struck_through(device):
    """A true number is not struck through, and names nothing pending."""
    cell = device.run("%%gpu_time\ns.launch(time.sleep, 0.01)")
    assert "<s>" not in cell.report["text/html"]
    assert "had not ended" not in cell.report["text/plain"]


# -- reports that stay -----------------------------------------------------------------------------

STABLE = {
    "host": "%%gpu_time\ntime.sleep({s})",
    "host repeated": "%%gpu_time -r 3 -w 1\ntime.sleep({s})",
    "device": "%%gpu_time\ns.launch(time.sleep, {s})",
    "device repeated": "%%gpu_time -r 3 -w 0\ns.launch(time.sleep, {s})\ns.synchronize()",
    "copies": "%%gpu_time\ns.copy(bytes(int({s} * 1e6)), bytearray(int({s} * 1e6)))",
    "no sync": "%%gpu_time --no-sync\ns.launch(time.sleep, {s})",
    "error": "%%gpu_time\ntime.sleep({s})\n1 / 0",
    "line": "%gpu_time -r 3 -w 1 time.sleep({s})",
}


@pytest.mark.parametrize("cell", STABLE.values(), ids=STABLE.keys())
def test_stable_output(device, cell):
    """With PERFKIT_OUTPUT=stable two runs that took different times show the same report."""
    device.run("import os\nos.environ['PERFKIT_OUTPUT'] = 'stable'")
    first = device.run(cell.format(s=0.002)).report
    second = device.run(cell.format(s=0.03)).report
    device.run("del os.environ['PERFKIT_OUTPUT']\ns.synchronize()")
    assert first == second
    assert not re.search(r"\d (s|ms|µs|ns|B|KiB|.B/s)\b", first["text/plain"])
    assert cell.split()[0] in first["text/plain"] and "#" in first["text/plain"]
    masked = device.run(cell.format(s=0.002)).report
    assert masked != first


def test_offline_page(device, monkeypatch):
    """Without a network a notebook becomes a page; the report is in it and asks for none."""
    cells = ["%%gpu_time -r 3 -w 0\ns.launch(time.sleep, 0.01)", "%%gpu_time\n1 / 0"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c, outputs=device.run(c).outputs()) for c in cells]
    )

    def refuse(*_):
        raise OSError("this test has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    page, _ = HTMLExporter().from_notebook_node(notebook)
    for cell in notebook.cells:
        html = str(BeautifulSoup(cell.outputs[0].data["text/html"], "html.parser"))
        assert html in page
        outside = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//|src=|href=|url\(|@import|<script", outside)
    assert "<svg" in notebook.cells[0].outputs[0].data["text/html"]
    assert "ZeroDivisionError" in page


def test_report_is_an_ordinary_output(kernel):
    """The report is a display_data with text, HTML and JSON: no pager, nothing on a stream."""
    cell = kernel.run("%%gpu_time -r 3\nx = 1")
    assert (cell.pages, cell.stdout, cell.stderr, cell.results) == ([], "", "", [])
    assert set(cell.report) == {"text/plain", "text/html", "application/vnd.perfkit.timing.v1+json"}
    values = cell.report["application/vnd.perfkit.timing.v1+json"]
    assert values["record"] == "Timing" and 0 < values["wall_s"] < 1


# -- nothing is left behind ------------------------------------------------------------------------

STATE = """
import gc, os, signal, sys, tempfile, threading
import numpy, threadpoolctl
from perfkit.devices import thread
def target(number):
    try:
        return os.readlink("/proc/self/fd/" + number)
    except OSError:
        return None  # the listing itself
def state():
    gc.collect()
    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "files here": sorted(os.listdir()),
        "open files": sorted(filter(None, map(target, os.listdir("/proc/self/fd")))),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
        "pools": sorted([p["filepath"], p["num_threads"]] for p in threadpoolctl.threadpool_info()),
        "environment": dict(os.environ),
        "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count()],
        "tracers": [repr(sys.gettrace()), repr(sys.getprofile()), sys.getswitchinterval()],
        "cores": sorted(os.sched_getaffinity(0)),
        "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGALRM)],
        "streams": [repr(sys.stdout), repr(sys.stderr), repr(sys.displayhook)],
        "traces": len(thread._traces),
    }
"""

LEAVING = {
    "works": "%%gpu_time -r 3 -w 0\nx = 1",
    "fails at once": "%%gpu_time\n1 / 0",
    "fails in the warm-up": "%%gpu_time -r 3 -w 3 n = 0\nn += 1\n1 / (3 - n)",
    "fails in a sample": "%%gpu_time -r 9 -w 0 n = 0\nn += 1\ntime.sleep(0.001)\n1 / (4 - n)",
    "fails on the device": "%%gpu_time -r 3 -w 0 n = 0\nn += 1\ns.launch(lambda k: 1 / (3 - k), n)",
    "fails with work pending": "%%gpu_time\ns.launch(time.sleep, 0.02)\n1 / 0",
    "no sync": "%%gpu_time --no-sync -r 3 -w 0\ns.launch(time.sleep, 0.001)\n",
    "wrong option": "%%gpu_time --repeet\n1",
    "set-up fails": "%%gpu_time 1 / 0\n1",
    "line fails": "%gpu_time -r 3 -w 0 1 / 0",
    "break": "%%gpu_time\nbreak",
    "exit": "%%gpu_time -r 3\nimport sys\nsys.exit(1)",
    "BLAS": "%%gpu_time -r 2\nnumpy.eye(64) @ numpy.eye(64)\n1 / 0",
}


@pytest.mark.parametrize("cell", LEAVING.values(), ids=LEAVING.keys())
def test_nothing_left_behind(device, cell):
    """A timed cell, failing or not, leaves no thread, file, trace or changed setting behind."""
    device.run(STATE)
    device.run("%%gpu_time -r 3 -w 0\ns.launch(time.sleep, 0)\nnumpy.eye(64) @ numpy.eye(64)")
    before = device.value("state()")
    device.run(cell)
    device.run(cell)
    device.run("try:\n    s.synchronize()\nexcept perfkit.DeviceError:\n    pass")
    assert device.value("state()") == before
