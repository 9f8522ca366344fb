"""The tiers of a device: copies to and from it, its own memory, and what a launch costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from perfkit.devices.detect import devices_in_use
from perfkit.optional import loaded
from perfkit.records.base import Quality
from perfkit.records.tiers import Job, Target, TierProbe
from perfkit.tiers.samples import Samples, Surroundings, origin

__all__ = ["probe_devices"]

QUICK_BYTES, FULL_BYTES = 32 * 2**20, 256 * 2**20
LEAST, MOST = 5, 40
LAUNCHES = 50
QUICK_S = 0.15


class _Way(NamedTuple):
    """One copy to measure: nvbandwidth's words, counted bytes, and what does it and waits.
    `pinned`: None where the runtime decides. `seconds` reads a device clock, if there is one.
    """

    name: str
    nbytes: int
    copy: Callable[[], float | None]
    pinned: bool | None = None


class _Driver(Protocol):
    """What a runtime can do with `nbytes`. Ways that it does not have are left out."""

    name: str
    device: str

    def ways(self, nbytes: int) -> Iterator[_Way]:
        """Copies; each returns its seconds by the device's clock, or None."""

    def launch(self) -> Callable[[int], None]:
        """Gives so many of the smallest kernels to the device, and waits."""


def probe_devices(
    *,
    quick: bool = True,
    budget_s: float | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> list[TierProbe]:
    """Probes of each runtime that is imported and has a device; none without.

    Copies count the bytes that were asked for once, copies within the device twice (read and
    written). A device that fails gives a refused probe with the reason.
    """
    found: list[TierProbe] = []
    for device in devices_in_use():
        make = _DRIVERS.get(device.name)
        if make is None or not _is_there(device.name):
            continue
        name = ""
        tick(f"{device.name} device")
        try:
            driver = make()
            name = driver.device
            each_s = (budget_s / 6) if budget_s else QUICK_S * (1 if quick else 6)
            nbytes = QUICK_BYTES if quick else FULL_BYTES
            found += [_copy_probe(driver.name, name, way, each_s) for way in driver.ways(nbytes)]
            found.append(_launch_probe(driver.name, name, driver.launch(), each_s))
        except Exception as error:
            # A driver may fail in as many ways as there are drivers; the table is to stand.
            found.append(
                TierProbe.of(
                    probe="device.copy",
                    tier=f"{device.name} device",
                    target=Target(device=name),
                    quality=Quality(
                        status="refused",
                        reasons=(" ".join(f"{type(error).__name__}: {error}".split()),),
                    ),
                    **origin(),
                )
            )
    return found


def _is_there(backend: str) -> bool:
    """Has this imported runtime a device? It is set up for that, since its tiers are asked for."""
    module = loaded(backend)
    return backend != "torch" or bool(module and module.cuda.is_available())


def _copy_probe(backend: str, name: str, way: _Way, seconds: float) -> TierProbe:
    around, samples = Surroundings(), Samples()
    way.copy()
    end_s = time.perf_counter() + seconds
    clock = "host clock"
    while len(samples.clean) < LEAST or (time.perf_counter() < end_s and len(samples.clean) < MOST):
        start_s = time.perf_counter()
        told_s = way.copy()
        took_s = time.perf_counter() - start_s if told_s is None else told_s
        clock = "host clock" if told_s is None else "device clock"
        samples.add(way.nbytes / max(took_s, 1e-9), clean=True)
    inside = way.name == "device_local_copy"
    return TierProbe.of(
        probe="device.bandwidth" if inside else "device.copy",
        tier=f"{backend} device",
        target=Target(device=name),
        job=Job(
            kernel=way.name,
            size=way.nbytes // 2 if inside else way.nbytes,
            pinned=way.pinned,
            rules="counted twice: read and written" if inside else "",
        ),
        bandwidth_Bps=samples.summary(),
        io_bytes=way.nbytes * len(samples.clean),
        noise=around.noise(samples),
        quality=Quality(source=clock),
        **origin(),
    )


def _launch_probe(
    backend: str, name: str, launch: Callable[[int], None], seconds: float
) -> TierProbe:
    around, samples = Surroundings(), Samples()
    launch(LAUNCHES)
    end_s = time.perf_counter() + seconds
    while len(samples.clean) < LEAST or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        launch(LAUNCHES)
        samples.add((time.perf_counter() - start_s) / LAUNCHES, clean=True)
    return TierProbe.of(
        probe="device.launch",
        tier=f"{backend} device",
        target=Target(device=name),
        job=Job(kernel="launch_latency", items=LAUNCHES),
        latency_s=samples.summary(),
        noise=around.noise(samples),
        notes=("the smallest kernel, launched and waited for in a row; per launch",),
        **origin(),
    )


def _module(name: str) -> Any:
    """A runtime that is imported."""
    return loaded(name)


class _OpenCL:
    name = "opencl"

    def __init__(self) -> None:
        self._cl = _module("pyopencl")
        devices = [d for platform in self._cl.get_platforms() for d in platform.get_devices()]
        self._context = self._cl.Context(devices[:1])
        self.device = str(devices[0].name).strip()
        properties = self._cl.command_queue_properties.PROFILING_ENABLE
        self._queue = self._cl.CommandQueue(self._context, properties=properties)

    def _buffer(self, nbytes: int, flags: int = 0) -> Any:
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE | flags, nbytes)

    def ways(self, nbytes: int) -> Iterator[_Way]:
        import numpy as np

        host = np.ones(nbytes, dtype=np.uint8)
        here, there = self._buffer(nbytes), self._buffer(nbytes)
        pinned = self._buffer(nbytes, self._cl.mem_flags.ALLOC_HOST_PTR)
        flags = self._cl.map_flags.READ | self._cl.map_flags.WRITE
        mapped, _ = self._cl.enqueue_map_buffer(self._queue, pinned, flags, 0, (nbytes,), np.uint8)
        mapped[:] = 1
        for memory, is_pinned in ((host, False), (mapped, True)):
            yield _Way("host_to_device_memcpy_ce", nbytes, self._timed(here, memory), is_pinned)
            yield _Way("device_to_host_memcpy_ce", nbytes, self._timed(memory, here), is_pinned)
        yield _Way("device_local_copy", 2 * nbytes, self._timed(there, here))

    def _timed(self, to: Any, source: Any) -> Callable[[], float]:
        def copy() -> float:
            event = self._cl.enqueue_copy(self._queue, to, source)
            event.wait()
            return 1e-9 * float(event.profile.end - event.profile.start)

        return copy

    def launch(self) -> Callable[[int], None]:
        source = "__kernel void nothing(__global char *x) { }"
        kernel = self._cl.Kernel(self._cl.Program(self._context, source).build(), "nothing")
        buffer = self._buffer(64)

        def run(count: int) -> None:
            for _ in range(count):
                kernel(self._queue, (1,), (1,), buffer)
            self._queue.finish()

        return run


