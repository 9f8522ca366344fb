"""An .xplane.pb, as JAX's and torch_xla's profilers write it, as columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from perfkit.errors import UsageError
from perfkit.timeline import flows, xla
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, NO_LINK, Columns, Lane
from perfkit.timeline.hlo import Operation, operations
from perfkit.timeline.tidy import tidied
from perfkit.timeline.wire import Damaged, Part, Wire
from perfkit.timeline.xevents import Events, events_of
from perfkit.timeline.xspace import Plane, planes_of
from perfkit.units import count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["read_xplane"]

DETAILS = ("tf_op", "name", "shapes", "step_num")
"""Stats that say which one it was; the last that an event has."""
COPIES = ("memcpy_details", "Memset_details")
WANTED = frozenset((*DETAILS, *COPIES, "correlation_id", "hlo_op")) | flows.STATS
LEFT_OUT = -1
FIRST_FLOW = 1 << 40
"""Links that we find have numbers behind those of the drivers."""
TASK = "XLA task"
"""What a thread of the processor did where the trace has no operations (JAX 0.6)."""
_AWAIT = re.compile(r"\w*Buffer::Await$")
_ENDS = re.compile(r"kind_src:(\S+) kind_dst:(\S+)")
_SIZE = re.compile(r"(?:size|num_bytes):(\d+)")
_PROGRAM = re.compile(r"\((\d+)\)$")


def read_xplane(data: bytes, where: str = "") -> Columns:
    """The columns of a trace in XLA's binary form.

    Raises UsageError, naming `where`, if it is none, is damaged or has no events.
    """
    where = where or "this trace"
    if not data:
        raise UsageError(f"{where} is empty: record the trace again")
    try:
        return _read(data, where)
    except Damaged as error:
        raise UsageError(
            f"{where} is no trace of XLA (.xplane.pb), or was cut off when it was written or "
            f"copied ({error}): copy or record it again"
        ) from error


def _read(data: bytes, where: str) -> Columns:
    import numpy as np

    planes, wire = list(planes_of(data)), Wire(data)
    reading = _Reading(data, planes)
    for plane in planes:
        if any(line.begin for line in plane.lines):
            reading.add(_Rows(plane, events_of(wire, plane, WANTED)))
    if not any(len(part["kind"]) for part in reading.parts):
        raise UsageError(f"{where} holds no events: was the profiler on while the work ran?")
    columns = {
        name: np.concatenate([part[name] for part in reading.parts]) for name in reading.parts[0]
    }
    # Times are since the profiler was started, as long as it says when that was.
    began_ns = reading.began_ns if columns["start_ns"].max() < reading.began_ns // 2 else 0
    return tidied(
        Columns(
            **columns,
            lanes=tuple(reading.lanes),
            names=tuple(reading.names),
            details=tuple(reading.details),
            source="XLA's profiler",
            origin_ns=began_ns,
            notes=[
                f"{count(n, 'event')} {why} left out" for why, n in reading.left_out.items() if n
            ],
        )
    )


class _Rows:
    """The events of a plane. `names`: their distinct names; `name`: codes into them. `is_op`: which
    are operations of a program, of the number `program`. `on_worker`: which are on threads that run
    programs.
    """

    def __init__(self, plane: Plane, events: Events) -> None:
        import numpy as np

        self.plane, self.events = plane, events
        self.metadata, self.name = np.unique(events.metadata, return_inverse=True)
        self.names = [plane.names.get(int(number), "") for number in self.metadata]
        self.is_op = np.zeros(len(events.line), dtype=bool)
        if "hlo_op" in events.stats:
            self.is_op[events.stats["hlo_op"].row] = True
        self.has_ops = bool(self.is_op.any())
        self.program = np.where(self.is_op, flows.numbers(events, "program_id"), flows.NOT_ONE)
        workers = [xla.is_worker(line.name) for line in plane.lines]
        self.on_worker = np.array(workers, dtype=bool)[events.line]

    def called(self, says: Callable[[str], object]) -> np.ndarray:
        """A mask of the events whose name `says` so; each name is asked about once."""
        import numpy as np

        mask: np.ndarray = np.array([bool(says(name)) for name in self.names])[self.name]
        return mask

    def texts(self, stat: str) -> Iterator[tuple[int, str]]:
        """Row and text of each event that has this stat."""
        found = self.events.stats.get(stat)
        if found is None:
            return
        for row, value, begin, stop, refers in zip(*(c.tolist() for c in found), strict=True):
            if begin:
                yield row, self.plane.text(begin, stop)
            else:
                yield row, self.plane.stat_names.get(value, "") if refers else str(value)


class _Reading:
    """A trace under way: `parts` are columns by plane, of codes of `lanes`, `names`, `details`."""

    def __init__(self, data: bytes, planes: list[Plane]) -> None:
        self._data = data
        self.parts: list[dict[str, np.ndarray]] = []
        self.lanes: dict[Lane, int] = {}
        self.names: dict[str, int] = {}
        self.details: dict[str, int] = {"": 0}
        self.left_out: Counter[str] = Counter()
        starts = [plane.stats.get("profile_start_time") for plane in planes]
        self.began_ns = max((ns for ns in starts if isinstance(ns, int)), default=0)
        self._threads: dict[tuple[str, int], int] = {}
        self._programs = dict(_programs(planes))
        self._operations: dict[int, dict[str, Operation]] = {}

    def add(self, rows: _Rows) -> None:
        """Add the events of a plane."""
        import numpy as np

        events = rows.events
        self.left_out["without a time that can be"] += int((~events.good).sum())
        self.left_out["standing for several"] += int((events.good & ~events.whole).sum())
        lane, kind, name, detail = self._meanings(rows)
        link = _joined(rows, kind)
        marks = kind == KINDS.index("annotation")
        kind[marks & (flows.numbers(events, "step_num") != flows.NOT_ONE)] = KINDS.index("step")
        kept = (kind != LEFT_OUT) & events.good & events.whole
        nbytes = np.full(len(kind), NO_BYTES)
        self._tell_copies(rows, name, nbytes)
        self._tell_details(rows, detail)
        columns = {
            "start_ns": events.start_ns,
            "end_ns": events.end_ns,
            "lane": lane,
            "kind": kind,
            "name": name,
            "nbytes": nbytes,
            "link": link,
            "detail": detail,
        }
        self.parts.append({key: column[kept] for key, column in columns.items()})

    def _meanings(self, rows: _Rows) -> list[np.ndarray]:
        """Codes of lane, kind, name and detail. What is the same line, name and program is asked
        about once.
        """
        import numpy as np

        programs, program = np.unique(rows.program, return_inverse=True)
        shape = (len(rows.plane.lines), len(rows.names), len(programs), 2)
        key = np.ravel_multi_index((rows.events.line, rows.name, program, rows.is_op + 0), shape)
        distinct, which = np.unique(key, return_inverse=True)
        meanings = [
            self._meaning(rows, line, name, int(programs[code]), bool(is_op))
            for line, name, code, is_op in zip(*np.unravel_index(distinct, shape), strict=True)
        ]
        return [column[which] for column in np.array(meanings, dtype=np.int32).T]

    def _meaning(
        self, rows: _Rows, line: int, code: int, program: int, is_op: bool
    ) -> tuple[int, int, int, int]:
        name, thread = rows.names[code], rows.plane.lines[line]
        operation = self._operation(program, name) if is_op else None
        op = (operation.opcode if operation else name) if is_op else ""
        found = xla.classify(rows.plane.name, thread.name, name, op)
        if _AWAIT.match(name):
            found = Lane("", thread.name), "wait"
        if name == flows.RUN and not rows.has_ops and xla.is_worker(thread.name):
            found, name = (xla.worker_lane(thread.name), "device"), TASK
        if found is None:
            return 0, LEFT_OUT, 0, 0
        lane, kind = found
        if not lane.device:
            same = (rows.plane.name, thread.number or -line)
            number = self._threads.setdefault(same, len(self._threads) + 1)
            lane = Lane("", f"thread {number} ({xla.short_thread(thread.name)})")
        constants = rows.plane.constants(int(rows.metadata[code])) if lane.device else {}
        scope = operation.scope if operation else str(constants.get("tf_op", "")).rstrip(":")
        return (
            self.lanes.setdefault(lane, len(self.lanes)),
            KINDS.index(kind),
            self.names.setdefault(xla.shown(name), len(self.names)),
            self.details.setdefault(scope, len(self.details)),
        )

    def _operation(self, program: int, name: str) -> Operation | None:
        if program not in self._operations:
            part = self._programs.get(program)
            self._operations[program] = operations(self._data, part) if part else {}
        return self._operations[program].get(name)

    def _tell_copies(self, rows: _Rows, name: np.ndarray, nbytes: np.ndarray) -> None:
        """How much was copied, and between which kinds of memory."""
        for stat in COPIES:
            for row, text in rows.texts(stat):
                if size := _SIZE.search(text):
                    nbytes[row] = min(int(size[1]), 2**63 - 1)
                if ends := _ENDS.search(text):
                    shown = f"{rows.names[rows.name[row]]} ({ends[1]} -> {ends[2]})"
                    name[row] = self.names.setdefault(shown, len(self.names))

    def _tell_details(self, rows: _Rows, detail: np.ndarray) -> None:
        for stat in DETAILS:
            for row, text in rows.texts(stat):
                detail[row] = self.details.setdefault(text.rstrip(":"), len(self.details))


def _joined(rows: _Rows, kind: np.ndarray) -> np.ndarray:
    """Links of all events. Waits and tasks of which both ends are events become one, here and in
    `kind`.
    """
    import numpy as np

    events = rows.events
    link = flows.numbers(events, "correlation_id", NO_LINK)
    link[link < 0] = NO_LINK
    ends, run = rows.called(_AWAIT.match), rows.called(flows.RUN.__eq__)
    kind[ends & ~flows.waits(events, ends)] = LEFT_OUT
    if not rows.on_worker.any():
        return link
    kind[run & ~flows.tasks(events, run, rows.called(flows.STOPPED.__eq__))] = LEFT_OUT
    work = np.isin(kind, [KINDS.index(one) for one in DEVICE_KINDS])
    calls = rows.called(xla.is_launch) & (kind != LEFT_OUT)
    flow = flows.launched(events, work, calls, rows.called(flows.GIVEN.__eq__), run)
    return np.where(flow != NO_LINK, flow + FIRST_FLOW, link)


def _programs(planes: list[Plane]) -> Iterator[tuple[int, Part]]:
    """Where the programs lie that the trace holds, by their numbers."""
    for plane in planes:
        for metadata, name in plane.names.items() if plane.name == "/host:metadata" else ():
            content = plane.constants(metadata).get("Hlo Proto")
            if isinstance(content, Part) and (number := _PROGRAM.search(name)):
                yield int(number[1]), content
