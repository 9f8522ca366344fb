"""`%%timeline` and `%timeline` in real kernels."""

import json

import pytest
from timeline.planted import planted_json

MIME = "application/vnd.perfkit.timeline.v1+json"
SETUP = """
import time, perfkit
from perfkit.devices.thread import Stream
stream = Stream("work")
def train(steps=4):
    for i in range(steps):
        with perfkit.step(i):
            with perfkit.annotate("load"):
                time.sleep(0.01)
            stream.launch(lambda: time.sleep(0.003), name="gemm")
            stream.synchronize()
"""


@pytest.fixture
def trainer(kernel):
    """A kernel with a small training."""
    assert kernel.run(SETUP).status == "ok"
    return kernel


@pytest.fixture
def trace(kernel):
    """A trace file of a GPU in the kernel's folder, whose idle time is data loading."""
    path = kernel.folder / "my trace.json"
    path.write_text(json.dumps(planted_json("data loading", steps=6)))
    return path


def test_cell(trainer):
    """The verdict names who kept the device waiting; values and names of the cell stay."""
    cell = trainer.run("%%timeline -o t\ntrain()\nx = 7\nx + 1")
    first = cell.report["text/plain"].splitlines()[0]
    assert "busy" in first and "`load`" in first
    assert cell.report[MIME]["record"] == "TimelineReport"
    assert trainer.value("[x, _, len(t.steps), t.devices[0].name]") == [7, 8, 4, "thread"]
    assert trainer.value("perfkit.last() is t.report")


def test_html_needs_no_script(trainer):
    """The report is complete without a script, and what users named is escaped."""
    cell = trainer.run(
        "%%timeline\nwith perfkit.annotate('<img src=x onerror=alert(1)>'):\n    train(2)"
    )
    html = cell.report["text/html"]
    assert "<script" not in html and "<img" not in html
    assert "load" in html


def test_quiet_and_name(trainer):
    """-q shows nothing; --name keeps the record in the ledger."""
    cell = trainer.run("%%timeline -q --name night\ntrain(2)")
    assert cell.outputs() == []
    assert '"TimelineReport"' in trainer.ledger.read_text()


def test_error_shows_the_partial_timeline(trainer):
    """A cell that fails shows what was seen until then; its error propagates."""
    cell = trainer.run("%%timeline -o t\ntrain(2)\n1 / 0")
    assert cell.status == "error" and "ZeroDivisionError" in str(cell.reply["ename"])
    assert "stopped" in cell.report["text/plain"]
    assert trainer.value("len(t.steps)") == 2


def test_interrupt(trainer, tmp_path):
    """An interrupt ends the recording with a partial report, and the next cell records again."""
    marker = trainer.folder / "waits"
    request = trainer.start(
        f"%%timeline -o t\ntrain(2)\nopen({str(marker)!r}, 'w').close()\ntime.sleep(60)"
    )
    trainer.interrupt_when(marker)
    cell = trainer.collect(request)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert trainer.value("len(t.steps)") == 2
    marker.unlink()
    assert trainer.run("%%timeline\ntrain(1)").status == "ok"
    assert (
        trainer.value(
            "[f.name for f in __import__('threading').enumerate() if 'perfkit' in f.name]"
        )
        == []
    )


def test_file(trainer, trace):
    """%timeline FILE reads a trace, quoted for its blank, and binds it."""
    cell = trainer.run(f"%timeline -o t '{trace.name}'")
    assert "data" in cell.report["text/plain"] and "GPU 0" in cell.report["text/plain"]
    assert trainer.value("t.devices[0].causes[0].cause") == "data loading"


def test_file_against_and_steps(trainer, trace):
    """Two traces side by side, and some steps alone."""
    trainer.run(f"%timeline -o t '{trace.name}' --steps 2:3 --against '{trace.name}'  # so")
    assert trainer.value("len(t.steps)") == 2
    assert trainer.value("[t.report.against, t.report.selection]") == [
        "my trace.json",
        "steps 2 to 3",
    ]
    assert trainer.value("all(d.here == d.there for d in t.report.differences)")


