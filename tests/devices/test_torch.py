"""torch: synchronous on a processor, never set up by a measurement, watched once it is."""

import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from perfkit.devices.base import Lane
from perfkit.devices.brackets import Place
from perfkit.devices.detect import devices_in_use
from perfkit.devices.torch import TorchDevice
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.measure.timing import time_call

LONG_S = 0.2


def run(code):
    """What a fresh Python prints when it runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


def test_timing_sets_up_nothing():
    """Timing torch on the processor leaves CUDA alone, also when torch is imported inside."""
    code = (
        "import perfkit\n"
        "perfkit.time_call(lambda: __import__('torch').ones(3))\n"
        "import torch\n"
        "timing = perfkit.time_call(lambda: torch.ones(3) + 1, repeat=3, budget_s=0.1)\n"
        "print(torch.cuda.is_initialized(), timing.backends, timing.verdict)"
    )
    assert run(code) == "False ('host',) synchronous"


def test_processor_is_synchronous():
    """A cell of torch on the processor is synchronous: wall and naive time are the same."""
    x = torch.ones(300, 300)
    timing = time_call(lambda: x @ x, repeat=5, budget_s=0.5)
    assert timing.verdict == "synchronous" and timing.wall_s == timing.naive_s


def test_nothing_before_set_up():
    """A torch that has set up nothing is not in use, and every question has an empty answer."""
    printed = run(
        "import torch\n"
        "from perfkit.devices.detect import devices_in_use\n"
        "from perfkit.devices.torch import TorchDevice\n"
        "device = TorchDevice()\n"
        "print(devices_in_use(), device.asynchronous, device.probe().available, device.lanes(),\n"
        "      list(device.in_use()), device.memory(), device.synchronize(),\n"
        "      device.allocations(), torch.cuda.is_initialized(), device.probe().reason)"
    )
    assert printed.startswith("() False False () [] None None 0 False this torch is built for") or (
        printed.endswith("torch has not set up cuda yet")
    )


def test_no_graph_before_set_up(monkeypatch):
    """Graphs need CUDA, and asking for one does not set it up."""
    monkeypatch.setattr(TorchDevice, "asynchronous", False)
    with pytest.raises(NotSupportedHere, match="no graphs here"):
        with TorchDevice().capture():
            pytest.fail("nothing to replay")


@pytest.mark.parametrize("module", [None, ModuleType("torch")])
def test_probe_without_torch(monkeypatch, module):
    """A torch that is not imported, half imported or too old gives a reason."""
    if module is None:
        monkeypatch.delitem(sys.modules, "torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", module)
    probe = TorchDevice().probe()
    assert not probe.available and "not imported" in probe.reason
    assert not TorchDevice().owns(3)


def test_owns_no_processor_tensors():
    """Tensors of the processor are the host's."""
    assert not TorchDevice().owns(torch.ones(3)) and not TorchDevice().owns(torch)
    assert not TorchDevice().owns(torch.ones(3, device="meta"))


# -- torch.accelerator on the stub of CUDA -----------------------------------------------------