class _Jax:
    name = "jax"

    def __init__(self) -> None:
        self._jax = _module("jax")
        first = self._jax.devices()[0]
        self.device = f"{first.platform} {first.device_kind}"

    def ways(self, nbytes: int) -> Iterator[_Way]:
        import numpy as np

        host = np.ones(nbytes // 4, dtype=np.float32)
        device = self._jax.device_put(host).block_until_ready()
        double = self._jax.jit(lambda x: x * 2)
        double(device).block_until_ready()

        def to_device() -> None:
            self._jax.device_put(host, may_alias=False).block_until_ready()

        def to_host() -> None:
            # A copy even where device and host share their memory.
            np.array(device, copy=True)

        def within() -> None:
            double(device).block_until_ready()

        yield _Way("host_to_device_memcpy_ce", nbytes, to_device)
        yield _Way("device_to_host_memcpy_ce", nbytes, to_host)
        yield _Way("device_local_copy", 2 * nbytes, within)

    def launch(self) -> Callable[[int], None]:
        nothing = self._jax.jit(lambda x: x + 1)
        one = self._jax.device_put(1.0)

        def run(count: int) -> None:
            result = one
            for _ in range(count):
                result = nothing(one)
            result.block_until_ready()

        run(1)
        return run


class _CuPy:
    name = "cupy"

    def __init__(self) -> None:
        self._cupy = _module("cupy")
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self.device = self._cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def _timed(self, work: Callable[[], object]) -> Callable[[], float]:
        events = self._cupy.cuda.Event(), self._cupy.cuda.Event()

        def copy() -> float:
            with self._stream:
                events[0].record(self._stream)
                work()
                events[1].record(self._stream)
            events[1].synchronize()
            return 1e-3 * float(self._cupy.cuda.get_elapsed_time(*events))

        return copy

    def ways(self, nbytes: int) -> Iterator[_Way]:
        import numpy as np

        cupy = self._cupy
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        here, there = (cupy.empty(nbytes, dtype=np.uint8) for _ in range(2))
        for memory, is_pinned in ((np.ones(nbytes, np.uint8), False), (pinned, True)):
            memory[:] = 1
            to_device = self._timed(partial(here.set, memory, stream=self._stream))
            fetch = partial(here.get, stream=self._stream, out=memory, blocking=False)
            to_host = self._timed(fetch)
            yield _Way("host_to_device_memcpy_ce", nbytes, to_device, is_pinned)
            yield _Way("device_to_host_memcpy_ce", nbytes, to_host, is_pinned)
        yield _Way("device_local_copy", 2 * nbytes, self._timed(lambda: cupy.copyto(there, here)))

    def launch(self) -> Callable[[int], None]:
        kernel = self._cupy.RawKernel('extern "C" __global__ void nothing() { }', "nothing")

        def run(count: int) -> None:
            with self._stream:
                for _ in range(count):
                    kernel((1,), (1,), ())
            self._stream.synchronize()

        return run


class _Torch:
    name = "torch"

    def __init__(self) -> None:
        self._torch = _module("torch")
        self.device = self._torch.cuda.get_device_name(0)

    def _timed(self, work: Callable[[], object]) -> Callable[[], float]:
        cuda = self._torch.cuda
        events = [cuda.Event(enable_timing=True) for _ in range(2)]

        def copy() -> float:
            events[0].record()
            work()
            events[1].record()
            events[1].synchronize()
            return 1e-3 * float(events[0].elapsed_time(events[1]))

        return copy

    def ways(self, nbytes: int) -> Iterator[_Way]:
        torch = self._torch
        here, there = (torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
        for is_pinned in (False, True):
            memory = torch.ones(nbytes, dtype=torch.uint8, pin_memory=is_pinned)
            to_device = self._timed(partial(here.copy_, memory, non_blocking=True))
            to_host = self._timed(partial(memory.copy_, here, non_blocking=True))
            yield _Way("host_to_device_memcpy_ce", nbytes, to_device, is_pinned)
            yield _Way("device_to_host_memcpy_ce", nbytes, to_host, is_pinned)
        yield _Way("device_local_copy", 2 * nbytes, self._timed(lambda: there.copy_(here)))

    def launch(self) -> Callable[[int], None]:
        one = self._torch.ones(1, device="cuda")

        def run(count: int) -> None:
            for _ in range(count):
                one.add_(1)
            self._torch.cuda.synchronize()

        return run


_DRIVERS: dict[str, Callable[[], _Driver]] = {
    "opencl": _OpenCL,
    "jax": _Jax,
    "cupy": _CuPy,
    "torch": _Torch,
}
