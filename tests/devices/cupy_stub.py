"""CuPy's surface on host threads: streams, events, pools and graphs whose time is real.

`CuPyStub()` goes where `cupy` would be in `sys.modules`. What it has is named and behaves as in
CuPy 14: errors carry CUDA's status, a null stream waits for all streams but non-blocking ones, an
event that was never recorded is done, and whatever touches a device sets up its context.
`kernel(seconds)` gives the current stream work.
"""

import itertools
import threading
import time
from collections import Counter
from types import ModuleType, SimpleNamespace

from perfkit.devices import thread

NULL, LEGACY, PTDS = 0, 1, 2
L2_BYTES = 2**20
TEXTS = {
    2: "cudaErrorMemoryAllocation: out of memory",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error",
}


class CUDARuntimeError(RuntimeError):
    """An error with CUDA's own number."""

    def __init__(self, status):
        super().__init__(TEXTS[status])
        self.status = status


class OutOfMemoryError(MemoryError):
    """Of the pool, not of the runtime."""


class Queue:
    """The work of one stream on one device, in order."""

    def __init__(self, device, *, blocking):
        self.device, self.blocking = device, blocking
        self.given = self.ended = 0
        self.thread = thread.Stream(device=f"cuda:{device}")
        # Not a stream that anyone gave to the thread device: that one must not watch it.
        thread.Stream._alive.discard(self.thread)

    def idle(self):
        return self.given == self.ended

    def put(self, work):
        def run():
            try:
                work()
            finally:
                self.ended += 1

        self.given += 1
        self.thread._put(thread._Command(run, "kernel", "stub", 0))

    def wait(self):
        fence = self.fence()
        if fence:
            fence.wait()
        if self.thread._failure:
            self.thread._failure.clear()
            raise CUDARuntimeError(700)

    def fence(self):
        """Set when the work given so far has ended; None if it has."""
        if self.idle():
            return None
        fence = threading.Event()
        self.put(fence.set)
        return fence


class Machine:
    """The devices behind one stub."""

    def __init__(self, devices, status):
        self.devices, self.status, self.current = devices, status, 0
        self.contexts, self.queues, self.pointers = set(), {}, itertools.count(4096, 16)
        self.orphans, self.capturing = [], None
        self.limit, self.used = None, Counter()
        self.hooks = {}

    def check(self, device=None):
        if self.status:
            raise CUDARuntimeError(self.status)
        if device is not None and not 0 <= device < self.devices:
            raise CUDARuntimeError(101)

    def touch(self):
        """Any call that needs a context makes one on the current device."""
        self.check()
        self.contexts.add(self.current)

    def no_capture(self):
        if self.capturing is not None:
            self.capturing.invalid = True
            raise CUDARuntimeError(900)

    def queue(self, stream):
        self.touch()
        key = (self.current, NULL if stream.ptr == LEGACY else stream.ptr)
        if key[1] in (NULL, PTDS) and key not in self.queues:
            self.queues[key] = Queue(self.current, blocking=True)
        if key not in self.queues:
            raise CUDARuntimeError(400)
        return self.queues[key]

    def before(self, queue):
        """Other streams that work on this one must wait for: the rule of the legacy stream."""
        null = self.queues.get((queue.device, NULL))
        if queue is null:
            others = [q for q in self.queues.values() if q.blocking and q.device == queue.device]
        else:
            others = [null] if queue.blocking and null else []
        return [fence for q in others if q is not queue and (fence := q.fence())]

    def launch(self, stream, work):
        queue = self.queue(stream)
        if self.capturing is not None and stream.ptr == self.capturing.stream.ptr:
            self.capturing.works.append(work)
            return
        fences = self.before(queue)
        if fences:
            queue.put(lambda: [fence.wait() for fence in fences])
        queue.put(work)

    def record(self, stream, reach):
        """Reach an event behind the work of a stream; at once if there is none, as a GPU does."""
        queue = self.queue(stream)
        fences = self.before(queue)
        if queue.idle() and not fences:
            reach()
        else:
            queue.put(lambda: [*(fence.wait() for fence in fences), reach()])

    def destroy(self, stream):
        """The handle is void from now on; the work goes on, and a drain of the device waits."""
        queue = self.queues.pop((stream.device_id, getattr(stream, "ptr", None)), None)
        if queue is not None:
            self.orphans.append(queue)

    def synchronize(self, device):
        self.touch()
        self.no_capture()
        for queue in [*self.queues.values(), *self.orphans]:
            if queue.device == device:
                queue.wait()

    def close(self):
        for queue in [*self.queues.values(), *self.orphans]:
            queue.thread.close()


class Graph:
    """What was captured, to be launched again."""

    def __init__(self, machine, stream):
        self.machine, self.stream, self.works, self.invalid = machine, stream, [], False

    def launch(self, stream):
        for work in self.works:
            self.machine.launch(stream, work)


