"""JAX: asynchronous on every backend, the processor included, and without a device synchronize.

What is done about that: XLA runs the work of a device in the order in which it was given, so a tiny
compiled operation, waited for, is a barrier behind all of it, also behind work whose result was
dropped. There are no events either; only the profiler knows when the device worked.
"""

from __future__ import annotations

import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from perfkit.devices.base import Clock, Flush, Graph, Lane, Mark, Memory, Probe, Seen, Trace
from perfkit.devices.host import flush_host_cache
from perfkit.errors import DeviceError, NotSupportedHere
from perfkit.intervals import Interval
from perfkit.optional import loaded, require

__all__ = ["JaxDevice"]

COMPILE = "/jax/core/compile/"
"""Prefix of the durations that JAX reports when it traces, lowers and compiles."""
BACKEND_COMPILE = COMPILE + "backend_compile_duration"
IDLE_S = 100e-6
"""An idle accelerator has done a tiny operation by then. An idle processor does it in the call."""


class JaxDevice:
    """Adapter of JAX. All local devices are watched."""

    name = "jax"
    asynchronous = True
    has_events = sees_commands = False
    # NumPy reads an array of the processor's through its buffer, which no hook sees.
    sees_waits = False
    has_profile = True

    def __init__(self) -> None:
        self._barriers: list[tuple[Any, Any]] = []
        self.draining = False

    def probe(self) -> Probe:
        """Is JAX imported, and are its devices there already."""
        if not hasattr(loaded("jax"), "local_devices"):
            return Probe(available=False, reason="jax is not imported in this kernel")
        return Probe(available=True, devices=tuple(str(lane.handle) for lane in self.lanes()))

    def owns(self, obj: object) -> bool:
        """JAX's arrays, told from their type."""
        return type(obj).__module__.partition(".")[0] in ("jaxlib", "jax")

    def lanes(self) -> Sequence[Lane]:
        """One lane a local device; none before JAX has set up its backends."""
        jax = loaded("jax")
        if not _has_backends():
            return ()
        assert jax is not None
        return tuple(Lane("jax", str(device), device) for device in jax.local_devices())

    def synchronize(self, lanes: Sequence[Lane] | None = None) -> None:
        """Wait for all live arrays, then for a tiny operation on each device."""
        jax = loaded("jax")
        if jax is None or not _has_backends():
            return
        self.draining = True
        try:
            jax.block_until_ready(jax.live_arrays())
            for barrier, value in self._make_barriers(jax):
                barrier(value).block_until_ready()
        except Exception as error:
            raise DeviceError(f"jax: waiting for the device failed: {error}") from error
        finally:
            self.draining = False

    def is_behind(self) -> bool:
        """Has a device work left? Told by a tiny operation behind it, without waiting for it."""
        results = [barrier(value) for barrier, value in self._barriers]
        platforms = {device.platform for result in results for device in result.devices()}
        give_up_s = time.perf_counter() + (IDLE_S if platforms - {"cpu"} else 0.0)
        while not all(result.is_ready() for result in results):
            if time.perf_counter() >= give_up_s:
                return True
        return False

    def _make_barriers(self, jax: Any) -> list[tuple[Any, Any]]:
        devices = jax.local_devices()
        if len(self._barriers) != len(devices):
            barrier = jax.jit(lambda value: value + 1)
            values = [jax.device_put(0.0, device) for device in devices]
            # Compiled now, so that no drain compiles.
            for value in values:
                barrier(value).block_until_ready()
            self._barriers = [(barrier, value) for value in values]
        return self._barriers

    def mark(self, lane: Lane) -> Mark:
        """JAX has no events."""
        raise NotSupportedHere("jax has no events: --trace asks its profiler")

    def elapsed_s(self, start: Mark, end: Mark) -> float | None:
        """Always None: no events."""
        return None

    def memory(self) -> Memory | None:
        """Bytes of live arrays; the allocator's own count and peak where it tells them."""
        jax = loaded("jax")
        if jax is None or not _has_backends():
            return None
        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
        live = sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())
        return Memory(used_bytes=live - self._own_bytes(), peak_bytes=max(peaks, default=None))

    def _own_bytes(self) -> int:
        return sum(value.nbytes for _, value in self._barriers)

    def trace(self, clock: Clock) -> _JaxTrace:
        """What can be seen without events: waits, compilations, and whether there was work."""
        return _JaxTrace(self, clock)

    @contextmanager
    def profile(self, clock: Clock) -> Iterator[list[Interval]]:
        """Run the profiler; the list is filled with the device's intervals when it stops."""
        jax = require("jax", "--trace")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        rows: list[Interval] = []
        with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                start_s = clock()
                with jax.profiler.TraceAnnotation(_ANCHOR):
                    pass
                yield rows
                self.synchronize()
            for path in Path(folder).rglob("*.xplane.pb"):
                rows += _read_profile(jax.profiler.ProfileData.from_file(str(path)), start_s)

    def flush_cache(self) -> Flush:
        """The host's cache where the device is the processor."""
        jax = require("jax", "--cold")
        if jax.default_backend() != "cpu":
            raise NotSupportedHere("--cold: jax does not tell the cache size of this device")
        return flush_host_cache()

    def capture(self) -> AbstractContextManager[Graph]:
        """There is nothing to capture: jit compiles whole programs."""
        raise NotSupportedHere(
            "jax has no graphs to capture: put the loop into one jitted function"
        )


