"""OpenCL through pyopencl: any GPU with a driver, and any CPU through PoCL.

Every command of OpenCL has an event with the times at which it was queued, submitted, started and
ended (clGetEventProfilingInfo), if its queue was made with PROFILING_ENABLE. While a trace is
open the enqueue functions of pyopencl are replaced by ones that also keep the events.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any, NamedTuple

from perfkit.devices.base import Call, Clock, Flush, Graph, Lane, Mark, Memory, Probe, Seen, Trace
from perfkit.devices.host import flush_host_cache
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.intervals import Interval
from perfkit.optional import loaded, require

__all__ = ["OpenCLDevice"]

MOST_COMMANDS = 50_000
"""Events kept in one run of a body. Each holds memory of the driver's."""
NO_PROFILING = (
    "the command queue has no profiling: make it with "
    "properties=pyopencl.command_queue_properties.PROFILING_ENABLE"
)


class OpenCLDevice:
    """Adapter of pyopencl. All queues of the process are watched."""

    name = "opencl"
    asynchronous = True
    has_events = sees_commands = True
    sees_waits = True
    has_profile = False

    def probe(self) -> Probe:
        """Is pyopencl imported, and which devices have a queue."""
        if not hasattr(loaded("pyopencl"), "CommandQueue"):
            return Probe(available=False, reason="pyopencl is not imported in this kernel")
        names = sorted({lane.handle.device.name for lane in self.lanes()})
        return Probe(available=True, devices=tuple(names))

    def owns(self, obj: object) -> bool:
        """Anything of pyopencl's own types."""
        return type(obj).__module__.partition(".")[0] == "pyopencl"

    def lanes(self) -> Sequence[Lane]:
        """All command queues. OpenCL keeps no list of them, so the garbage collector is asked."""
        cl = loaded("pyopencl")
        kind = getattr(cl, "CommandQueue", None)
        if kind is None:
            return ()
        found = {q.int_ptr: q for q in gc.get_objects() if issubclass(type(q), kind)}
        return tuple(
            Lane("opencl", f"{found[pointer].device.name}, queue {number}", found[pointer])
            for number, pointer in enumerate(sorted(found))
        )

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """ClFinish on each queue."""
        for lane in self.lanes() if lanes is None else lanes:
            try:
                lane.handle.finish()
            except Exception as error:
                raise DeviceError(f"opencl: waiting for {lane.name} failed: {error}") from error

    def mark(self, lane: Lane) -> Mark:
        """Enqueue a marker command."""
        return Mark(lane, require("pyopencl", "opencl marks").enqueue_marker(lane.handle))

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Seconds from the end of one marker to the end of the other."""
        cl = require("pyopencl", "opencl marks")
        if start.lane.handle.device != end.lane.handle.device:
            raise DeviceError("the marks are on two devices: take a pair of marks on each")
        for name, mark in (("start", start), ("end", end)):
            status = mark.event.command_execution_status
            if status > cl.command_execution_status.COMPLETE:
                raise DeviceError(f"the {name} mark is not reached yet: synchronize first")
        try:
            return float(end.event.profile.end - start.event.profile.end) * 1e-9
        except cl.RuntimeError as error:
            raise DeviceError(NO_PROFILING) from error

    def memory(self) -> Memory | None:
        """OpenCL does not tell."""
        return None

    def trace(self, clock: Clock) -> _OpenCLTrace:
        """The events of every command."""
        return _OpenCLTrace(clock)

    def flush_cache(self) -> Flush:
        """On a processor the host's cache; on other devices a fill of twice the device's."""
        cl = require("pyopencl", "--cold")
        flushes = [Flush(0, 0)]
        for queue in {lane.handle.device.int_ptr: lane.handle for lane in self.lanes()}.values():
            if queue.device.type & cl.device_type.CPU:
                flushes.append(flush_host_cache())
                continue
            cache_bytes = queue.device.global_mem_cache_size
            if not cache_bytes:
                raise NotSupportedHere(f"--cold: {queue.device.name} does not tell its cache size")
            flush = Flush(2 * cache_bytes, cache_bytes)
            flushes.append(flush)
            victim = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, flush.nbytes)
            cl.enqueue_fill_buffer(queue, victim, b"\0", 0, flush.nbytes).wait()
            victim.release()
        return max(flushes)

    def capture(self) -> AbstractContextManager[Graph]:
        """OpenCL has no graphs."""
        raise NotSupportedHere("OpenCL has no graphs to capture")


class _Command(NamedTuple):
    """An event with what its enqueue call told. Host times are on the measurement's clock."""

    event: Any
    queue: Any
    kind: str
    name: str
    nbytes: int
    call: Call