def _classes(machine):
    """CuPy's classes on one machine."""
    local = threading.local()

    class _BaseStream:
        __module__ = "cupy.cuda.stream"

        def __init__(self, ptr, device_id):
            self.ptr, self.device_id = ptr, device_id

        def __eq__(self, other):
            return (self.ptr, self.device_id) == (other.ptr, other.device_id)

        def __hash__(self):
            return hash((self.ptr, self.device_id))

        def __enter__(self):
            local.stack = [*getattr(local, "stack", []), self]
            return self

        def __exit__(self, *error):
            local.stack.pop()

        @property
        def done(self):
            return machine.queue(self).idle()

        def synchronize(self):
            queue = machine.queue(self)
            machine.no_capture()
            queue.wait()

        def begin_capture(self, mode=None):
            machine.capturing = Graph(machine, self)

        def end_capture(self):
            graph, machine.capturing = machine.capturing, None
            if graph.invalid:
                raise CUDARuntimeError(901)
            return graph

    class Stream(_BaseStream):
        __module__ = "cupy.cuda.stream"

        def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
            if null or ptds:
                super().__init__(NULL if null else PTDS, -1)
                return
            machine.touch()
            super().__init__(next(machine.pointers), machine.current)
            queue = Queue(machine.current, blocking=not non_blocking)
            machine.queues[machine.current, self.ptr] = queue

        def __del__(self):
            machine.destroy(self)

    class ExternalStream(_BaseStream):
        __module__ = "cupy.cuda.stream"

        def __init__(self, ptr, device_id=-1):
            super().__init__(ptr, device_id)

    Stream.null, Stream.ptds = Stream(null=True), Stream(ptds=True)

    def get_current_stream(device_id=-1):
        machine.check()
        stack = getattr(local, "stack", [])
        return stack[-1] if stack else Stream.null

    class Event:
        __module__ = "cupy.cuda.stream"

        def __init__(self, block=False, disable_timing=False, interprocess=False):
            machine.touch()
            self.timing, self.device = not disable_timing, None
            self.reached, self.reached_s = threading.Event(), 0.0
            self.reached.set()

        def record(self, stream=None):
            self.reached.clear()
            try:
                machine.record(stream or get_current_stream(), self.reach)
            except CUDARuntimeError:
                self.reached.set()
                raise
            self.device = machine.current

        def reach(self):
            self.reached_s = time.perf_counter()
            self.reached.set()

        @property
        def done(self):
            return self.reached.is_set()

        def synchronize(self):
            self.reached.wait()

    def get_elapsed_time(start, end):
        if None in (start.device, end.device) or start.device != end.device:
            raise CUDARuntimeError(400)
        if not (start.timing and end.timing):
            raise CUDARuntimeError(400)
        if not (start.done and end.done):
            raise CUDARuntimeError(600)
        return 1e3 * (end.reached_s - start.reached_s)

    class Device:
        __module__ = "cupy.cuda.device"

        def __init__(self, device=None):
            self.id = machine.current if device is None else int(device)
            self.outer = []

        def use(self):
            machine.check(self.id)
            machine.current = self.id

        def __enter__(self):
            self.outer.append(machine.current)
            self.use()
            return self

        def __exit__(self, *error):
            machine.current = self.outer.pop()

        def synchronize(self):
            with self:
                machine.synchronize(self.id)

        @property
        def mem_info(self):
            machine.touch()
            return 2**30, 2**31

    return SimpleNamespace(
        Stream=Stream,
        ExternalStream=ExternalStream,
        Event=Event,
        Device=Device,
        get_current_stream=get_current_stream,
        get_elapsed_time=get_elapsed_time,
    )


def _memory(machine, cuda):
    """The pool, its hooks, and the pointers that it gives."""

    class MemoryHook:
        name = "MemoryHook"

        def __enter__(self):
            if self.name in machine.hooks:
                raise KeyError(f"memory hook {self.name} already exists")
            machine.hooks[self.name] = self
            return self

        def __exit__(self, *error):
            del machine.hooks[self.name]

        def malloc_preprocess(self, **kwargs):
            """For subclasses."""

    class MemoryPointer:
        def __init__(self, size):
            self.size, self.device = size, machine.current

        def __del__(self):
            machine.used[self.device] -= self.size

        def memset(self, value, size):
            machine.launch(cuda.Stream.null, lambda: bytearray(size))

    class MemoryPool:
        def malloc(self, size):
            machine.touch()
            for hook in list(machine.hooks.values()):
                hook.malloc_preprocess(device_id=machine.current, size=size, mem_size=size)
            if machine.limit is not None and machine.used[machine.current] + size > machine.limit:
                raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            machine.used[machine.current] += size
            return MemoryPointer(size)

        def used_bytes(self):
            machine.touch()
            return machine.used[machine.current]

        total_bytes = used_bytes

    return MemoryHook, MemoryPool()


def _runtime(machine):
    def get_device_count():
        machine.check()
        if not machine.devices:
            raise CUDARuntimeError(100)
        return machine.devices

    def get_device():
        machine.check()
        return machine.current

    def get_device_properties(number):
        machine.check(number)
        return {"name": b"Stub %d" % number, "l2CacheSize": L2_BYTES}

    return SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        is_hip=False,
        getDeviceCount=get_device_count,
        getDevice=get_device,
        getDeviceProperties=get_device_properties,
        driverGetVersion=lambda: 0 if machine.status else 13000,
    )


class CuPyStub(ModuleType):
    """`status`: what every call into the runtime fails with, 35 being no driver."""

    def __init__(self, *, devices=2, status=0):
        super().__init__("cupy")
        self.machine = machine = Machine(devices, status)
        self.cuda = cuda = _classes(machine)
        cuda.runtime = _runtime(machine)
        cuda.is_available = lambda: not machine.status and bool(machine.devices)
        cuda.MemoryHook, pool = _memory(machine, cuda)
        cuda.alloc = pool.malloc
        self.get_default_memory_pool = lambda: pool

        class ndarray:  # noqa: N801
            __module__ = "cupy"

            def __init__(self, nbytes):
                self.data, self.nbytes = pool.malloc(nbytes), nbytes

            def __dlpack_device__(self):
                return 2, self.data.device

            def get(self):
                """To the host; waits."""
                cuda.get_current_stream().synchronize()
                return bytes(self.nbytes)

        self.ndarray = ndarray

    def kernel(self, seconds, work=time.sleep):
        """A kernel on the current stream that takes so many seconds."""
        self.machine.launch(self.cuda.get_current_stream(), lambda: work(seconds))

    def has_context(self, number):
        """What the driver tells of a device."""
        return number in self.machine.contexts