class _JaxTrace(Trace):
    def __init__(self, device: JaxDevice, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self._thread = threading.get_ident()
        self._known: dict[int, weakref.ref[Any]] = {}
        self.clear()

    def hook(self, stack: ExitStack) -> None:
        jax = require("jax", "a JAX trace")
        core = require("jaxlib", "a JAX trace")._jax
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        stack.callback(jax.monitoring.unregister_event_duration_listener, self._compiled)
        array = core.ArrayImpl
        for name in ("block_until_ready", "__dlpack__"):
            self._replace(stack, array, name, self._waiting(getattr(array, name)))
        value = array._value
        self._replace(stack, array, "_value", property(self._waiting(value.fget)))
        batched = core.batched_block_until_ready
        self._replace(stack, core, "batched_block_until_ready", self._waiting(batched))

    @staticmethod
    def _replace(stack: ExitStack, holder: Any, name: str, wrapped: Any) -> None:
        stack.callback(setattr, holder, name, vars(holder)[name])
        setattr(holder, name, wrapped)

    def _compiled(self, event: str, duration_s: float, **_: Any) -> None:
        if event.startswith(COMPILE):
            self._compile_s += duration_s
            self._compiles += event == BACKEND_COMPILE

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*args: Any, **kwargs: Any) -> Any:
            start_s = clock()
            try:
                return original(*args, **kwargs)
            finally:
                if threading.get_ident() == self._thread and not self._device.draining:
                    self._waits.append((start_s, clock()))

        clock = self._clock
        return waited

    def clear(self) -> None:
        self._waits: list[tuple[float, float]] = []
        self._compiles, self._compile_s = 0, 0.0
        self._was_behind = False
        self._known = {id(array): weakref.ref(array) for array in _live_arrays()}

    def take(self) -> Seen:
        waits, compiles, compile_s = self._waits, self._compiles, self._compile_s
        # A call of a compiled function leaves no trace of its own, but what it did does.
        worked = bool(waits or compiles or self._was_behind or self._has_new_arrays())
        self.clear()
        return Seen(
            waits=tuple(waits),
            launches=None if worked else 0,
            compiles=compiles,
            compile_s=compile_s,
        )

    def _has_new_arrays(self) -> bool:
        known = self._known
        return any(
            id(array) not in known or known[id(array)]() is not array for array in _live_arrays()
        )

    def pending(self) -> int:
        return sum(not array.is_ready() for array in _live_arrays()) or self._device.is_behind()

    def close_body(self) -> None:
        self._was_behind = self._device.is_behind()


_ANCHOR = "perfkit anchor"
_NOISE = ("ThreadpoolListener::", "end: ", "SlinkyThreadPool::", "perfkit")
_HOST_LINES = ("tf_XLAPjRtCpuClient", "tf_XLAEigen")


def _read_profile(profile: Any, start_s: float) -> list[Interval]:
    """Device intervals of a JAX profile, on the clock that read `start_s` at the anchor."""
    planes = list(profile.planes)
    anchor_ns = next(
        (e.start_ns for p in planes for line in p.lines for e in line.events if e.name == _ANCHOR),
        0.0,
    )
    rows = []
    for plane in planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            if not (on_device or line.name.startswith(_HOST_LINES)):
                continue
            lane = f"jax {line.name}" if on_device else "jax cpu"
            for event in line.events:
                waits = "wait for completion" in event.name
                if event.duration_ns and not waits and not event.name.startswith(_NOISE):
                    begin_s = start_s + 1e-9 * (event.start_ns - anchor_ns)
                    end_s = begin_s + 1e-9 * event.duration_ns
                    rows.append(Interval(begin_s, end_s, lane, "kernel", event.name))
    return rows


def _live_arrays() -> list[Any]:
    jax = loaded("jax")
    return list(jax.live_arrays()) if jax is not None and _has_backends() else []


def _has_backends() -> bool:
    """Has JAX set up its backends? Asking it for devices would do so."""
    bridge = loaded("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", None))