class _OpenCLTrace(Trace):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._queues: dict[int, Lane] = {}
        self.clear()

    def hook(self, stack: ExitStack) -> None:
        cl = require("pyopencl", "an OpenCL trace")
        for name, (kind, describe) in _ENQUEUE.items():
            self._replace(stack, (cl._cl, cl), name, self._recording(kind, describe))
        self._replace(stack, (cl._cl, cl), "wait_for_events", self._waiting)
        self._replace(stack, (cl._cl.CommandQueue,), "finish", self._waiting)
        for kind in (cl._cl.Event, cl._cl.NannyEvent):
            self._replace(stack, (kind,), "wait", self._waiting)

    def clear(self) -> None:
        self._commands: list[_Command] = []
        self._waits: list[tuple[float, float]] = []
        self._dropped = 0

    def pending(self) -> int:
        return sum(command.event.command_execution_status > 0 for command in self._commands)

    def new_lanes(self, known: Sequence[Lane]) -> Sequence[Lane]:
        pointers = {lane.handle.int_ptr for lane in known}
        return [lane for pointer, lane in self._queues.items() if pointer not in pointers]

    def take(self) -> Seen:
        commands, waits, dropped = self._commands, self._waits, self._dropped
        self.clear()
        timed, reason = [], ""
        for command in commands:
            try:
                profile = command.event.profile
                timed.append((command, profile.queued, profile.start, profile.end))
            except Exception as error:
                reason = _why_untimed(command.event, error)
        if dropped:
            reason = f"more than {MOST_COMMANDS:,} commands in one run: time fewer at once"
        return Seen(
            intervals=tuple(self._place(timed)),
            calls=tuple(command.call for command, *_ in timed),
            waits=tuple(waits),
            launches=len(commands) + dropped,
            untimed=len(commands) - len(timed) + dropped,
            reason=reason,
        )

    def _place(self, timed: list[tuple[_Command, int, int, int]]) -> list[Interval]:
        """Device times on the host's clock. A command was queued between the call and the
        return of its enqueue function, so the tightest of these bounds gives the offset.
        """
        rows = []
        offsets: dict[int, float] = {}
        for device in {command.queue.device.int_ptr for command, *_ in timed}:
            bounds = [
                (command.call.start_s - queued * 1e-9, command.call.end_s - queued * 1e-9)
                for command, queued, _, _ in timed
                if command.queue.device.int_ptr == device
            ]
            offsets[device] = (max(low for low, _ in bounds) + min(high for _, high in bounds)) / 2
        for command, _, start, end in timed:
            offset = offsets[command.queue.device.int_ptr]
            lane = self._queues[command.queue.int_ptr].name
            rows.append(
                Interval(
                    start * 1e-9 + offset,
                    end * 1e-9 + offset,
                    lane,
                    command.kind,
                    command.name,
                    command.nbytes,
                )
            )
        return rows

    def _recording(self, kind: str, describe: _Describe) -> _Wrapper:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def recorded(*args: Any, **kwargs: Any) -> Any:
                called_s = clock()
                result = original(*args, **kwargs)
                returned_s = clock()
                event = result[-1] if type(result) is tuple else result
                if type(event) is nanny:
                    # Dropping a NannyEvent waits for its copy, inside pyopencl where no hook sees
                    # it; keeping it here would take that wait away.
                    event = plain.from_int_ptr(event.int_ptr, retain=True)
                queue = args[0] if args else kwargs["queue"]
                if queue.int_ptr not in self._queues:
                    name = f"opencl queue {len(self._queues)}"
                    self._queues[queue.int_ptr] = Lane("opencl", name, queue)
                if len(self._commands) >= MOST_COMMANDS:
                    self._dropped += 1
                    return result
                what, name, nbytes, blocking = describe(kind, args, kwargs)
                call = Call(called_s, returned_s, threading.get_ident())
                self._commands.append(_Command(event, queue, what, name, nbytes, call))
                if blocking and call.thread == self._thread:
                    self._waits.append((called_s, returned_s))
                return result

            clock = self._clock
            cl = require("pyopencl", "an OpenCL trace")
            nanny, plain = cl.NannyEvent, cl.Event
            return recorded

        return wrap

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*args: Any) -> Any:
            start_s = clock()
            try:
                return original(*args)
            finally:
                if threading.get_ident() == self._thread:
                    self._waits.append((start_s, clock()))

        clock = self._clock
        return waited

    @staticmethod
    def _replace(
        stack: ExitStack, holders: Sequence[ModuleType | type], name: str, wrap: _Wrapper
    ) -> None:
        """Put a wrapped function in each holder's place, to be undone when the stack closes."""
        for holder in holders:
            original = vars(holder).get(name)
            if original is not None:
                stack.callback(setattr, holder, name, original)
                setattr(holder, name, wrap(original))


