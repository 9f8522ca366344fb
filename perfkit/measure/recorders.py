"""What records a runtime's work while a cell runs: its own profiler, or an adapter's trace.

Each is a context manager that gives a list, which it fills when it closes. All of them put their
times on `time.perf_counter_ns`: the profilers by an anchor that both clocks see.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfkit.devices.base import Call, Device, Seen
from perfkit.measure.annotations import annotate
from perfkit.measure.compilations import compiled_shapes, with_shapes
from perfkit.measure.profilers import ANCHOR, TORCH_FILE, jax_profile, torch_profile
from perfkit.optional import loaded, require
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import DEVICE_KINDS, NO_BYTES, Columns, Event, Lane
from perfkit.timeline.files import pieces
from perfkit.timeline.launches import launch_rows
from perfkit.timeline.xplane import read_xplane

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DRAIN", "OWN_LANE", "Recorded", "Recorder", "recorder_of", "torch_recorder"]

OWN_LANE = Lane("", "thread main")
DRAIN = "perfkit drain"
CALLING = "calling thread"
"""XLA runs small programs on the thread that calls them."""
NO_KERNELS = (
    "its runtime does not tell when single kernels ran; where torch is imported, torch's profiler "
    "sees them"
)
NEW_CUDA = ("torch set up CUDA inside the cell, so its work there was not seen: run it again",)


class Recorded(NamedTuple):
    """One runtime's intervals, the lane of the thread that ran the cell, and what is missing."""

    columns: Columns
    lane: Lane
    notes: tuple[str, ...] = ()


Recorder = Callable[[], AbstractContextManager[list[Recorded]]]


def recorder_of(device: Device) -> Recorder:
    """The recorder of a runtime in use."""
    if device.name == "jax":
        return _jax
    return lambda: _traced(device)


def torch_recorder() -> Recorder | None:
    """PyTorch's profiler, which sees operators of the processor and work of CUDA; None where torch
    is not imported.
    """
    return _torch if hasattr(loaded("torch"), "profiler") else None


@contextmanager
def _torch() -> Iterator[list[Recorded]]:
    cuda = require("torch", "%%timeline").cuda
    had_cuda = cuda.is_initialized()
    rows: list[Recorded] = []
    with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
        path = Path(folder, TORCH_FILE)
        try:
            with torch_profile(Path(folder)):
                anchor_ns = _anchor()
                yield rows
        finally:
            # Whatever ended the cell; without a file the profiler did not begin.
            if path.exists():
                new = NEW_CUDA if cuda.is_initialized() and not had_cuda else ()
                columns = read_chrome(pieces(path), "torch's profile")
                rows.append(_anchored(columns, anchor_ns)._replace(notes=new))


@contextmanager
def _jax() -> Iterator[list[Recorded]]:
    rows: list[Recorded] = []
    with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
        try:
            with jax_profile(Path(folder)), compiled_shapes() as told:
                anchor_ns = _anchor()
                yield rows
        finally:
            for path in Path(folder).rglob("*.xplane.pb"):
                columns = with_shapes(read_xplane(path.read_bytes(), path.name), told)
                rows.append(_anchored(columns, anchor_ns))


def _anchor() -> int:
    anchor_ns = time.perf_counter_ns()
    with annotate(ANCHOR):
        pass
    return anchor_ns


def _anchored(columns: Columns, anchor_ns: int) -> Recorded:
    """Columns on the clock that read `anchor_ns` at the anchor, without it and the drain."""
    code = columns.names.index(ANCHOR)
    row = int((columns.name == code).argmax())
    columns.origin_ns = anchor_ns - int(columns.start_ns[row])
    own = (columns.name == code) | _drained(columns, int(columns.lane[row]))
    return Recorded(columns.where(~own), columns.lanes[columns.lane[row]])


def _drained(columns: Columns, main: int) -> np.ndarray:
    """What our drain did at the end: calls of the main thread, and the work that they gave."""
    import numpy as np

    nothing = np.zeros(len(columns), dtype=bool)
    if DRAIN not in columns.names:
        return nothing
    begin_ns = columns.start_ns[columns.name == columns.names.index(DRAIN)][0]
    late = columns.start_ns >= begin_ns
    calls = late & (columns.lane == main)
    work = late & columns.of_kind(*DEVICE_KINDS)
    by = launch_rows(columns, work)
    inline = columns.of_lanes(lane.name.startswith(CALLING) for lane in columns.lanes)
    work[work] = np.where(by >= 0, calls[by], inline[work])
    drained: np.ndarray = calls | work
    return drained


@contextmanager
def _traced(device: Device) -> Iterator[list[Recorded]]:
    """A runtime whose adapter sees each command, or can say that it does not."""
    rows: list[Recorded] = []
    with device.trace(time.perf_counter) as trace:
        try:
            yield rows
        finally:
            device.synchronize()
            rows.append(_of_trace(trace.take(), device.name))


def _of_trace(seen: Seen, device: str) -> Recorded:
    if seen.bracketed:
        notes = [f"{device} worked, but {NO_KERNELS}"]
    else:
        notes = [f"{device}: {seen.reason}"] if seen.untimed and seen.reason else []
    # Without work a wait is no more than our own drain.
    has_work = bool(seen.intervals) and not seen.bracketed
    events = _events(seen, device) if has_work else ()
    return Recorded(Columns.of(events, source=device), OWN_LANE, tuple(notes))


def _events(seen: Seen, device: str) -> Iterator[Event]:
    """Work with its launches, linked, and the waits of the thread."""
    blocking = set(seen.waits)
    calls: Sequence[Call | None] = seen.calls or [None] * len(seen.intervals)
    for link, (work, call) in enumerate(zip(seen.intervals, calls, strict=True), start=1):
        start_ns, end_ns = _ns(work.start_s), _ns(work.end_s)
        kind = "device" if work.kind == "other" else work.kind
        nbytes = work.nbytes or NO_BYTES
        yield Event(start_ns, end_ns, Lane(device, work.lane), kind, work.name, nbytes, link)
        if call is None:
            continue
        start_s, end_s, thread = call
        lane = OWN_LANE if thread == threading.get_ident() else Lane("", f"thread {thread}")
        kind = "wait" if (start_s, end_s) in blocking else "runtime"
        blocking.discard((start_s, end_s))
        yield Event(_ns(start_s), _ns(end_s), lane, kind, f"launch of {work.name}", link=link)
    for start_s, end_s in sorted(blocking):
        yield Event(_ns(start_s), _ns(end_s), OWN_LANE, "wait", "wait for the device")


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
