"""Lesson 31: a small array device that really is asynchronous, and the lesson's questions.

`open_device` gives OpenCL on PoCL where it can be had, which makes any x86 processor a device with
queues and events, and perfkit's own thread device elsewhere. Both have the same arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from perfkit.errors import MissingDependency
from perfkit.lessons.checks import Wrong, question
from perfkit.optional import require

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "EXPRESSIONS",
    "STEPS",
    "Array",
    "ArrayDevice",
    "follow",
    "host_work",
    "open_device",
    "waits",
]

PRODUCT = """
__kernel void product(const int n, __global const float *a, __global const float *b,
                      __global float *c) {
    const int row = get_global_id(0);
    for (int col = 0; col < n; ++col) {
        float sum = 0.0f;
        for (int k = 0; k < n; ++k)
            sum += a[row * n + k] * b[k * n + col];
        c[row * n + col] = sum;
    }
}
"""


class Array:
    """A square matrix of float32 on a device. What needs its values waits for them."""

    def __init__(self, device: ArrayDevice, handle: Any, n: int, done: Callable[[], bool]) -> None:
        self._device, self._handle, self._done = device, handle, done
        self.shape = (n, n)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return 4 * self.shape[0] * self.shape[1]

    @property
    def ready(self) -> bool:
        """Has the work that makes it ended? Asked without waiting."""
        return self._done()

    def read(self) -> np.ndarray:
        """A copy of the values on the host."""
        return self._device.fetch(self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.read() if dtype is None else self.read().astype(dtype)

    def __float__(self) -> float:
        return float(self.read()[0, 0])

    def __bool__(self) -> bool:
        return float(self) > 0

    def __matmul__(self, other: Array) -> Array:
        return self._device.product(self, other)

    def __str__(self) -> str:
        return str(self.read())

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, float32, on {self._device.name})"


class ArrayDevice(Protocol):
    """Holds arrays and multiplies them, each command behind the one before."""

    name: str

    def array(self, n: int) -> Array:
        """An n by n matrix whose elements are all 1/n, so that its powers are itself."""

    def product(self, a: Array, b: Array) -> Array:
        """Give the device a matrix product to do, and return at once."""

    def fetch(self, array: Array) -> np.ndarray:
        """Copy to the host, which waits for all that came before."""

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""


def open_device() -> ArrayDevice:
    """PoCL if pyopencl finds it, else the thread device."""
    try:
        return _OpenCLArrays()
    except (MissingDependency, LookupError):
        return _ThreadArrays()


class _OpenCLArrays:
    def __init__(self) -> None:
        cl = self._cl = require("pyopencl", "lesson 31")
        device = _pocl_device(cl)
        self.name = f"OpenCL (PoCL) on {device.name}"
        self._context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(self._context, properties=profiling)
        self._kernel = cl.Kernel(cl.Program(self._context, PRODUCT).build(), "product")

    def array(self, n: int) -> Array:
        array = self._empty(n)
        value = require("numpy", "lesson 31").float32(1 / n)
        cl, handle = self._cl, array._handle
        return self._made(array, cl.enqueue_fill_buffer(self._queue, handle, value, 0, 4 * n * n))

    def product(self, a: Array, b: Array) -> Array:
        n = a.shape[0]
        result = self._empty(n)
        width = require("numpy", "lesson 31").int32(n)
        arguments = (width, a._handle, b._handle, result._handle)
        return self._made(result, self._kernel(self._queue, (n,), None, *arguments))

    def fetch(self, array: Array) -> np.ndarray:
        values: np.ndarray = require("numpy", "lesson 31").empty(array.shape, "float32")
        self._cl.enqueue_copy(self._queue, values, array._handle)
        return values

    def synchronize(self) -> None:
        self._queue.finish()

    def _empty(self, n: int) -> Array:
        buffer = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, 4 * n * n)
        return Array(self, buffer, n, lambda: True)

    def _made(self, array: Array, event: Any) -> Array:
        complete = self._cl.command_execution_status.COMPLETE
        array._done = lambda: event.command_execution_status == complete
        return array


def _pocl_device(cl: Any) -> Any:
    for platform in cl.get_platforms():
        if "Portable Computing Language" in platform.name:
            return platform.get_devices()[0]
    raise LookupError("no PoCL among the OpenCL platforms")


class _ThreadArrays:
    def __init__(self) -> None:
        from perfkit.devices.thread import Stream

        self.name = "perfkit's thread device"
        self._stream = Stream("arrays")

    def array(self, n: int) -> Array:
        numpy = require("numpy", "lesson 31")
        return self._later(n, "fill", lambda: numpy.full((n, n), 1 / n, "float32"))

    def product(self, a: Array, b: Array) -> Array:
        return self._later(
            a.shape[0], "product", lambda: _slow_product(a._handle["values"], b._handle["values"])
        )

    def fetch(self, array: Array) -> np.ndarray:
        self.synchronize()
        values: np.ndarray = array._handle["values"].copy()
        return values

    def synchronize(self) -> None:
        self._stream.synchronize()

    def _later(self, n: int, name: str, make: Callable[[], np.ndarray]) -> Array:
        box: dict[str, np.ndarray] = {}
        self._stream.launch(lambda: box.update(values=make()), name=name)
        return Array(self, box, n, lambda: "values" in box)


def _slow_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row, so that it takes as long as a plain loop in OpenCL does."""
    numpy = require("numpy", "lesson 31")
    product: np.ndarray = numpy.stack([(row[:, None] * b).sum(axis=0) for row in a])
    return product


