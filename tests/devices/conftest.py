"""Drivers: what a test needs from a runtime to hold its adapter to the contract.

A driver makes lanes and gives them work of a wanted duration; the adapter under test is its
`device`. Durations are wishes: a busy machine makes work longer, so tests compare, never count
milliseconds.
"""

import sys
import time
from functools import cached_property

import pytest
from devices.cuda_drivers import CuPyDriver, RealCuPyDriver, TorchDriver
from devices.cupy_stub import CuPyStub

from perfkit.devices import thread as thread_module
from perfkit.devices.base import Lane, Mark
from perfkit.devices.cupy import CuPyDevice
from perfkit.devices.host import HostDevice
from perfkit.devices.jax import JaxDevice
from perfkit.devices.opencl import OpenCLDevice
from perfkit.devices.thread import Event, Stream, ThreadDevice
from perfkit.devices.torch import TorchDevice

KINDS = {
    "host": HostDevice,
    "thread": ThreadDevice,
    "opencl": OpenCLDevice,
    "jax": JaxDevice,
    "cupy": CuPyDevice,
    "cupy_gpu": CuPyDevice,
    "torch_gpu": TorchDevice,
}
ADAPTERS = [
    pytest.param(name, marks=pytest.mark.gpu) if name.endswith("_gpu") else name for name in KINDS
]
ASYNCHRONOUS = ADAPTERS[1:]
HAS_EVENTS = [
    pytest.param(name, marks=pytest.mark.gpu) if name.endswith("_gpu") else name
    for name, kind in KINDS.items()
    if kind.has_events
]
SEES_COMMANDS = [name for name, kind in KINDS.items() if kind.sees_commands and name != "host"]


class HostDriver:
    """The processor: nothing is asynchronous, so there are no lanes to drive."""

    no_graph = "no graphs"

    def __init__(self):
        self.device = HostDevice()

    def objects(self):
        import numpy as np

        return [np.zeros(3), np.float64(1)]

    def uncapturable(self):
        """Anything."""

    def hide_cache(self, monkeypatch):
        hide_host_cache(monkeypatch)

    def close(self):
        return None


class ThreadDriver:
    """Streams of the thread device. Work sleeps, so that it needs no core."""

    no_graph = "no graphs"

    def __init__(self):
        self.device = ThreadDevice()
        self.streams = []

    def uncapturable(self):
        """Anything."""

    def hide_cache(self, monkeypatch):
        hide_host_cache(monkeypatch)

    def stream(self, device="thread0"):
        self.streams.append(Stream(device=device))
        return self.streams[-1]

    def lane(self):
        stream = self.stream()
        return Lane("thread", stream.name, stream)

    def lanes_of_two_devices(self):
        return [Lane("thread", s.name, s) for s in (self.stream(), self.stream("thread1"))]

    def launch(self, lane, seconds):
        lane.handle.launch(time.sleep, seconds)

    def copy(self, lane, kind, nbytes):
        lane.handle.copy(bytearray(nbytes), bytearray(nbytes), kind=kind)

    def wait(self, lane):
        lane.handle.synchronize()

    def fail(self, lane):
        """A call that the runtime refuses."""
        lane.handle.copy(3, 4)

    def untimed_mark(self):
        event, lane = Event(timing=False), self.lane()
        event.record(lane.handle)
        return Mark(lane, event)

    def objects(self):
        return [self.stream(), Event()]

    def hooks(self):
        """All that a trace may replace, to be compared before and after."""
        return list(thread_module._traces)

    def close(self):
        for stream in self.streams:
            stream.close()


class OpenCLDriver:
    """Queues on PoCL, or on the first device where that is not installed."""

    SOURCE = """
    __kernel void spin(__global uint *out, uint turns) {
        uint x = out[0];
        for (uint i = 0; i < turns; i++) x = x * 1664525u + 1013904223u;
        out[0] = x;
    }
    """

    no_graph = "no graphs"

    def uncapturable(self):
        """Anything."""

    def hide_cache(self, monkeypatch):
        hide_host_cache(monkeypatch)

    def __init__(self):
        import pyopencl as cl

        self.cl, self.device, self.queues = cl, OpenCLDevice(), []
        platforms = sorted(cl.get_platforms(), key=lambda p: "Portable" not in p.name)
        self.hardware = platforms[0].get_devices()[0]
        self.context = cl.Context([self.hardware])
        self.kernel = cl.Program(self.context, self.SOURCE).build().spin
        self.word = self.buffer(4)
        self.turns_per_s = self._calibrate()

    def _calibrate(self):
        queue, turns = self.queue(), 2_000_000
        self.turn(queue, 1).wait()
        events = [self.turn(queue, turns) for _ in range(12)]
        queue.finish()
        return turns / min((e.profile.end - e.profile.start) * 1e-9 for e in events)

    def buffer(self, nbytes):
        return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, nbytes)

    @cached_property
    def large(self):
        """32 MiB on the device and as many on the host."""
        return self.buffer(2**25), bytearray(2**25)

    def queue(self, *, timed=True, context=None, device=None):
        kind = self.cl.command_queue_properties.PROFILING_ENABLE if timed else 0
        queue = self.cl.CommandQueue(context or self.context, device, properties=kind)
        self.queues.append(queue)
        return queue

    def turn(self, queue, turns):
        import numpy as np

        return self.kernel(queue, (1,), (1,), self.word, np.uint32(turns))

    def spin(self, queue, seconds):
        """A kernel on one core for about `seconds`; the event of its command."""
        return self.turn(queue, max(1, int(seconds * self.turns_per_s)))

    def lane(self, **options):
        return Lane("opencl", "queue", self.queue(**options))

    def lanes_of_two_devices(self):
        cl = self.cl
        halves = self.hardware.create_sub_devices([cl.device_partition_property.EQUALLY, 1])[:2]
        if len(halves) < 2:
            pytest.skip("one processor cannot be two devices")
        context = cl.Context(halves)
        return [self.lane(context=context, device=half) for half in halves]

    def launch(self, lane, seconds):
        self.spin(lane.handle, seconds)

    def copy(self, lane, kind, nbytes):
        """A blocking copy, which is what pyopencl does unless told otherwise."""
        host, device = bytearray(nbytes), self.buffer(nbytes)
        ends = {"h2d": (device, host), "d2h": (host, device)}[kind]
        self.cl.enqueue_copy(lane.handle, *ends)

    def wait(self, lane):
        lane.handle.finish()

    def fail(self, lane):
        """A call that the runtime refuses."""
        self.cl.enqueue_nd_range_kernel(lane.handle, self.kernel, (0, 0, 0, 0, 0, 0), None)

    def untimed_mark(self):
        return self.device.mark(self.lane(timed=False))

    def objects(self):
        import pyopencl.array

        queue = self.queue()
        return [queue, self.word, self.context, pyopencl.array.zeros(queue, 3, "f4")]

    def hooks(self):
        """All that a trace may replace, to be compared before and after."""
        module = self.cl._cl
        holders = [self.cl, module, *(kind for kind in vars(module).values() if is_class(kind))]
        return {
            (holder.__name__, name): id(value)
            for holder in holders
            for name, value in vars(holder).items()
        }

    def close(self):
        for queue in self.queues:
            queue.finish()
        self.queues.clear()


