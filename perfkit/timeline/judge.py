"""From columns to a report: the whole analysis, one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perfkit.records.base import Quality
from perfkit.records.timeline import DeviceTimeline, TimelineReport
from perfkit.timeline import tables
from perfkit.timeline.against import differences
from perfkit.timeline.busy import busy_of, union_of
from perfkit.timeline.columns import Columns
from perfkit.timeline.gaps import find_gaps
from perfkit.timeline.launches import is_waited_for, launches_of
from perfkit.timeline.picture import picture_of
from perfkit.timeline.steps import Marks, step_table, steps_in
from perfkit.units import count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["judge"]


def judge(
    columns: Columns,
    *,
    label: str = "",
    against: TimelineReport | None = None,
    selection: str = "",
    **recorded: Any,
) -> TimelineReport:
    """The report of a trace. `recorded`: fields that only whoever recorded it knows."""
    marks = steps_in(columns)
    devices = tuple(device_timeline(columns, name) for name in columns.devices())
    busiest = max(devices, key=lambda device: device.busy_s, default=None)
    report = TimelineReport.of(
        label=label,
        source=columns.source,
        selection=selection or _selection(marks),
        events=len(columns),
        span_s=1e-9 * int(columns.end_ns.max()) if len(columns) else None,
        devices=devices,
        host=None if devices else _host_timeline(columns),
        steps=_steps(columns, marks, busiest.name if busiest else None),
        kernels=tuple(row for d in devices for row in tables.kernel_table(columns, d.name)),
        operators=tables.operator_table(columns),
        compiles=tables.compile_table(columns),
        copies=tuple(row for d in devices for row in tables.copy_table(columns, d.name)),
        picture=picture_of(columns),
        notes=(*columns.notes, *recorded.pop("notes", ())),
        **{"quality": _quality(columns), **recorded},
    )
    return report if against is None else differences(report, against)


def device_timeline(columns: Columns, name: str) -> DeviceTimeline:
    """The figures of one device."""
    return _timeline(columns, columns.on_device(name), name)


def _timeline(columns: Columns, work: np.ndarray, name: str) -> DeviceTimeline:
    import numpy as np

    busy, gaps = busy_of(columns, work), find_gaps(columns, work)
    lanes = [columns.lanes[code].name for code in np.unique(columns.lane[work])]
    return DeviceTimeline(
        name=name,
        start_s=1e-9 * busy.start_ns,
        span_s=1e-9 * busy.span_ns,
        busy_s=1e-9 * busy.busy_ns,
        idle_s=1e-9 * (busy.span_ns - busy.busy_ns),
        compute_s=1e-9 * busy.compute_ns,
        non_compute_s=1e-9 * (busy.busy_ns - busy.compute_ns),
        copy_s=1e-9 * busy.copy_ns,
        collective_s=1e-9 * busy.collective_ns,
        hidden_s=1e-9 * busy.hidden_ns,
        duty_cycle=busy.busy_ns / busy.span_ns if busy.span_ns else 1.0,
        intervals=int(work.sum()),
        lanes=tuple(lanes),
        gap_count=gaps.count,
        gaps=gaps.largest,
        causes=gaps.causes,
        launches=launches_of(columns, work),
    )


def _host_timeline(columns: Columns) -> DeviceTimeline | None:
    """Where there is no device: when the thread that ran most operators ran them."""
    import numpy as np

    ops = columns.of_kind("op")
    if not ops.any():
        return None
    lasting_ns = np.where(ops, columns.end_ns - columns.start_ns, 0)
    lane = int(np.argmax(np.bincount(columns.lane, weights=lasting_ns)))
    work = ops & (columns.lane == lane)
    found = _timeline(columns, work, f"operators, {columns.lanes[lane].name}")
    return replace(found, compute_s=found.busy_s, non_compute_s=0.0)


def _steps(columns: Columns, marks: Marks, device: str | None) -> Any:
    import numpy as np

    busy, waits = None, columns.of_kind("wait")
    waited_ns = columns.start_ns[waits]
    if device is not None:
        work = columns.on_device(device)
        busy = union_of(columns, work)
        readbacks = work & columns.of_kind("d2h")
        if readbacks.any():
            waited_ns = columns.start_ns[readbacks][is_waited_for(columns, readbacks)]
    compiled = tables.outermost(columns, "compile")
    return step_table(marks, busy, np.asarray(waited_ns), columns.start_ns[compiled])


def _selection(marks: Marks) -> str:
    if not len(marks):
        return "the whole trace"
    first, last = marks.numbers[0], marks.numbers[-1]
    which = f": {first} to {last}" if first is not None and last is not None else ""
    return f"the whole trace, {count(len(marks), 'step')}{which}"


def _quality(columns: Columns) -> Quality:
    reasons = list(columns.notes)
    return Quality(
        status="suspect" if reasons else "valid", reasons=tuple(reasons), source=columns.source
    )
