"""PyTorch on an accelerator: asynchronous once it has been set up, synchronous on a processor.

Nothing here sets up CUDA. As long as the process has not, torch is not watched and the report says
synchronous, which it is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from perfkit.devices.base import Clock, Flush, Graph, Lane, Mark, Memory, Probe
from perfkit.devices.brackets import BracketTrace, Place
from perfkit.devices.cuda import has_context
from perfkit.devices.kineto import can_profile, profiled
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.intervals import Interval
from perfkit.optional import loaded

__all__ = ["TorchDevice"]

ACCELERATORS = ("cuda", "xpu", "mps")


class TorchDevice:
    """Adapter of `torch.accelerator`. Watched: the current stream of each device and all
    `torch.cuda.Stream` and `torch.xpu.Stream` that live; a bare `torch.Stream` is drained only.
    """

    name = "torch"
    has_events = True
    sees_commands = sees_waits = False

    def __init__(self) -> None:
        self.open_traces: list[BracketTrace] = []

    @property
    def asynchronous(self) -> bool:
        """True once an accelerator has been set up by somebody else."""
        return not self._obstacle()

    def _obstacle(self) -> str:
        accelerator = _accelerator()
        if accelerator is None:
            return (
                "torch is not imported in this kernel, or has no torch.accelerator (2.6 or later)"
            )
        try:
            kind = _kind()
            if kind not in ACCELERATORS:
                return "this torch is built for processors alone: its calls are synchronous"
            module = getattr(_torch(), kind)
            if hasattr(module, "is_initialized"):
                return "" if module.is_initialized() else f"torch has not set up {kind} yet"
            return "" if accelerator.is_available() else f"torch finds no {kind} device"
        except Exception as error:
            return f"torch: {_line(error)}"

    @property
    def has_profile(self) -> bool:
        """Kernels are seen one by one where torch's profiler knows CUDA. It sees the whole process
        and runs once at a time: CuPy's adapter runs it where CuPy is loaded.
        """
        return can_profile() and loaded("cupy") is None

    def profile(self, clock: Clock) -> AbstractContextManager[list[Interval]]:
        """Kernels and copies of the whole process, from torch's profiler."""
        return profiled(clock)

    def probe(self) -> Probe:
        """Is torch imported, and has it set up an accelerator."""
        reason = self._obstacle()
        if reason:
            return Probe(available=False, reason=reason)
        try:
            names = tuple(f"{_kind()}:{number}" for number in range(_accelerator().device_count()))
            return Probe(available=True, devices=names)
        except Exception as error:
            return Probe(available=False, reason=f"torch: {_line(error)}")

    def owns(self, obj: object) -> bool:
        """Tensors, streams and events of torch that are not the processor's."""
        if type(obj).__module__.partition(".")[0] != "torch":
            return False
        kind = getattr(getattr(obj, "device", None), "type", "cpu")
        return kind not in ("cpu", "meta")

    def in_use(self) -> Sequence[int]:
        """Devices that this process has set up; on CUDA those with a context."""
        if not self.asynchronous:
            return []
        numbers = range(_accelerator().device_count())
        if _kind() != "cuda":
            return numbers
        # torch's own knows ROCm too.
        is_set_up = getattr(_torch()._C, "_cuda_hasPrimaryContext", has_context)
        return [number for number in numbers if is_set_up(number)]

    def lanes(self) -> Sequence[Lane]:
        """The current stream of each device, and others that the garbage collector knows."""
        devices = self.in_use()
        found: dict[tuple[int, int], Place] = {}
        for number in devices:
            stream = _accelerator().current_stream(number)
            found[number, stream.stream_id] = Place(number, stream)
        lanes = [Lane("torch", f"{_kind()}:{n} current stream", found[n, i]) for n, i in found]
        for stream in _living_streams() if devices else ():
            key = (stream.device_index, stream.stream_id)
            if key not in found and key[0] in devices:
                found[key] = Place(key[0], stream)
                lanes.append(Lane("torch", f"{_kind()}:{key[0]} stream {len(found)}", found[key]))
        for trace in self.open_traces:
            trace.lanes = lanes
        return tuple(lanes)

    def default_lane(self, number: int) -> Lane:
        """The current stream of a device."""
        stream = _accelerator().current_stream(number)
        return Lane("torch", f"{_kind()}:{number} current stream", Place(number, stream))

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Wait for every device of the lanes: all of its streams, unknown ones too."""
        given = None if lanes is None else {lane.handle.device for lane in lanes}
        for number in sorted(self.in_use() if given is None else given):
            try:
                _accelerator().synchronize(number)
            except Exception as error:
                raise DeviceError(
                    f"torch: waiting for device {number} failed: {_line(error)}"
                ) from error

    def mark(self, lane: Lane) -> Mark:
        """Record an event on the lane's stream."""
        try:
            place = f"{_kind()}:{lane.handle.device}"
            event = _torch().Event(device=place, enable_timing=True)
            event.record(lane.handle.stream)
        except Exception as error:
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
            return float(start.event.elapsed_time(end.event)) * 1e-3
        except Exception as error:
            raise DeviceError(
                f"no time between the marks, were both made with enable_timing=True? {_line(error)}"
            ) from error

    def is_reached(self, mark: Mark) -> bool:
        """Has the mark's event happened?"""
        try:
            return bool(mark.event.query())
        except Exception as error:
            raise DeviceError(f"the event on {mark.lane.name} failed: {_line(error)}") from error

    def is_idle(self, lane: Lane) -> bool:
        """Is the lane empty? One that cannot be asked is."""
        try:
            return bool(lane.handle.stream.query())
        except Exception:
            return True

    def memory(self) -> Memory | None:
        """Bytes in tensors over all devices, and the highest count of any of them since torch set
        it to nothing.
        """
        devices = self.in_use()
        try:
            used = [_accelerator().memory_allocated(number) for number in devices]
            peaks = [_accelerator().max_memory_allocated(number) for number in devices]
        except Exception:
            return None
        return Memory(used_bytes=sum(used), peak_bytes=max(peaks)) if devices else None

    def trace(self, clock: Clock) -> BracketTrace:
        """A bracket of events for each lane."""
        return BracketTrace(self, clock)

    def observed(self, made: Callable[[Lane], None]) -> AbstractContextManager[object]:
        """Nothing is replaced: torch's allocator counts by itself, its streams come from a pool."""
        return nullcontext()

    def allocations(self) -> int:
        """Bytes ever asked of the allocators."""
        try:
            stats = [_accelerator().memory_stats(number) for number in self.in_use()]
            return sum(stat.get("allocated_bytes.all.allocated", 0) for stat in stats)
        except Exception:
            return 0

    def flush_cache(self) -> Flush:
        """Write memory of twice the L2 cache, on each device."""
        torch, flushes = _torch(), [Flush(0, 0)]
        for number in self.in_use():
            properties = torch.get_device_module(_kind()).get_device_properties(number)
            cache_bytes = getattr(properties, "L2_cache_size", 0)
            if not cache_bytes:
                raise NotSupportedHere(f"--cold: {_kind()}:{number} does not tell its cache size")
            flush = Flush(2 * cache_bytes, cache_bytes)
            flushes.append(flush)
            torch.zeros(flush.nbytes, dtype=torch.uint8, device=f"{_kind()}:{number}")
            _accelerator().synchronize(number)
        return max(flushes)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """A CUDA graph. Raises NotSupportedHere with the reason where the work does what no graph
        can hold, such as waiting.
        """
        if not self.asynchronous or _kind() != "cuda":
            raise NotSupportedHere(
                "torch has no graphs here: they need CUDA, set up by a first run"
            )
        cuda, graph = _torch().cuda, Graph()
        captured = cuda.CUDAGraph()
        try:
            with cuda.graph(captured):
                yield graph
        except RuntimeError as error:
            raise NotSupportedHere(
                f"no graph: the body cannot be captured: {_line(error)}"
            ) from error
        graph.replay = captured.replay


def _torch() -> Any:
    return loaded("torch")


def _accelerator() -> Any:
    """`torch.accelerator`, or None where torch is not imported or too old."""
    return getattr(_torch(), "accelerator", None)


def _kind() -> str:
    """The kind of accelerator that this torch was built for: cuda, xpu, mps, or empty."""
    current = _accelerator().current_accelerator()
    return current.type if current is not None else ""


def _living_streams() -> list[Any]:
    torch = _torch()
    kinds = tuple(
        kind
        for name in ("cuda", "xpu")
        if isinstance(kind := getattr(getattr(torch, name, None), "Stream", None), type)
    )
    return [obj for obj in gc.get_objects() if issubclass(type(obj), kinds)]


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
