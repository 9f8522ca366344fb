"""CuPy as time_call sees it: every kind of stream, no driver, memory, graphs."""

import sys
import time
from types import ModuleType

import pytest
from devices.cupy_stub import CuPyStub, OutOfMemoryError

import perfkit
from perfkit.devices.base import Lane
from perfkit.devices.brackets import Place
from perfkit.devices.cupy import CuPyDevice
from perfkit.devices.detect import devices_in_use
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.measure.clock import HostClock
from perfkit.measure.plan import Plan
from perfkit.measure.timing import Measurement, time_call

SHORT_S, LONG_S = 0.02, 0.2


@pytest.fixture
def cuda(cupy):
    return cupy.cupy.cuda


def on(cupy, stream, seconds=LONG_S):
    """Give a stream a kernel."""
    with stream:
        cupy.kernel(seconds)


# -- streams -----------------------------------------------------------------------------------

STREAMS = {
    "null": lambda cuda: cuda.Stream.null,
    "per-thread": lambda cuda: cuda.Stream.ptds,
    "current": lambda cuda: cuda.get_current_stream(),
    "blocking": lambda cuda: cuda.Stream(),
    "non-blocking": lambda cuda: cuda.Stream(non_blocking=True),
    "external": lambda cuda: external(cuda),
}


def external(cuda):
    """A stream that another library made."""
    owner = cuda.Stream(non_blocking=True)
    stream = cuda.ExternalStream(owner.ptr)
    stream.owner = owner
    return stream


@pytest.mark.parametrize("kind", STREAMS)
def test_stream_is_drained_and_seen(cupy, cuda, kind):
    """Work on a stream of any kind is waited for, and its device time is told."""
    stream = STREAMS[kind](cuda)
    timing = time_call(lambda: on(cupy, stream))
    assert timing.backends == ("cupy",) and timing.naive_s < 0.5 * timing.wall_s
    assert 0.9 * LONG_S < timing.device_s <= timing.wall_s


@pytest.mark.parametrize("options", [{}, {"non_blocking": True}])
def test_stream_made_in_body(cupy, cuda, options):
    """A stream that the body makes and drops in every run is drained and seen in every run."""
    timing = time_call(lambda: on(cupy, cuda.Stream(**options), SHORT_S), repeat=4, warmup=1)
    assert min(sample.wall_s for sample in timing.samples) > 0.9 * SHORT_S
    assert min(sample.device_s for sample in timing.samples) > 0.9 * SHORT_S


def test_side_stream_is_named(cupy, cuda):
    """Of many streams the one that worked is in the picture, the idle ones are not."""
    idle, busy = cupy.stream(), cupy.stream()
    timing = time_call(lambda: on(cupy, busy))
    lanes = {span.lane for span in timing.spans} - {"host"}
    assert len(lanes) == 1 and "stream" in lanes.pop() and idle != busy


def test_lanes_are_told_apart(cupy, cuda):
    """Streams are listed once by their pointer, under names without addresses."""
    stream = cupy.stream()
    again = cuda.ExternalStream(stream.ptr, 0)
    names = [lane.name for lane in cupy.device.lanes() if lane.handle.device == 0]
    assert names == ["cuda:0 default stream", "cuda:0 per-thread stream", "cuda:0 stream 1"]
    assert again.ptr == stream.ptr


def test_two_devices(cupy, cuda):
    """Work on two devices is drained on both, and the device time is that of the longer."""
    first, second = cupy.stream(0), cupy.stream(1)

    def body():
        on(cupy, first, SHORT_S)
        with cuda.Device(1):
            on(cupy, second)

    timing = time_call(body)
    assert {span.lane[:6] for span in timing.spans} == {"host", "cuda:0", "cuda:1"}
    assert 0.9 * LONG_S < timing.device_s <= timing.wall_s


