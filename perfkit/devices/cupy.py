"""CuPy: asynchronous on CUDA, with streams and events; nothing tells of single kernels.

Nothing here sets up a device. Only devices that the process has set up itself are watched; on them
everything is drained, by whatever library it was given.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from perfkit.devices.base import Clock, Flush, Graph, Lane, Mark, Memory, Probe
from perfkit.devices.brackets import BracketTrace, Place
from perfkit.devices.cuda import has_context
from perfkit.devices.kineto import can_profile, profiled
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.intervals import Interval
from perfkit.optional import loaded, require

__all__ = ["CuPyDevice"]

REASONS = {35: "no NVIDIA driver, or one too old for this CuPy", 100: "no CUDA device here"}
"""By the status of CUDA's error: cudaErrorInsufficientDriver, cudaErrorNoDevice."""
GONE = (400, 709)
"""cudaErrorInvalidResourceHandle, cudaErrorContextIsDestroyed."""
LEGACY, PER_THREAD = 1, 2
"""Pointers that stand for the default streams; 0 is another word for LEGACY."""


class CuPyDevice:
    """Adapter of CuPy. All streams of the devices that are in use are watched."""

    name = "cupy"
    has_events = True
    sees_commands = sees_waits = False

    def __init__(self) -> None:
        self.open_traces: list[BracketTrace] = []
        self._allocations = self._hooks = self._made = 0

    @property
    def asynchronous(self) -> bool:
        """Only where there is a driver and a device: a CuPy that cannot run is not watched."""
        return not self._obstacle()

    def _obstacle(self) -> str:
        cuda = _cuda()
        if cuda is None:
            return "cupy is not imported in this kernel"
        try:
            # Counting devices loads the driver and sets up none of them.
            return "" if cuda.runtime.getDeviceCount() else REASONS[100]
        except Exception as error:
            return REASONS.get(_status(error) or 0, f"cupy: {_line(error)}")

    @property
    def has_profile(self) -> bool:
        """Kernels are seen one by one where torch's profiler knows CUDA."""
        return can_profile()

    def profile(self, clock: Clock) -> AbstractContextManager[list[Interval]]:
        """Kernels and copies of the whole process, from torch's profiler."""
        return profiled(clock)

    def probe(self) -> Probe:
        """Is CuPy imported, and what does its runtime say."""
        reason = self._obstacle()
        if reason:
            return Probe(available=False, reason=reason)
        runtime = _cuda().runtime
        try:
            every = [runtime.getDeviceProperties(n) for n in range(runtime.getDeviceCount())]
            return Probe(available=True, devices=tuple(one["name"].decode() for one in every))
        except Exception as error:
            return Probe(available=False, reason=f"cupy: {_line(error)}")

    def owns(self, obj: object) -> bool:
        """Anything of CuPy's own types."""
        return type(obj).__module__.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")

    def in_use(self) -> Sequence[int]:
        """Devices that this process has set up."""
        cuda = _cuda()
        try:
            count = cuda.runtime.getDeviceCount() if cuda else 0
        except Exception:
            count = 0
        # ROCm does not tell which devices are set up.
        return [number for number in range(count) if cuda.runtime.is_hip or has_context(number)]

    def lanes(self) -> Sequence[Lane]:
        """The default, per-thread and current streams of each device, and all others that live.
        CuPy keeps no list of them, so the garbage collector is asked.
        """
        found: dict[tuple[int, int], Place] = {}
        for place in self._places():
            pointer = 0 if place.stream.ptr == LEGACY else place.stream.ptr
            found.setdefault((place.device, pointer), place)
        lanes = tuple(_named(found))
        for trace in self.open_traces:
            trace.lanes = lanes
        return lanes

    def _places(self) -> Iterator[Place]:
        devices = self.in_use()
        if not devices:
            return
        cuda = _cuda()
        for number in devices:
            yield Place(number, cuda.Stream.null)
            yield Place(number, cuda.Stream.ptds)
            yield Place(number, cuda.get_current_stream(number))
        kinds = (cuda.Stream, getattr(cuda, "ExternalStream", cuda.Stream))
        for stream in [obj for obj in gc.get_objects() if issubclass(type(obj), kinds)]:
            # A stream whose making failed has no pointer.
            if getattr(stream, "ptr", 0) > PER_THREAD:
                place = self._place(stream)
                if place.device in devices:
                    yield place

    @staticmethod
    def _place(stream: Any) -> Place:
        """An external stream may not know its device; then it is taken to be on the current one."""
        number = stream.device_id
        return Place(_cuda().runtime.getDevice() if number < 0 else number, stream)

    def default_lane(self, number: int) -> Lane:
        """The stream that synchronises with all but non-blocking ones."""
        return Lane("cupy", f"cuda:{number} default stream", Place(number, _cuda().Stream.null))

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Wait for every device of the lanes: all of its streams, unknown ones too."""
        given = None if lanes is None else {lane.handle.device for lane in lanes}
        for number in sorted(self.in_use() if given is None else given):
            try:
                _cuda().Device(number).synchronize()
            except Exception as error:
                raise DeviceError(
                    f"cupy: waiting for cuda:{number} failed: {_line(error)}"
                ) from error

    def mark(self, lane: Lane) -> Mark:
        """Record an event on the lane's stream."""
        cuda = require("cupy", "cupy marks").cuda
        try:
            with cuda.Device(lane.handle.device):
                event = cuda.Event()
                event.record(lane.handle.stream)
        except Exception as error:
            if _status(error) in GONE:
                raise DeviceError(
                    f"the stream of {lane.name} was destroyed before its event: keep it alive"
                ) from error
            raise DeviceError(f"no event on {lane.name}: {_line(error)}") from error
        return Mark(lane, event)

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Seconds between two reached marks of one device, on one stream or two."""
        if start.lane.handle.device != end.lane.handle.device:
            raise DeviceError("the marks are on two devices: take a pair of marks on each")
        for name, mark in (("start", start), ("end", end)):
            if not self.is_reached(mark):
                raise DeviceError(f"the {name} mark is not reached yet: synchronize first")
        try:
            milliseconds = _cuda().get_elapsed_time(start.event, end.event)
        except Exception as error:
            if _status(error) in GONE:
                raise DeviceError(
                    "an event of the marks was made with disable_timing=True, or never recorded: "
                    "it has no time"
                ) from error
            raise DeviceError(f"no time between the marks: {_line(error)}") from error
        return float(milliseconds) * 1e-3

    def is_reached(self, mark: Mark) -> bool:
        """Has the mark's event happened?"""
        try:
            return bool(mark.event.done)
        except Exception as error:
            raise DeviceError(f"the event on {mark.lane.name} failed: {_line(error)}") from error

    def is_idle(self, lane: Lane) -> bool:
        """Is the lane empty? A stream that is gone is."""
        try:
            with _cuda().Device(lane.handle.device):
                return bool(lane.handle.stream.done)
        except Exception:
            return True

    def memory(self) -> Memory | None:
        """Bytes in use of the default pool, over all devices. Pinned memory is the host's and is
        not counted; the pool keeps no peak.
        """
        used, devices = 0, self.in_use()
        try:
            for number in devices:
                with _cuda().Device(number):
                    used += _cupy().get_default_memory_pool().used_bytes()
        except Exception:
            return None
        return Memory(used_bytes=used) if devices else None

    def trace(self, clock: Clock) -> BracketTrace:
        """A bracket of events for each lane."""
        return BracketTrace(self, clock)

    @contextmanager
    def observed(self, made: Callable[[Lane], None]) -> Iterator[None]:
        """Tell `made` of streams that are made, and count what the memory pools give."""
        cuda = require("cupy", "a CuPy trace").cuda
        original = vars(cuda.Stream)["__init__"]

        def init(stream: Any, *args: Any, **kwargs: Any) -> None:
            original(stream, *args, **kwargs)
            if stream.ptr > PER_THREAD:
                place = self._place(stream)
                self._made += 1
                made(Lane("cupy", f"cuda:{place.device} new stream {self._made}", place))

        with self._allocation_hook(cuda.MemoryHook):
            cuda.Stream.__init__ = init
            try:
                yield
            finally:
                cuda.Stream.__init__ = original

    def _allocation_hook(self, base: type) -> Any:
        def count(hook: Any, **_: Any) -> None:
            self._allocations += 1

        self._hooks += 1
        return type(
            "AllocationHook",
            (base,),
            {"name": f"perfkit {self._hooks}", "malloc_preprocess": count},
        )()

    def allocations(self) -> int:
        """Requests to the memory pools while a trace was open on the thread that asked."""
        return self._allocations

    def flush_cache(self) -> Flush:
        """Fill memory of twice the L2 cache, on each device."""
        flushes = [Flush(0, 0)]
        for number in self.in_use():
            cuda = _cuda()
            cache_bytes = cuda.runtime.getDeviceProperties(number).get("l2CacheSize")
            if not cache_bytes:
                raise NotSupportedHere(f"--cold: cuda:{number} does not tell its cache size")
            flush = Flush(2 * cache_bytes, cache_bytes)
            flushes.append(flush)
            with cuda.Device(number) as device:
                cuda.alloc(flush.nbytes).memset(0, flush.nbytes)
                device.synchronize()
        return max(flushes)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """A graph of what is given to the current stream. Raises NotSupportedHere with the reason
        where that is what no graph can hold: waiting, new device memory.
        """
        if not self.in_use():
            raise NotSupportedHere("no graph: no device is set up yet, run the body once first")
        cuda, graph = _cuda(), Graph()
        stream, allocations = cuda.Stream(non_blocking=True), self._allocations
        with stream, self._allocation_hook(cuda.MemoryHook):
            stream.begin_capture()
            try:
                yield graph
                captured = stream.end_capture()
            except BaseException as error:
                # Left open, the capture would swallow or fail all that comes.
                with suppress(Exception):
                    stream.end_capture()
                if isinstance(error, RuntimeError | MemoryError):
                    raise NotSupportedHere(
                        f"no graph: the body cannot be captured: {_line(error)}"
                    ) from error
                raise
        if self._allocations != allocations:
            # CUDA allows it, but a replay would write where the pool has put other arrays by then.
            raise NotSupportedHere(
                "no graph: the body cannot be captured: it takes new device memory; give it arrays "
                "made before, with out="
            )
        graph.replay = lambda: captured.launch(stream)


def _named(found: dict[tuple[int, int], Place]) -> Iterator[Lane]:
    numbers: Counter[int] = Counter()
    for (device, pointer), place in sorted(found.items(), key=lambda item: item[0]):
        numbers[device] += pointer > PER_THREAD
        kind = {0: "default stream", PER_THREAD: "per-thread stream"}.get(pointer)
        yield Lane("cupy", f"cuda:{device} {kind or f'stream {numbers[device]}'}", place)


def _cupy() -> Any:
    return loaded("cupy")


def _cuda() -> Any:
    """`cupy.cuda`, or None where CuPy is not imported or its import broke half-way."""
    cuda = getattr(_cupy(), "cuda", None)
    return cuda if hasattr(cuda, "runtime") else None


def _status(error: Exception) -> int | None:
    """CUDA's own number of an error."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__
