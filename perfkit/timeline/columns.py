"""The one model of a trace: intervals on lanes, as columns.

A trace of a million events is normal, so there is no object for each. Times are whole nanoseconds
since the first event (`origin_ns` on the trace's own clock), exact where floats are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from perfkit.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

_T = TypeVar("_T")

__all__ = ["COPIES", "DEVICE_KINDS", "KINDS", "NO_BYTES", "NO_LINK", "Columns", "Event", "Lane"]

DEVICE_KINDS = ("kernel", "collective", "h2d", "d2h", "d2d", "memset", "device")
"""What runs on a device. `device`: work of which no more is known."""
COPIES = ("h2d", "d2h", "d2d", "memset")
KINDS = (
    *DEVICE_KINDS,
    "step",  # one turn of a training loop, as the user or the profiler marked it
    "annotation",  # a stretch that the user named
    "python",  # a Python function: "train.py(12): log_step"
    "op",  # an operator of the framework: "aten::mm"
    "runtime",  # a call of the device's runtime, such as a launch
    "wait",  # the host blocked in the runtime until the device was done
    "compile",  # a program traced or compiled
    "host",  # anything else on the host
    "device_mark",  # an annotation or a wait that is shown on a device's lane and is no work
)
"""What an interval is. All but DEVICE_KINDS and `device_mark` are on host threads."""
NO_LINK, NO_BYTES = 0, -1


class Lane(NamedTuple):
    """One row of the picture. `device` is empty for a thread of the host.

    `device`: "GPU 0", "TPU 1", "cpu (XLA)"; `name`: "stream 7", "thread 42 (main)".
    """

    device: str
    name: str


class Event(NamedTuple):
    """One interval, for whoever has them one by one. Nanoseconds on the trace's clock.

    `link`: the same positive number on a device's work and on the host call that launched it.
    `detail`: shapes, a call stack, or whatever else says which call it was.
    """

    start_ns: int
    end_ns: int
    lane: Lane
    kind: str
    name: str
    nbytes: int = NO_BYTES
    link: int = NO_LINK
    detail: str = ""


class Columns:
    """Columns of one trace, each as long as the trace, sorted by start (longer first at a tie).

    `start_ns`, `end_ns`: int64, since `origin_ns`. `lane`, `kind`, `name`, `detail`: codes into
    `lanes`, KINDS, `names`, `details` (code 0 of `details` is ""). `nbytes`: int64, NO_BYTES where
    unknown. `link`: int64, NO_LINK where there is none. `notes`: what a reader had to leave out.
    """

    __slots__ = (
        "detail",
        "details",
        "end_ns",
        "kind",
        "lane",
        "lanes",
        "link",
        "name",
        "names",
        "nbytes",
        "notes",
        "origin_ns",
        "source",
        "start_ns",
    )

    def __init__(
        self,
        *,
        start_ns: np.ndarray,
        end_ns: np.ndarray,
        lane: np.ndarray,
        kind: np.ndarray,
        name: np.ndarray,
        nbytes: np.ndarray,
        link: np.ndarray,
        detail: np.ndarray,
        lanes: Sequence[Lane],
        names: Sequence[str],
        details: Sequence[str] = ("",),
        source: str = "",
        origin_ns: int = 0,
        notes: Sequence[str] = (),
    ) -> None:
        """Columns in any order; they are sorted, and times moved so that the first start is 0."""
        import numpy as np

        order = np.lexsort((-end_ns, start_ns))
        first_ns = int(start_ns[order[0]]) if len(order) else 0
        self.start_ns = start_ns[order] - first_ns
        self.end_ns = end_ns[order] - first_ns
        self.lane, self.kind, self.name = lane[order], kind[order], name[order]
        self.nbytes, self.link, self.detail = nbytes[order], link[order], detail[order]
        self.lanes, self.names, self.details = tuple(lanes), tuple(names), tuple(details)
        self.source, self.notes = source, tuple(notes)
        self.origin_ns = origin_ns + first_ns

    @classmethod
    def of(cls, events: Iterable[Event], *, source: str = "", notes: Sequence[str] = ()) -> Self:
        """Columns of events given one by one. Raises UsageError if one ends before it starts."""
        import numpy as np

        rows = list(events)
        wrong = next((row for row in rows if row.end_ns < row.start_ns), None)
        if wrong is not None:
            raise UsageError(f"{wrong.name!r} ends before it starts: give start_ns <= end_ns")
        origin_ns = min((row.start_ns for row in rows), default=0)
        lanes: dict[Lane, int] = {}
        names: dict[str, int] = {}
        details = {"": 0}
        kinds = {kind: code for code, kind in enumerate(KINDS)}
        return cls(
            start_ns=np.array([row.start_ns - origin_ns for row in rows], dtype=np.int64),
            end_ns=np.array([row.end_ns - origin_ns for row in rows], dtype=np.int64),
            lane=np.array([lanes.setdefault(r.lane, len(lanes)) for r in rows], dtype=np.int32),
            kind=np.array([kinds[row.kind] for row in rows], dtype=np.int8),
            name=np.array([names.setdefault(r.name, len(names)) for r in rows], dtype=np.int32),
            nbytes=np.array([row.nbytes for row in rows], dtype=np.int64),
            link=np.array([row.link for row in rows], dtype=np.int64),
            detail=np.array(
                [details.setdefault(r.detail, len(details)) for r in rows], dtype=np.int32
            ),
            lanes=tuple(lanes),
            names=tuple(names),
            details=tuple(details),
            source=source,
            origin_ns=origin_ns,
            notes=notes,
        )

    @classmethod
    def merged(cls, parts: Sequence[Columns]) -> Columns:
        """All intervals of several traces whose clocks agree, on one axis."""
        import numpy as np

        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else cls.of([])
        lanes: dict[Lane, int] = {}
        names: dict[str, int] = {}
        details = {"": 0}
        origin_ns = min(part.origin_ns for part in parts)
        links, shifted = 0, []
        for part in parts:
            columns = {name: getattr(part, name) for name in _PER_EVENT}
            later_ns = part.origin_ns - origin_ns
            columns["start_ns"], columns["end_ns"] = (
                part.start_ns + later_ns,
                part.end_ns + later_ns,
            )
            columns["lane"] = _codes(part.lanes, lanes)[part.lane]
            columns["name"] = _codes(part.names, names)[part.name]
            columns["detail"] = _codes(part.details, details)[part.detail]
            # The same number means different launches in two traces.
            columns["link"] = np.where(part.link == NO_LINK, NO_LINK, part.link + links)
            links = int(columns["link"].max(initial=links)) + 1
            shifted.append(columns)
        return cls(
            **{name: np.concatenate([part[name] for part in shifted]) for name in _PER_EVENT},
            lanes=tuple(lanes),
            names=tuple(names),
            details=tuple(details),
            source=", ".join(dict.fromkeys(part.source for part in parts if part.source)),
            origin_ns=origin_ns,
            notes=[note for part in parts for note in part.notes],
        )

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, mask: np.ndarray) -> Columns:
        """The intervals in `mask` alone."""
        columns = {name: getattr(self, name)[mask] for name in _PER_EVENT}
        return Columns(
            **columns,
            lanes=self.lanes,
            names=self.names,
            details=self.details,
            source=self.source,
            origin_ns=self.origin_ns,
            notes=self.notes,
        )

    def of_kind(self, *kinds: str) -> np.ndarray:
        """A mask of the intervals whose kind is one of `kinds`."""
        import numpy as np

        wanted = np.zeros(len(KINDS), dtype=bool)
        wanted[[KINDS.index(kind) for kind in kinds]] = True
        mask: np.ndarray = wanted[self.kind]
        return mask

    def devices(self) -> tuple[str, ...]:
        """Names of the devices that have work, in natural order."""
        import numpy as np

        used = np.unique(self.lane[self.of_kind(*DEVICE_KINDS)])
        return tuple(sorted({self.lanes[code].device for code in used}, key=_natural))

    def on_device(self, device: str) -> np.ndarray:
        """A mask of the work of one device."""
        lanes = self.of_lanes(lane.device == device for lane in self.lanes)
        mask: np.ndarray = lanes & self.of_kind(*DEVICE_KINDS)
        return mask

    def of_lanes(self, wanted: Iterable[bool]) -> np.ndarray:
        """A mask of the intervals on the lanes for which `wanted` is true."""
        import numpy as np

        flags = np.fromiter(wanted, dtype=bool, count=len(self.lanes))
        mask: np.ndarray = flags[self.lane] if len(self) else np.zeros(0, dtype=bool)
        return mask


_PER_EVENT = ("start_ns", "end_ns", "lane", "kind", "name", "nbytes", "link", "detail")


def _codes(own: Sequence[_T], everything: dict[_T, int]) -> np.ndarray:
    """The codes in `everything` of one trace's own words, which are added to it."""
    import numpy as np

    codes = [everything.setdefault(word, len(everything)) for word in own]
    return np.array(codes, dtype=np.int32)


def _natural(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