class Accelerator:
    """torch's surface on streams of the CuPy stub; `set_up` is torch.cuda.is_initialized."""

    def __init__(self, cuda):
        self.cuda, self.set_up, self.synchronized = cuda, True, []
        self.allocated = 0

        class Stream:
            def __init__(self, number=0):
                with cuda.Device(number):
                    self.inner = cuda.Stream(non_blocking=True)
                self.device_index, self.stream_id = number, self.inner.ptr

            def query(self):
                with cuda.Device(self.device_index):
                    return self.inner.done

        class Event:
            def __init__(self, device, enable_timing):
                self.number = int(device.partition(":")[2])
                with cuda.Device(self.number):
                    self.inner = cuda.Event(disable_timing=not enable_timing)

            def record(self, stream):
                with cuda.Device(self.number):
                    self.inner.record(stream.inner)

            def query(self):
                return self.inner.done

            def elapsed_time(self, end):
                return cuda.get_elapsed_time(self.inner, end.inner)

        self.Stream, self.Event = Stream, Event
        self.current = [Stream(0), Stream(1)]

    def module(self):
        """What stands for torch in sys.modules."""
        stub = ModuleType("torch")
        stub.Event, stub._C = self.Event, SimpleNamespace(_cuda_hasPrimaryContext=lambda n: True)
        stub.cuda = SimpleNamespace(Stream=self.Stream, is_initialized=lambda: self.set_up)
        stub.accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            is_available=lambda: True,
            device_count=lambda: 2,
            current_stream=lambda number: self.current[number],
            synchronize=self.synchronize,
            memory_allocated=lambda number: 100,
            max_memory_allocated=lambda number: 200 + number,
            reset_peak_memory_stats=lambda number: None,
            memory_stats=lambda number: {"allocated_bytes.all.allocated": self.allocated},
        )
        return stub

    def synchronize(self, number):
        self.synchronized.append(number)
        self.cuda.Device(number).synchronize()

    def sleep(self, stream, seconds):
        """A kernel on a stream of torch's."""
        machine = sys.modules["cupy"].machine
        with self.cuda.Device(stream.device_index):
            machine.launch(stream.inner, lambda: time.sleep(seconds))


@pytest.fixture
def accelerator(cupy, monkeypatch):
    fake = Accelerator(cupy.cupy.cuda)
    monkeypatch.setitem(sys.modules, "torch", fake.module())
    return fake


def test_watched_once_set_up(accelerator):
    """Once somebody has set CUDA up torch is in use, and not before."""
    assert "torch" in [device.name for device in devices_in_use()]
    accelerator.set_up = False
    assert "torch" not in [device.name for device in devices_in_use()]


def test_every_device_is_drained(accelerator):
    """All devices are waited for, and the work of current and side streams is seen."""
    side = accelerator.Stream(1)
    timing = time_call(lambda: accelerator.sleep(side, LONG_S), backend="torch")
    assert set(accelerator.synchronized) == {0, 1}
    assert timing.backends == ("torch",)
    assert 0.9 * LONG_S < timing.device_s <= timing.wall_s


def test_hidden_stream_is_drained(accelerator):
    """A stream made inside the body is drained; what it allocates tells that torch worked."""

    def body():
        accelerator.allocated += 1
        accelerator.sleep(accelerator.Stream(0), LONG_S)

    timing = time_call(body, backend="torch")
    assert timing.backends == ("torch",) and timing.wall_s > 0.9 * LONG_S
    assert timing.device_s is None


def test_lanes_of_torch(accelerator):
    """Current streams come first, each stream is listed once."""
    side = accelerator.Stream(0)
    lanes = TorchDevice().lanes()
    assert [lane.name for lane in lanes[:2]] == ["cuda:0 current stream", "cuda:1 current stream"]
    assert sum(lane.handle.stream is side for lane in lanes) == 1
    assert len({lane.name for lane in lanes}) == len(lanes)


def test_marks_without_answer(accelerator):
    """Marks of two devices, not reached or without timing have no time, each for its reason."""
    device = TorchDevice()
    one, other = (Lane("torch", str(s), Place(s.device_index, s)) for s in accelerator.current)
    start = device.mark(one)
    accelerator.sleep(one.handle.stream, LONG_S)
    end = device.mark(one)
    with pytest.raises(DeviceError, match="end mark is not reached"):
        device.elapsed_s(start, end)
    with pytest.raises(DeviceError, match="two devices"):
        device.elapsed_s(start, device.mark(other))
    device.synchronize()
    assert device.elapsed_s(start, end) > 0.9 * LONG_S


def test_memory_and_peak(accelerator):
    """Memory is the sum over devices, the peak the highest of one."""
    assert TorchDevice().memory() == (200, 201)


@pytest.mark.gpu
def test_real_side_stream(torch_gpu):
    """On a GPU work on a side stream is waited for and seen."""
    lane = torch_gpu.lane()
    timing = time_call(lambda: torch_gpu.launch(lane, LONG_S), backend="torch")
    assert timing.naive_s < 0.5 * timing.wall_s
    assert 0.5 * timing.wall_s < timing.device_s <= timing.wall_s
