"""The recorder on real runtimes: the thread device, PoCL, JAX and PyTorch."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import perfkit
from perfkit.devices.thread import Stream
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.measure.timeline import TimelineRecording, record_timeline


@pytest.fixture
def stream():
    """A stream of the thread device."""
    with contextlib.closing(Stream("work")) as made:
        yield made


def leftovers():
    """Files of ours in the folder for temporary ones."""
    return sorted(path.name for path in Path(tempfile.gettempdir()).glob("perfkit-*"))


def share_of(device, host):
    """The part of the idle time that is put down to what `host` names."""
    return sum(row.share for row in device.causes if host in row.host)


def loop_on(stream):
    """Six steps that load, work and log."""

    def loop():
        for i in range(6):
            with perfkit.step(i):
                with perfkit.annotate("load"):
                    time.sleep(0.01)
                stream.launch(lambda: time.sleep(0.004), name="gemm")
                stream.synchronize()

    return loop


def test_thread_device(stream):
    """Work, its launches and steps are there; the sleep under `load` is the cause of the gaps."""
    timeline = record_timeline(loop_on(stream), backend="thread")
    (device,) = timeline.devices
    assert (device.intervals, device.launches.count, device.gap_count) == (6, 6, 5)
    assert share_of(device, "load") > 0.8
    assert {row.cause for row in device.causes if row.host == "load"} == {"data loading"}
    assert [step.number for step in timeline.steps] == list(range(6))
    assert [step.blocking_copies for step in timeline.steps] == [1] * 6
    assert perfkit.last() is timeline.report


def test_line_of_the_user_without_annotations(stream):
    """Where nothing is annotated, the user's line is named."""

    def loop():
        for _ in range(4):
            stream.launch(lambda: time.sleep(0.004))
            stream.synchronize()
            time.sleep(0.012)  # the planted line

    (device,) = record_timeline(loop, backend="thread").devices
    assert device.causes[0].host.startswith("test_timeline.py(")
    assert "time.sleep(0.012)" in device.causes[0].host


def test_first_recording_of_a_process():
    """What is looked up once is looked up before the first alarm: nothing is printed on stderr."""
    program = (
        "import time, perfkit\n"
        "def spin():\n"
        "    end = time.perf_counter() + 0.3\n"
        "    while time.perf_counter() < end: sum(range(1000))\n"
        "perfkit.record_timeline(spin)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_opencl():
    """PoCL's own events, with copies in bytes and the read that was waited for."""
    cl, np = pytest.importorskip("pyopencl"), pytest.importorskip("numpy")
    context = cl.Context([cl.get_platforms()[-1].get_devices()[0]])
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(context, properties=profiling)
    host = np.ones(1 << 16, np.float32)
    data = cl.Buffer(context, cl.mem_flags.READ_WRITE, host.nbytes)
    source = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2; }"
    kernel = cl.Program(context, source).build().twice

    def loop():
        for _ in range(5):
            with perfkit.annotate("load"):
                time.sleep(0.02)
            kernel(queue, (1 << 16,), None, data)
            cl.enqueue_copy(queue, host, data)

    loop()
    timeline = record_timeline(loop, backend="opencl")
    (device,) = timeline.devices
    assert device.name == "opencl" and share_of(device, "load") > 0.8
    (copies,) = timeline.report.copies
    assert (copies.direction, copies.count, copies.blocking) == ("d2h", 5, 5)
    assert copies.nbytes == 5 * host.nbytes


def test_jax():
    """JAX: steps, the cause of the gaps, and which shapes were compiled."""
    jax = pytest.importorskip("jax")
    product = jax.jit(lambda a: jax.numpy.tanh(a @ a))
    matrix = jax.numpy.ones((300, 300))
    product(matrix).block_until_ready()

    def loop():
        for i in range(6):
            with perfkit.step(i):
                with perfkit.annotate("load"):
                    time.sleep(0.02)
                product(matrix).block_until_ready()
        product(jax.numpy.ones((7, 7))).block_until_ready()

    timeline = record_timeline(loop, backend="jax")
    (device,) = timeline.devices
    assert 0 < device.busy_s < device.span_s
    assert [step.number for step in timeline.steps] == list(range(6))
    loading = sum(row.idle_s for row in device.causes if row.host == "load")
    assert loading > 0.06
    shapes = [shape for row in timeline.report.compiles for shape in row.shapes]
    assert "float32[7,7]" in shapes