def host_work(seconds: float) -> None:
    """Stands for what a training loop does on the host between two steps, without using a core
    that the device of this lesson may need.
    """
    time.sleep(seconds)


# -- exercise 31.1: seven lines in order -------------------------------------------------------

STEPS = ("warm up", "drain", "start", "call", "drain", "stop", "report")
LAUNCH, COMPILE, WORK = 1, 300, 50


def follow(order: Iterable[str]) -> int | None:
    """What a stopwatch would report if the lines ran in this order on a device whose clock is
    moved by hand: a launch takes 1 ms of the host, a first call 300 ms more, the work 50 ms.

    None if it never reports. The truth is 51 ms.
    """
    now, empty_at, compiled = 0, 0, False
    started = stopped = None
    for step in order:
        if step in ("warm up", "call"):
            now += LAUNCH
            empty_at = max(now, empty_at) + WORK + (0 if compiled else COMPILE)
            compiled = True
        elif step == "drain":
            now = max(now, empty_at)
        elif step == "start":
            started = now
        elif step == "stop":
            stopped = now
        elif step == "report":
            return None if started is None or stopped is None else stopped - started
    return None


@question("31.1")
def judge_order(order: Callable[[], Iterable[str]]) -> str:
    """The seven lines must report 51 ms, each step used as often as it is given."""
    given = list(order())
    if sorted(given) != sorted(STEPS):
        raise Wrong(f"use each of these once: {', '.join(STEPS)} (drain is there twice)")
    reading = follow(given)
    if reading is None:
        raise Wrong("it reports before it has started and stopped")
    truth = LAUNCH + WORK
    if reading == truth:
        return f"It reports {truth} ms: 1 for the launch, 50 for the work."
    if "call" not in given[given.index("start") : given.index("stop")]:
        raise Wrong("the call is not between start and stop")
    if reading < truth:
        raise Wrong(f"it reports {reading} ms: nobody waited for the call before the stop")
    if given.index("warm up") > given.index("start"):
        raise Wrong(f"it reports {reading} ms: the first call, with its compiling, is inside")
    raise Wrong(f"it reports {reading} ms: the warm-up was still running when the clock started")


# -- exercise 31.2: which expressions wait -----------------------------------------------------

EXPRESSIONS: dict[str, Callable[[Array], object]] = {
    "y.shape": lambda y: y.shape,
    "float(y)": float,
    "str(y)": str,
    "y @ y": lambda y: y @ y,
    "bool(y)": bool,
    "y.nbytes": lambda y: y.nbytes,
    "np.asarray(y)": lambda y: require("numpy", "lesson 31").asarray(y),
    "y.ready": lambda y: y.ready,
}


def waits(device: ArrayDevice, expression: str, n: int = 448) -> bool:
    """Does the expression wait for `y`? Told by whether y is ready right after it, not by time."""
    device.synchronize()
    x = device.array(n)
    y = x @ x @ x @ x
    EXPRESSIONS[expression](y)
    waited = y.ready
    device.synchronize()
    return waited


@question("31.2")
def judge_waiting(answer: Callable[[], Iterable[str]]) -> str:
    """The set of expressions that wait, found out on the device itself."""
    given = set(answer())
    unknown = given - EXPRESSIONS.keys()
    if unknown:
        raise Wrong(f"{sorted(unknown)} are not among {', '.join(EXPRESSIONS)}")
    device = open_device()
    (device.array(384) @ device.array(384)).read()
    truth = {expression for expression in EXPRESSIONS if waits(device, expression)}
    if given == truth:
        return "What needs a value waits; shape, size and further work do not."
    missed, extra = sorted(truth - given), sorted(given - truth)
    parts = [f"{', '.join(missed)} wait too" if missed else ""]
    parts += [f"after {', '.join(extra)} the work was still running" if extra else ""]
    raise Wrong("; ".join(filter(None, parts)))
