"""How long a device worked: unions of intervals over its lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perfkit.intervals import merged
from perfkit.timeline.columns import COPIES, Columns

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Busy", "Union", "busy_of", "union_of"]


class Union(NamedTuple):
    """Disjoint stretches, in order: int64 nanoseconds."""

    start_ns: np.ndarray
    end_ns: np.ndarray

    @property
    def total_ns(self) -> int:
        """Length of all of it."""
        return int((self.end_ns - self.start_ns).sum())

    def until(self, when_ns: np.ndarray) -> np.ndarray:
        """How much of it lies before each of the times `when_ns`."""
        import numpy as np

        if not len(self.start_ns):
            return np.zeros(len(when_ns), dtype=np.int64)
        before = np.concatenate(([0], np.cumsum(self.end_ns - self.start_ns)))
        last = np.searchsorted(self.start_ns, when_ns, side="right") - 1
        known = np.maximum(last, 0)
        inside = np.clip(when_ns - self.start_ns[known], 0, None)
        part = np.minimum(inside, self.end_ns[known] - self.start_ns[known])
        covered: np.ndarray = np.where(last < 0, 0, before[known] + part)
        return covered


class Busy(NamedTuple):
    """Figures of one device in ns, as DeviceTimeline defines them."""

    start_ns: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    copy_ns: int
    collective_ns: int
    hidden_ns: int


def union_of(columns: Columns, mask: np.ndarray) -> Union:
    """The union of the intervals in `mask`, over all lanes."""
    return Union(*merged(columns.start_ns[mask], columns.end_ns[mask]))


def busy_of(columns: Columns, work: np.ndarray) -> Busy:
    """What the intervals in `work` add up to. There must be one at least.

    hidden = |copies or collectives| + |compute| - |any of them|, each a union.
    """
    everything = union_of(columns, work)
    compute_ns = union_of(columns, work & columns.of_kind("kernel")).total_ns
    moving = work & columns.of_kind(*COPIES, "collective")
    either = union_of(columns, moving | (work & columns.of_kind("kernel"))).total_ns
    start_ns, end_ns = int(everything.start_ns[0]), int(everything.end_ns[-1])
    return Busy(
        start_ns=start_ns,
        span_ns=end_ns - start_ns,
        busy_ns=everything.total_ns,
        compute_ns=compute_ns,
        copy_ns=union_of(columns, work & columns.of_kind(*COPIES)).total_ns,
        collective_ns=union_of(columns, work & columns.of_kind("collective")).total_ns,
        hidden_ns=union_of(columns, moving).total_ns + compute_ns - either,
    )