def test_torch_without_a_device():
    """PyTorch on the processor has no device events: operators of the host, and no 0 %."""
    torch = pytest.importorskip("torch")
    a = torch.ones(200, 200)

    def loop():
        for i in range(5):
            with perfkit.step(i):
                with perfkit.annotate("load"):
                    time.sleep(0.02)
                torch.mm(a, a)

    timeline = record_timeline(loop, backend="torch")
    assert timeline.devices == ()
    assert share_of(timeline.report.host, "load") > 0.7
    assert [row.count for row in timeline.report.operators if row.name == "aten::mm"] == [5]
    assert len(timeline.steps) == 5


@pytest.mark.parametrize("backend", ["thread", "jax", "torch"])
def test_an_error_leaves_a_partial_report_and_nothing_else(backend, stream):
    """The error propagates, what was seen is kept, and the profiler can run again."""
    if backend != "thread":
        pytest.importorskip(backend)
    threads, files = threading.active_count(), leftovers()
    switch_s = sys.getswitchinterval()

    def fails():
        with perfkit.step(0):
            stream.launch(lambda: None)
        raise ZeroDivisionError("planted")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="planted"):
            record_timeline(fails, backend=backend)
        assert perfkit.last().stopped
        assert [step.number for step in perfkit.last().steps] == [0]
    assert (threading.active_count(), leftovers()) == (threads, files)
    assert sys.getswitchinterval() == switch_s


@pytest.mark.parametrize("kind", ["jax", "torch"])
def test_a_profiler_that_runs_already(kind):
    """One line before the body runs; the other profile goes on."""
    runtime = pytest.importorskip(kind)
    ran = []
    with tempfile.TemporaryDirectory() as folder:
        if kind == "jax":
            runtime.numpy.ones(3).block_until_ready()
            other = runtime.profiler.trace(folder)
        else:
            other = runtime.profiler.profile()
        with other, pytest.raises(NotSupportedHere, match="profiled already"):
            record_timeline(lambda: ran.append(1), backend=kind)
    assert not ran


def test_nothing_of_a_device(monkeypatch):
    """Where no runtime is in use, the lines and annotations are there, with a note."""
    monkeypatch.setattr("perfkit.measure.timeline.devices_in_use", lambda names: ())
    monkeypatch.setattr("perfkit.measure.timeline.torch_recorder", lambda: None)

    def waits():
        with perfkit.annotate("nap"):
            time.sleep(0.02)

    timeline = record_timeline(waits)
    assert timeline.devices == () and "nap" in timeline.columns.names
    assert any("no runtime" in note for note in timeline.report.notes)


def test_what_cannot_be_called():
    """A value instead of a function, and a runtime that nobody knows, are refused in one line."""
    with pytest.raises(UsageError, match="wrap it in lambda"):
        record_timeline(3)
    with pytest.raises(UsageError, match="is not known"):
        record_timeline(lambda: None, backend="cuda")


def test_closed_without_running():
    """A recording that is never begun ends without a report."""
    ended = []
    recording = TimelineRecording(label="x", done=ended.append)
    recording.runs().close()
    assert recording.timeline is None


def test_save_and_read_back(tmp_path, stream):
    """What is saved for Perfetto reads back with the same figures."""
    timeline = record_timeline(loop_on(stream), backend="thread")
    again = perfkit.read_timeline(timeline.save(tmp_path / "t.json.gz"))
    (here,), (there,) = timeline.devices, again.devices
    assert there.busy_s == pytest.approx(here.busy_s, abs=1e-8)
    assert there.span_s == pytest.approx(here.span_s, abs=1e-8)
    assert [s.number for s in again.steps] == [s.number for s in timeline.steps]
    assert share_of(there, "load") == pytest.approx(share_of(here, "load"), abs=0.01)
