"""Record the timeline of a body of code, on every runtime that it uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing

from perfkit.devices.base import Device
from perfkit.devices.detect import devices_in_use
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.measure.annotations import annotate, listening
from perfkit.measure.recorders import (
    DRAIN,
    OWN_LANE,
    Recorded,
    Recorder,
    recorder_of,
    torch_recorder,
)
from perfkit.measure.whereabouts import Stretch, whereabouts
from perfkit.records.base import keep_last
from perfkit.system.facts import machine
from perfkit.timeline.columns import Columns, Event, Lane
from perfkit.timeline.trace import Timeline

__all__ = ["TimelineRecording", "record_timeline"]

Runs = Generator[None, None, None]
NOTHING = (
    "no runtime of a device is in use: the timeline shows the lines of this thread and its "
    "annotations (it knows torch, jax, pyopencl and perfkit's thread device)"
)


def record_timeline(
    fn: Callable[[], object], *, backend: str | Sequence[str] | None = None
) -> Timeline:
    """Call `fn()` once under the profilers of the runtimes in use.

    `backend`: record only these. Raises UsageError or NotSupportedHere before `fn` is called, and
    whatever `fn` raises; the report of what was seen by then is `perfkit.last()`.
    """
    if not callable(fn):
        raise UsageError(
            f"record_timeline runs a function, not {type(fn).__name__}: wrap it in lambda:"
        )
    names = (backend,) if isinstance(backend, str) else backend
    label = getattr(fn, "__qualname__", type(fn).__name__)
    recording = TimelineRecording(label=label, backends=names)
    with closing(recording.runs()) as runs:
        for _ in runs:
            fn()
    assert recording.timeline is not None
    return recording.timeline


class TimelineRecording:
    """One recording under way. `timeline` is set when `runs` has ended, however it ended."""

    def __init__(
        self,
        *,
        label: str,
        backends: Sequence[str] | None = None,
        done: Callable[[Timeline | None], None] = lambda _: None,
    ) -> None:
        self.timeline: Timeline | None = None
        self._label, self._backends, self._done = label, backends, done
        self._thread = threading.get_ident()
        self._marks: list[Event] = []

    def runs(self) -> Runs:
        """Yield once; the body runs in between."""
        __tracebackhide__ = True
        recorded: list[list[Recorded]] = []
        stretches: list[Stretch] = []
        begun, stopped = False, "an error or an interrupt"
        try:
            devices, recorders = self._recorders()
            for device in devices:
                device.synchronize()
            with ExitStack() as stack:
                recorded = [stack.enter_context(recorder()) for recorder in recorders]
                begun = True
                try:
                    with listening(self._mark), whereabouts() as stretches:
                        yield
                    stopped = ""
                finally:
                    with annotate(DRAIN):
                        for device in devices:
                            device.synchronize()
        finally:
            try:
                if begun:
                    rows = [row for rows in recorded for row in rows]
                    self.timeline = self._judge(rows, stretches, stopped)
                    keep_last(self.timeline.report)
            finally:
                self._done(self.timeline)

    def _recorders(self) -> tuple[list[Device], list[Recorder]]:
        """What is to be drained, and what records. Raises NotSupportedHere."""
        names = self._backends
        with_torch = names is None or "torch" in names
        devices = [
            device
            for device in devices_in_use([n for n in names or () if n != "torch"] or None)
            if names is None or device.name in names
        ]
        torch = torch_recorder() if with_torch else None
        if names is not None and "torch" in names and torch is None:
            raise NotSupportedHere("backend 'torch' is not in use: import torch first")
        # torch's profiler sees CUDA work of the whole process, CuPy's too.
        alone = [d for d in devices if d.lanes() and not (torch and d.name in ("torch", "cupy"))]
        recorders = [recorder_of(device) for device in alone]
        return devices, recorders if torch is None else [torch, *recorders]

    def _mark(
        self, name: str, kind: str, start_ns: int, end_ns: int, thread: int, number: int | None
    ) -> None:
        lane = OWN_LANE if thread == self._thread else Lane("", f"thread {thread}")
        detail = "" if number is None else str(number)
        self._marks.append(Event(start_ns, end_ns, lane, kind, name, detail=detail))

    def _judge(self, recorded: list[Recorded], stretches: list[Stretch], stopped: str) -> Timeline:
        worked = [row for row in recorded if len(row.columns)]
        parts = [row.columns for row in worked]
        lanes = {row.lane for row in worked} or {OWN_LANE}
        if OWN_LANE in lanes:
            # The profilers see annotations themselves.
            parts.append(Columns.of(self._marks, source="" if worked else "annotations"))
        parts.append(
            Columns.of(
                Event(start_ns, end_ns, lane, "python", line)
                for start_ns, end_ns, line in stretches
                for lane in lanes
            )
        )
        notes = [note for row in recorded for note in row.notes]
        return Timeline(
            Columns.merged(parts),
            label=self._label,
            notes=(*notes, *([] if worked else [NOTHING])),
            stopped=stopped,
            machine=machine(),
        )