def test_widget(trainer):
    """--widget adds the interactive view below the report, which stays."""
    cell = trainer.run("%%timeline --widget\ntrain(2)")
    shown = [m["content"]["data"] for m in cell.messages if m["msg_type"] == "display_data"]
    assert MIME in shown[0] and "load" in shown[0]["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in shown[1]


def test_save(trainer):
    """--save writes a trace that reads back."""
    trainer.run("%%timeline -q --save out.json.gz\ntrain(3)")
    assert trainer.value("len(perfkit.read_timeline('out.json.gz').steps)") == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%timeline", "give one trace file"),
        ("%timeline nowhere.json", "does not exist"),
        ("%timeline a.json b.json", "give one trace file"),
        ("%timeline --steps x a.json", "3:5"),
        ("%timeline --port 12 a.json", "--live"),
        ("%timeline --live 1 a.json", "leave"),
        ("%timeline --live 0", "above 0"),
        ("%timeline --agains a.json", "did you mean --against"),
        ("%timeline 'a.json", "quote"),
        ("%%timeline --steps 1:2\nx = 1", "belongs to a trace file"),
        ("%%timeline train()\nx = 1", "is no option"),
        ("%%timeline", "there is no code"),
        ("%%timeline --backend cuda\nx = 1", "is not known"),
    ],
)
def test_one_line(trainer, line, words):
    """What is wrong gets one line that says what to do; nothing was run."""
    cell = trainer.run(line)
    assert words in cell.usage_error
    assert not trainer.value("'x' in globals()")


def test_bad_files(trainer):
    """A file that is no trace, is cut off or empty gets one line."""
    for name, data, words in (
        ("empty.json", b"", "is empty"),
        ("no.json", b"{}", "is not a trace"),
        ("cut.json.gz", b"\x1f\x8b\x08\x00\x00\x00", "cut off"),
    ):
        (trainer.folder / name).write_bytes(data)
        assert words in trainer.run(f"%timeline {name}").usage_error


def test_live_thread(trainer):
    """--live looks into another thread of this process: JAX trains there."""
    pytest.importorskip("jax")
    trainer.run(
        "import threading, jax, jax.numpy as jnp\n"
        "product = jax.jit(lambda a: jnp.tanh(a @ a))\n"
        "going, m = True, jnp.ones((200, 200))\n"
        "def training():\n"
        "    i = 0\n"
        "    while going:\n"
        "        with perfkit.step(i):\n"
        "            product(m).block_until_ready()\n"
        "        i += 1\n"
        "worker = threading.Thread(target=training); worker.start()"
    )
    cell = trainer.run("%timeline --live 0.5 -o t")
    trainer.run("going = False\nworker.join()")
    assert cell.status == "ok"
    assert trainer.value("len(t.steps) > 1 and t.devices[0].busy_s > 0")


def test_timing_as_a_timeline(trainer):
    """The record of a %%gpu_time, by its name, gives the timeline of its last run."""
    trainer.run("%%gpu_time -q -o t1\nstream.launch(lambda: time.sleep(0.01), name='gemm')")
    trainer.run("%timeline t1 -o t")
    assert trainer.value("[k.name for k in t.report.kernels]") == ["gemm"]
    assert trainer.value("abs(t.devices[0].busy_s - t1.device_busy_s) < 1e-6")
    trainer.run("%%gpu_time -q -o t2\nx = 1")
    assert "no picture of a run" in trainer.run("%timeline t2").usage_error


def test_figure(trainer):
    """--figure adds a PNG."""
    cell = trainer.run("%%timeline --figure\ntrain(2)")
    shown = [m["content"]["data"] for m in cell.messages if m["msg_type"] == "display_data"]
    assert [data for data in shown if "image/png" in data]
