"""Intervals on lanes, as columns: what ran where, from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["KINDS", "Interval", "Intervals", "covered_s", "merged"]

KINDS = ("kernel", "h2d", "d2h", "d2d", "collective", "compile", "wait", "host", "other")


class Interval(NamedTuple):
    """One stretch of work; times in seconds on one clock, `kind` one of KINDS."""

    start_s: float
    end_s: float
    lane: str
    kind: str = "kernel"
    name: str = ""
    nbytes: int = 0


class Intervals:
    """Columns `start_s`, `end_s`, `lane`, `kind`, `name`, `nbytes`, sorted by start.

    `lane` and `name` are integer codes into `lanes` and `names`; `kind` into KINDS.
    """

    __slots__ = ("end_s", "kind", "lane", "lanes", "name", "names", "nbytes", "start_s")

    def __init__(self, rows: Iterable[Interval]) -> None:
        import numpy as np

        ordered = sorted(rows)
        lanes: dict[str, int] = {}
        names: dict[str, int] = {}
        self.start_s = np.array([row.start_s for row in ordered], dtype=float)
        self.end_s = np.array([row.end_s for row in ordered], dtype=float)
        self.lane = np.array([lanes.setdefault(row.lane, len(lanes)) for row in ordered], dtype=int)
        self.kind = np.array([KINDS.index(row.kind) for row in ordered], dtype=int)
        self.name = np.array([names.setdefault(row.name, len(names)) for row in ordered], dtype=int)
        self.nbytes = np.array([row.nbytes for row in ordered], dtype=np.int64)
        self.lanes = tuple(lanes)
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.start_s)

    def of_kind(self, *kinds: str) -> np.ndarray:
        """A mask of the intervals whose kind is one of `kinds`."""
        import numpy as np

        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])

    def span_s(self) -> float | None:
        """From the first start to the last end; None when there is nothing."""
        return float(self.end_s.max() - self.start_s.min()) if len(self) else None

    def busy_s(self, mask: np.ndarray | None = None) -> float:
        """Length of the union over all lanes: overlap counts once."""
        rows = slice(None) if mask is None else mask
        starts, ends = merged(self.start_s[rows], self.end_s[rows])
        return float((ends - starts).sum())

    def gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the stretches inside the span in which no lane is busy."""
        starts, ends = merged(self.start_s, self.end_s)
        return ends[:-1], starts[1:]


def merged(start_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of intervals as disjoint starts and ends. `start_s` must be sorted."""
    import numpy as np

    if not len(start_s):
        return start_s, end_s
    reach = np.maximum.accumulate(end_s)
    first = np.r_[True, start_s[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return start_s[first], reach[last]


def covered_s(spans: Iterable[tuple[float, float]], start_s: float, end_s: float) -> float:
    """How much of [start_s, end_s] a few spans cover together. Plain Python, no NumPy."""
    total, reach = 0.0, start_s
    for begin, end in sorted(spans):
        begin, end = max(begin, reach), min(end, end_s)
        if end > begin:
            total += end - begin
            reach = end
    return total