def test_device_set_up_in_body(cupy, cuda):
    """A device that the body is the first to use is drained, and why it is not timed is said."""

    def body():
        with cuda.Device(1):
            on(cupy, cuda.Stream.null)

    timing = time_call(body)
    assert timing.wall_s > 0.9 * LONG_S and timing.device_s is None
    assert any("set up inside the body" in reason for reason in timing.quality.reasons)


# -- what brackets can tell --------------------------------------------------------------------


def test_bracket_is_honest(cupy):
    """Device time is a bracket: suspect for its reason, without busy time, launches or verdict."""
    timing = time_call(lambda: cupy.kernel(SHORT_S), repeat=3)
    assert timing.device_s > 0.9 * SHORT_S
    assert timing.device_busy_s is timing.idle_s is timing.host_s is timing.verdict is None
    assert timing.launches is None and timing.quality.status == "suspect"
    assert any("launch gaps are inside" in reason for reason in timing.quality.reasons)


def test_nothing_worked(cupy):
    """A body that leaves the device alone is the host's, and a note says what is not seen."""
    timing = time_call(lambda: sum(range(1000)), repeat=20, budget_s=0.2)
    assert timing.backends == ("host",) and timing.host_s == timing.naive_s
    assert any("body itself waited for would not be seen" in note for note in timing.notes)


def test_work_waited_for_in_body(cupy, cuda):
    """Work that took memory and ended inside the body is known of, and is not given a time."""

    def body():
        array = cupy.cupy.ndarray(1000)
        cupy.kernel(SHORT_S)
        return array.get()

    timing = time_call(body)
    assert timing.backends == ("cupy",) and timing.device_s is None
    assert timing.naive_s > 0.9 * SHORT_S
    assert any("leave the waiting to perfkit" in reason for reason in timing.quality.reasons)


def test_pending_work_stays_out(cupy):
    """Work that was pending before the start is in no figure of the measurement."""
    cupy.kernel(LONG_S)
    timing = time_call(lambda: cupy.kernel(SHORT_S))
    assert timing.device_s <= timing.wall_s < 0.9 * LONG_S


def test_host_time_is_not_device_time(cupy, cuda):
    """A body that works on the host alone for long does not make idle streams look busy."""
    stream = cupy.stream()
    timing = time_call(lambda: time.sleep(SHORT_S))
    assert timing.backends == ("host",) and stream.done


def test_no_sync_waits_for_nothing(cupy):
    """The stopwatch that lies is not made honest by the marks of the trace."""
    with cupy.device.trace(time.perf_counter) as trace:
        cupy.kernel(LONG_S)
        start_s = time.perf_counter()
        trace.clear()
        assert time.perf_counter() - start_s < 0.5 * LONG_S
        assert trace.pending() == 1


def test_marks_hold_the_work(cupy):
    """Two marks are at least as far apart as the work between them takes."""
    lane = cupy.lane()
    start = cupy.device.mark(lane)
    cupy.launch(lane, SHORT_S)
    end = cupy.device.mark(lane)
    cupy.device.synchronize()
    assert SHORT_S < cupy.device.elapsed_s(start, end) < 10 * SHORT_S


def test_stream_destroyed_before_event(cupy, cuda):
    """A mark on a stream that is gone is an error in one line, which says what to do."""
    stream = cuda.Stream()
    lane = Lane("cupy", "my stream", Place(0, cuda.ExternalStream(stream.ptr, 0)))
    cupy.cupy.machine.destroy(stream)
    with pytest.raises(DeviceError, match=r"my stream was destroyed .* keep it alive") as caught:
        cupy.device.mark(lane)
    assert "\n" not in str(caught.value) and cupy.device.is_idle(lane)


def test_stream_destroyed_in_body(cupy, cuda):
    """A stream that its owner destroys inside the body: its work is drained, and not timed."""
    owner = cuda.Stream(non_blocking=True)
    stream = cuda.ExternalStream(owner.ptr, 0)

    def body():
        on(cupy, stream)
        cupy.cupy.machine.destroy(owner)

    timing = time_call(body)
    assert timing.wall_s > 0.9 * LONG_S and timing.device_s is None
    assert any("was destroyed before its event" in reason for reason in timing.quality.reasons)


