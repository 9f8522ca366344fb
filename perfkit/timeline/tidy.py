"""One row for each thing: what XLA's profiler records several times, in parts, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.intervals import merged
from perfkit.timeline.columns import KINDS, NO_BYTES, NO_LINK, Columns
from perfkit.timeline.doing import spread
from perfkit.timeline.tables import outermost
from perfkit.timeline.xla import CPU, EXECUTE

if TYPE_CHECKING:
    import numpy as np

__all__ = ["tidied"]

STAND_INS = ("XLA Ops", "XLA Modules")
"""Lines that stand for a device's work where it has no finer one."""
PROGRAM = "ThunkExecutor::Execute"
JITTED = "PjitFunction("


def tidied(columns: Columns) -> Columns:
    """The same trace, in which

    - a device that shows no operations has its programs as work,
    - on the processor the time in which a program runs and no operation is seen is work,
    - a call that is recorded twice, one inside the other, is there once, and so is a wait,
    - all that was traced, lowered and compiled for one call of a jitted function is one compile.
    """
    columns = _with_stand_ins(columns)
    columns = columns.where(~(_twice(columns) | _inner_waits(columns)))
    return _with_programs(_with_whole_compiles(columns))


def _with_stand_ins(columns: Columns) -> Columns:
    worked = set(columns.devices())
    for name in STAND_INS:
        rows = columns.of_lanes(
            lane.name == name and lane.device not in worked for lane in columns.lanes
        )
        columns.kind[rows & columns.of_kind("device_mark")] = KINDS.index("device")
        worked = set(columns.devices())
    return columns


def _twice(columns: Columns) -> np.ndarray:
    """Operators that fill another one of the same name."""
    import numpy as np

    rows = np.flatnonzero(columns.of_kind("op"))
    rows = rows[np.argsort(columns.lane[rows], kind="stable")]
    outer, inner = rows[:-1], rows[1:]
    same = (columns.lane[outer] == columns.lane[inner]) & (
        columns.name[outer] == columns.name[inner]
    )
    inside = columns.end_ns[inner] <= columns.end_ns[outer]
    lasting_ns = (columns.end_ns - columns.start_ns)[rows]
    fills = 10 * lasting_ns[1:] >= 9 * lasting_ns[:-1]
    found = np.zeros(len(columns), dtype=bool)
    found[inner[same & inside & fills]] = True
    return found


def _inner_waits(columns: Columns) -> np.ndarray:
    found = columns.of_kind("wait")
    found[outermost(columns, "wait")] = False
    return found


def _with_whole_compiles(columns: Columns) -> Columns:
    """The first part is made as long as all of it, and named for the function; then it holds the
    others, which go.
    """
    import numpy as np

    jitted = np.array([name.startswith(JITTED) for name in columns.names], dtype=bool)
    calls = np.flatnonzero(columns.of_kind("op") & jitted[columns.name])
    first: dict[int, int] = {}
    names = {name: code for code, name in enumerate(columns.names)}
    for row in outermost(columns, "compile").tolist():
        around = calls[columns.start_ns[calls] <= columns.start_ns[row]]
        around = around[columns.end_ns[around] >= columns.end_ns[row]]
        around = around[columns.lane[around] == columns.lane[row]]
        if not len(around):
            continue
        call = int(around[-1])
        whole = first.setdefault(call, row)
        columns.end_ns[whole] = max(columns.end_ns[whole], columns.end_ns[row])
        function = columns.names[columns.name[call]].removeprefix(JITTED).removesuffix(")")
        columns.name[whole] = names.setdefault(f"compile {function}", len(names))
    columns.names = tuple(names)
    return columns.where(~_parts_of_compiles(columns))


def _parts_of_compiles(columns: Columns) -> np.ndarray:
    """What lies in a compilation: others, and passes of the compiler, which look like annotations
    where it runs on the thread that asked for it.
    """
    import numpy as np

    found = columns.of_kind("compile", "annotation")
    whole = outermost(columns, "compile")
    for lane in np.unique(columns.lane[found]):
        own, rows = (
            whole[columns.lane[whole] == lane],
            np.flatnonzero(found & (columns.lane == lane)),
        )
        at = np.searchsorted(columns.start_ns[own], columns.start_ns[rows], side="right") - 1
        inside = at >= 0
        inside[inside] = columns.end_ns[own[at[inside]]] >= columns.end_ns[rows[inside]]
        found[rows[~inside]] = False
    found[whole] = False
    return found


def _with_programs(columns: Columns) -> Columns:
    """In place of the threads' waits for their programs, what no operation covers of them; also of
    loops and branches, of which only the operations inside count.
    """
    import numpy as np

    on_processor = columns.of_lanes(lane.device == CPU for lane in columns.lanes)
    programs = np.flatnonzero(on_processor & columns.of_kind("device_mark"))
    if not len(programs):
        return columns
    which, start_ns, end_ns = _uncovered(columns, programs, columns.on_device(CPU))
    row = programs[which]
    waits = np.array([name == EXECUTE for name in columns.names], dtype=bool)[columns.name]
    kept = ~(waits & columns.of_kind("device_mark"))
    constants = {"kind": KINDS.index("device"), "name": len(columns.names), "nbytes": NO_BYTES}
    constants |= {"link": NO_LINK, "detail": 0}
    added = {name: np.full(len(row), value) for name, value in constants.items()}
    added |= {"start_ns": start_ns, "end_ns": end_ns, "lane": columns.lane[row]}
    together = {
        name: np.concatenate((own[kept], new.astype(own.dtype)))
        for name, new in added.items()
        for own in [getattr(columns, name)]
    }
    return Columns(
        **together,
        lanes=columns.lanes,
        names=(*columns.names, PROGRAM),
        details=columns.details,
        source=columns.source,
        origin_ns=columns.origin_ns,
        notes=columns.notes,
    )


def _uncovered(
    columns: Columns, rows: np.ndarray, work: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the work covers of no interval in `rows`: of which one, and from when to when."""
    import numpy as np

    busy_start, busy_end = merged(columns.start_ns[work], columns.end_ns[work])
    free_start = np.append(np.iinfo(np.int64).min, busy_end)
    free_end = np.append(busy_start, np.iinfo(np.int64).max)
    start_ns, end_ns = columns.start_ns[rows], columns.end_ns[rows]
    first = np.searchsorted(free_end, start_ns, side="right")
    behind = np.searchsorted(free_start, end_ns, side="left")
    which, free = spread(first, np.maximum(first, behind))
    begin, stop = (
        np.maximum(start_ns[which], free_start[free]),
        np.minimum(end_ns[which], free_end[free]),
    )
    lasting = stop > begin
    return which[lasting], begin[lasting], stop[lasting]