class JaxDriver:
    """JAX on the processor: products of matrices, since it does short work inside the call."""

    no_graph = "no graphs"

    def __init__(self):
        import jax
        import jax.numpy as jnp

        self.jax, self.device = jax, JaxDevice()
        self.matrix, self.narrow = jnp.full((300, 300), 1 / 300), jnp.ones((10, 300))
        self.spin = jax.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x))
        self.spin(1, self.matrix).block_until_ready()
        start_s = time.perf_counter()
        self.spin(100, self.matrix).block_until_ready()
        self.turns_per_s = 100 / (time.perf_counter() - start_s)
        self.device.synchronize()

    def uncapturable(self):
        """Anything."""

    def hide_cache(self, monkeypatch):
        hide_host_cache(monkeypatch)

    def lane(self):
        return self.device.lanes()[0]

    def launch(self, lane, seconds):
        self.spin(max(1, int(seconds * self.turns_per_s)), self.matrix)

    def wait(self, lane):
        self.spin(1, self.matrix).block_until_ready()

    def fail(self, lane):
        """A call that the runtime refuses."""
        self.spin(1, self.narrow)

    def objects(self):
        return [self.matrix, self.spin]

    def hooks(self):
        """All that a trace may replace, to be compared before and after."""
        from jaxlib import _jax

        holders = [_jax, _jax.ArrayImpl]
        return {(h.__name__, n): id(v) for h in holders for n, v in vars(h).items()}

    def close(self):
        self.device.synchronize()


def is_class(value):
    return isinstance(value, type)


def hide_host_cache(monkeypatch):
    monkeypatch.setattr("perfkit.devices.host.last_level_cache_bytes", lambda: None)


@pytest.fixture(scope="session")
def opencl_driver():
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        cl.get_platforms()
    except cl.LogicError as error:
        pytest.skip(f"no OpenCL platform here: {error}")
    return OpenCLDriver()


@pytest.fixture
def opencl(opencl_driver):
    yield opencl_driver
    opencl_driver.close()


@pytest.fixture(scope="session")
def jax_driver():
    pytest.importorskip("jax", reason="jax is not installed")
    return JaxDriver()


@pytest.fixture
def jax(jax_driver):
    yield jax_driver
    jax_driver.close()


@pytest.fixture
def thread():
    driver = ThreadDriver()
    yield driver
    driver.close()


@pytest.fixture
def host():
    return HostDriver()


@pytest.fixture
def install_cupy(monkeypatch):
    """Put a stub where `import cupy` would be; on its machine device contexts are asked for."""

    def install(stub):
        monkeypatch.setitem(sys.modules, "cupy", stub)
        monkeypatch.setattr("perfkit.devices.cupy.has_context", stub.has_context)
        return stub

    return install


@pytest.fixture
def cupy(install_cupy):
    driver = CuPyDriver(install_cupy(CuPyStub()))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def cupy_gpu():
    try:
        import cupy as real
    except ImportError as error:
        pytest.skip(f"no CuPy here: {error}")
    probe = CuPyDevice().probe()
    if not probe.available:
        pytest.skip(probe.reason)
    return RealCuPyDriver(real)


@pytest.fixture(scope="session")
def torch_gpu():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip(TorchDevice().probe().reason)
    return TorchDriver(torch)


@pytest.fixture(params=ADAPTERS)
def adapter(request):
    """A driver of each adapter, the synchronous one too."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=ASYNCHRONOUS)
def driver(request):
    """A driver of each adapter whose calls return before the work ends."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def lane(driver):
    """A lane that is there before the trace is opened, as a measurement finds it."""
    return driver.lane()


@pytest.fixture
def trace(driver, lane):
    """An open trace of the driver's runtime on the host's clock."""
    with driver.device.trace(time.perf_counter) as open_trace:
        yield open_trace