# -- no driver, no device ----------------------------------------------------------------------

BROKEN = {
    "no driver": ({"status": 35}, "no NVIDIA driver, or one too old for this CuPy"),
    "no device": ({"devices": 0}, "no CUDA device here"),
    "other": ({"status": 700}, "cupy: cudaErrorIllegalAddress"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_runtime_is_not_watched(install_cupy, case):
    """A CuPy that cannot run says why, is not watched, and does not disturb a measurement."""
    options, reason = BROKEN[case]
    install_cupy(CuPyStub(**options))
    probe = CuPyDevice().probe()
    assert not probe.available and probe.reason.startswith(reason) and probe.devices == ()
    assert "cupy" not in [device.name for device in devices_in_use()]
    timing = time_call(lambda: sum(range(10)))
    assert timing.backends == ("host",) and timing.verdict == "synchronous"


@pytest.mark.parametrize("case", BROKEN)
def test_broken_runtime_raises_nothing(install_cupy, case):
    """Whatever is asked of an adapter without a runtime has an answer."""
    install_cupy(CuPyStub(**BROKEN[case][0]))
    device = CuPyDevice()
    assert device.lanes() == () and device.in_use() == [] and device.memory() is None
    assert device.synchronize() is None and not device.owns(3)


def test_half_import(monkeypatch):
    """A CuPy whose import broke half-way is not there."""
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    probe = CuPyDevice().probe()
    assert not probe.available and "not imported" in probe.reason
    assert CuPyDevice().lanes() == ()


def test_cuda_is_not_set_up(install_cupy):
    """Timing plain Python beside an idle CuPy sets up no device."""
    stub = install_cupy(CuPyStub())
    timing = time_call(lambda: sum(range(10)), repeat=5, budget_s=0.1)
    assert timing.backends == ("host",) and stub.machine.contexts == set()


def test_cuda_set_up_in_first_call(install_cupy):
    """The first call may be the one that sets CUDA up: it is waited for all the same."""
    stub = install_cupy(CuPyStub())
    timing = time_call(lambda: stub.kernel(SHORT_S), repeat=3, warmup=0)
    assert timing.first_s > 0.9 * SHORT_S and timing.first.device_s is None
    assert timing.device_s > 0.9 * SHORT_S


# -- failures ----------------------------------------------------------------------------------


def test_out_of_memory_in_third_repeat(cupy):
    """Memory that runs out is the body's own error, and the good samples are kept."""
    machine, kept = cupy.cupy.machine, []
    machine.limit = 5000

    def body():
        kept.append(cupy.cupy.ndarray(1000))

    with pytest.raises(OutOfMemoryError):
        time_call(body, repeat=10, warmup=2)
    last = perfkit.last()
    assert len(last.samples) == 2 and last.stopped.endswith("sample 3")
    assert dict(machine.hooks) == {}


def test_kernel_that_fails(cupy):
    """A kernel that fails while it is drained is one DeviceError that names the device."""

    def broken(seconds):
        raise ZeroDivisionError

    with pytest.raises(DeviceError, match="waiting for cuda:0 failed: cudaErrorIllegalAddress"):
        time_call(lambda: cupy.cupy.kernel(0, work=broken))
    assert "first call" in perfkit.last().stopped
    assert time_call(lambda: cupy.kernel(SHORT_S)).stopped == ""


# -- memory, cache, graphs ---------------------------------------------------------------------


def test_memory_in_use(cupy, cuda):
    """Memory in use is the pools' own count over all devices in use; no peak is made up."""
    arrays = [cupy.cupy.ndarray(1000)]
    with cuda.Device(1):
        arrays.append(cupy.cupy.ndarray(500))
    assert cupy.device.memory() == (1500, None)
    arrays.clear()
    assert cupy.device.memory() == (0, None)


def test_cold_writes_twice_the_cache(cupy):
    """A flush writes twice the L2 cache, is waited for, and leaves no memory in use."""
    flush = cupy.device.flush_cache()
    assert flush == (2 * 2**20, 2**20)
    assert cupy.device.memory().used_bytes == 0
    assert time_call(lambda: cupy.kernel(SHORT_S), cold=True, repeat=3).cold


def test_graph_is_replayed(cupy, cuda):
    """What was captured runs at each replay and not before."""
    done = []
    with cupy.device.capture() as graph:
        cupy.cupy.kernel(SHORT_S, work=done.append)
    assert done == []
    graph.replay()
    graph.replay()
    cupy.device.synchronize()
    assert done == [SHORT_S] * 2


def test_graph_of_waiting_body(cupy):
    """A body that waits is refused with CUDA's reason, and the next body runs."""
    with pytest.raises(NotSupportedHere, match="not permitted when stream is capturing"):
        with cupy.device.capture():
            cupy.uncapturable()
    assert time_call(lambda: cupy.kernel(SHORT_S)).wall_s > 0.9 * SHORT_S


def test_graph_of_allocating_body(cupy):
    """A body that takes memory is refused: replays would write where others live by then."""
    with pytest.raises(NotSupportedHere, match="it takes new device memory"):
        with cupy.device.capture():
            cupy.cupy.ndarray(8)
    assert dict(cupy.cupy.machine.hooks) == {}


def test_graph_of_wrong_body(cupy):
    """An error of the body itself is not taken for one of the capture."""
    with pytest.raises(ZeroDivisionError), cupy.device.capture():
        _ = 1 / 0
    assert cupy.cupy.machine.capturing is None


# -- a real GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
def test_real_side_stream(cupy_gpu):
    """On a GPU too work on a non-blocking stream is waited for and seen."""
    lane = cupy_gpu.lane()
    timing = time_call(lambda: cupy_gpu.launch(lane, LONG_S), backend="cupy")
    assert timing.naive_s < 0.5 * timing.wall_s
    assert 0.5 * timing.wall_s < timing.device_s <= timing.wall_s


@pytest.mark.gpu
def test_real_idle_device(cupy_gpu):
    """On a GPU too a body of the host alone is the host's."""
    assert time_call(lambda: time.sleep(SHORT_S), backend="cupy").backends == ("host",)


def measure_graph(body, **plan):
    """The timing of a body whose work is captured and replayed."""
    measurement = Measurement(Plan(graph=True, **plan), HostClock())
    for _ in measurement.runs():
        body()
    return measurement.timing


def test_graph_samples(cupy):
    """--graph takes as many samples of the replay as of the body, each as long as its work."""
    timing = measure_graph(lambda: cupy.cupy.kernel(SHORT_S), repeat=3, warmup=1)
    assert len(timing.replays) == 3
    assert timing.replay_s > 0.9 * SHORT_S


def test_graph_of_the_host():
    """A body without device work has no graph, and is told so in one line."""
    with pytest.raises(NotSupportedHere, match="a graph needs work of one runtime"):
        measure_graph(lambda: None)


def test_device_reset_in_the_body(cupy, monkeypatch):
    """A device that is reset under its work gives one line; the next measurement works."""

    def gone(device):
        raise type("CUDARuntimeError", (RuntimeError,), {"status": 709})("context is destroyed")

    with monkeypatch.context() as patch:

        def body():
            cupy.kernel(SHORT_S)
            patch.setattr(cupy.cupy.machine, "synchronize", gone)

        with pytest.raises(DeviceError, match="waiting for cuda:0 failed: context is destroyed"):
            time_call(body)
        assert perfkit.last().stopped
    assert time_call(lambda: cupy.kernel(SHORT_S)).wall_s > 0.9 * SHORT_S
