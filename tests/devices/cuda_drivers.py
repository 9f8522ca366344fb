"""Drivers of CuPy and torch: CuPy on its stub anywhere, both for real where there is a GPU."""

import contextlib

import pytest

from perfkit.devices.base import Lane, Mark
from perfkit.devices.brackets import Place
from perfkit.devices.cupy import CuPyDevice
from perfkit.devices.torch import TorchDevice


class CuPyDriver:
    """Non-blocking streams. `cupy` is the stub or the real one."""

    no_graph = "cannot be captured"

    def __init__(self, cupy):
        self.cupy, self.device, self.streams = cupy, CuPyDevice(), []
        cupy.cuda.Event()

    def stream(self, number=0, **options):
        with self.cupy.cuda.Device(number):
            self.streams.append(self.cupy.cuda.Stream(**(options or {"non_blocking": True})))
        return self.streams[-1]

    def lane(self, number=0):
        return Lane("cupy", "stream", Place(number, self.stream(number)))

    def lanes_of_two_devices(self):
        return [self.lane(0), self.lane(1)]

    def launch(self, lane, seconds):
        with self.cupy.cuda.Device(lane.handle.device), lane.handle.stream:
            self.kernel(seconds)

    def kernel(self, seconds):
        """Work of about so many seconds on the current stream."""
        self.cupy.kernel(seconds)

    def wait(self, lane):
        lane.handle.stream.synchronize()

    def fail(self, lane):
        """A call that the runtime refuses."""
        self.cupy.cuda.Device(99).use()

    def untimed_mark(self):
        lane, event = self.lane(), self.cupy.cuda.Event(disable_timing=True)
        event.record(lane.handle.stream)
        return Mark(lane, event)

    def objects(self):
        cuda = self.cupy.cuda
        return [self.stream(), cuda.Event(), cuda.Device(0), self.cupy.ndarray(8)]

    def uncapturable(self):
        """A body that no graph can hold: it waits."""
        self.cupy.cuda.get_current_stream().synchronize()

    def hide_cache(self, monkeypatch):
        runtime = self.cupy.cuda.runtime
        monkeypatch.setattr(runtime, "getDeviceProperties", lambda number: {"l2CacheSize": 0})

    def hooks(self):
        """All that a trace may replace, to be compared before and after."""
        init = vars(self.cupy.cuda.Stream)["__init__"]
        return init, len(self.device.open_traces), dict(self.cupy.machine.hooks)

    def close(self):
        self.device.synchronize()
        self.cupy.machine.close()


class RealCuPyDriver(CuPyDriver):
    """On a GPU. Work is memory that is set over and over, which needs no compiler."""

    def __init__(self, cupy):
        super().__init__(cupy)
        self.size, self.turn_s = 2**28, 1.0
        self.memory = cupy.cuda.alloc(self.size)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        for _ in range(2):
            start.record()
            self.turn(20)
            end.record()
            end.synchronize()
            self.turn_s = cupy.cuda.get_elapsed_time(start, end) * 1e-3 / 20

    def turn(self, count):
        stream = self.cupy.cuda.get_current_stream()
        for _ in range(count):
            self.memory.memset_async(0, self.size, stream)

    def kernel(self, seconds):
        self.turn(max(1, int(seconds / self.turn_s)))

    def lanes_of_two_devices(self):
        if self.cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("one GPU is not two devices")
        return super().lanes_of_two_devices()

    def objects(self):
        cuda = self.cupy.cuda
        return [self.stream(), cuda.Event(), cuda.Device(0), self.cupy.empty(8)]

    def hide_cache(self, monkeypatch):
        pytest.skip("a real device tells its cache size")

    def hooks(self):
        return vars(self.cupy.cuda.Stream)["__init__"], len(self.device.open_traces)

    def close(self):
        self.device.synchronize()


class TorchDriver:
    """On a CUDA GPU. Work is torch's own spin kernel."""

    no_graph = "cannot be captured"
    CYCLES_PER_S = 1.5e9

    def __init__(self, torch):
        self.torch, self.device, self.streams = torch, TorchDevice(), []
        torch.zeros(1, device="cuda")

    def lane(self, number=0):
        self.streams.append(self.torch.cuda.Stream(number))
        return Lane("torch", "stream", Place(number, self.streams[-1]))

    def lanes_of_two_devices(self):
        if self.torch.cuda.device_count() < 2:
            pytest.skip("one GPU is not two devices")
        return [self.lane(0), self.lane(1)]

    def launch(self, lane, seconds):
        with self.torch.cuda.stream(lane.handle.stream):
            self.torch.cuda._sleep(int(seconds * self.CYCLES_PER_S))

    def wait(self, lane):
        lane.handle.stream.synchronize()

    def fail(self, lane):
        """A call that the runtime refuses."""
        self.torch.zeros(1, device="cuda:99")

    def untimed_mark(self):
        lane, event = self.lane(), self.torch.Event(device="cuda", enable_timing=False)
        event.record(lane.handle.stream)
        return Mark(lane, event)

    def objects(self):
        return [self.torch.zeros(3, device="cuda"), self.torch.cuda.Stream()]

    def uncapturable(self):
        """A body that no graph can hold: it waits."""
        self.torch.cuda.synchronize()

    def hide_cache(self, monkeypatch):
        pytest.skip("a real device tells its cache size")

    def hooks(self):
        return len(self.device.open_traces)

    def close(self):
        with contextlib.suppress(Exception):
            self.device.synchronize()