def _why_untimed(event: Any, error: Exception) -> str:
    if event.command_execution_status > 0:
        return "some work had not ended"
    return NO_PROFILING if "PROFILING" in str(error) else f"opencl: {error}"


_Described = tuple[str, str, int, bool]
_Describe = Callable[[str, tuple[Any, ...], dict[str, Any]], _Described]
_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _kernel(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    kernel = args[1] if len(args) > 1 else kwargs["kernel"]
    return kind, kernel.function_name, 0, False


def _host_copy(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    buffer = args[2] if len(args) > 2 else kwargs["hostbuf"]
    blocking = args[5] if len(args) > 5 else kwargs.get("is_blocking", True)
    return kind, f"copy {kind}", _buffer_bytes(buffer), bool(blocking)


def _device_copy(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    nbytes = args[3] if len(args) > 3 else kwargs.get("byte_count", -1)
    if nbytes is None or nbytes < 0:
        nbytes = min(args[1].size, args[2].size) if len(args) > 2 else 0
    return kind, f"copy {kind}", nbytes, False


def _region_copy(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    """Rectangles and images: the region is known, the bytes of an element are not."""
    return kind, f"copy {kind}", 0, bool(kwargs.get("is_blocking", kind != "d2d"))


def _shared_copy(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    """Shared virtual memory: plain `SVM` wraps memory of the host, its subclasses do not."""
    to_host, from_host = (type(end).__name__ == "SVM" for end in args[2:4])
    kind = "d2h" if to_host and not from_host else "h2d" if from_host and not to_host else kind
    return kind, f"copy {kind}", int(kwargs.get("byte_count") or 0), bool(args[1])


def _plain(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    return kind, "fill" if kind == "kernel" else "map", 0, False


def _mapping(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Described:
    return kind, "map", 0, bool(kwargs.get("is_blocking", True))


def _buffer_bytes(buffer: Any) -> int:
    nbytes = getattr(buffer, "nbytes", None)
    return int(nbytes if nbytes is not None else memoryview(buffer).nbytes)


_ENQUEUE: dict[str, tuple[str, _Describe]] = {
    "enqueue_nd_range_kernel": ("kernel", _kernel),
    "_enqueue_read_buffer": ("d2h", _host_copy),
    "_enqueue_write_buffer": ("h2d", _host_copy),
    "_enqueue_copy_buffer": ("d2d", _device_copy),
    "_enqueue_read_buffer_rect": ("d2h", _region_copy),
    "_enqueue_write_buffer_rect": ("h2d", _region_copy),
    "_enqueue_copy_buffer_rect": ("d2d", _region_copy),
    "_enqueue_read_image": ("d2h", _region_copy),
    "_enqueue_write_image": ("h2d", _region_copy),
    "_enqueue_copy_image": ("d2d", _region_copy),
    "_enqueue_copy_buffer_to_image": ("d2d", _region_copy),
    "_enqueue_copy_image_to_buffer": ("d2d", _region_copy),
    "_enqueue_svm_memcpy": ("d2d", _shared_copy),
    "_enqueue_fill_buffer": ("kernel", _plain),
    "_enqueue_svm_memfill": ("kernel", _plain),
    "enqueue_fill_image": ("kernel", _plain),
    "enqueue_migrate_mem_objects": ("other", _plain),
    "_enqueue_svm_migrate_mem": ("other", _plain),
    "enqueue_map_buffer": ("other", _mapping),
    "enqueue_map_image": ("other", _mapping),
}
