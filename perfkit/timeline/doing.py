"""What the threads of the host were doing: what their intervals mean, and which tells most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfkit.timeline.busy import union_of
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_LINK, Columns
from perfkit.timeline.words import is_input, is_own_line

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NOBODY", "Host", "Level", "covered_ns", "named", "spread", "tell"]

NOBODY = -1

_HOST_KINDS = tuple(kind for kind in KINDS if kind not in (*DEVICE_KINDS, "device_mark"))


class Level(NamedTuple):
    """Intervals that may tell what was done, and where: `asked` is a mask of the stretches. They
    have to cover half of one together, if not `anyway`.
    """

    rows: np.ndarray
    asked: np.ndarray | None = None
    anyway: bool = False


class Host:
    """What the intervals of the host mean, as masks over all intervals. `main`: the thread that
    runs the loop, or NOBODY: the one with the steps, the one called so, one that launches, the one
    that the user marked most, the one seen longest, in this order.
    """

    def __init__(self, columns: Columns, work: np.ndarray) -> None:
        self.columns = columns
        self.for_device = bool((work & columns.of_kind(*DEVICE_KINDS)).any())
        self.all = columns.of_kind(*_HOST_KINDS) & ~work
        self.steps = self.all & columns.of_kind("step")
        self.annotations = self._of_kind("annotation")
        telling = self.annotations | self._of_kind("python", "op", "host")
        self.inputs = named(columns, telling, is_input)
        self.lines = named(columns, self._of_kind("python"), is_own_line)
        self.ops = self._of_kind("op")
        self.calls = self._of_kind("runtime", "wait", "compile", "host")
        self.main = self._main(work)

    def on(self, lane: int, mask: np.ndarray) -> np.ndarray:
        """Rows of the intervals in the mask that are on one thread."""
        import numpy as np

        rows: np.ndarray = np.flatnonzero(mask & (self.columns.lane == lane))
        return rows

    def levels(
        self, lane: int, start_ns: np.ndarray, end_ns: np.ndarray, names: np.ndarray
    ) -> list[Level]:
        """What the user named and lies in the mask `names`: annotations of the thread, lines of it;
        then those of the main thread, where that did nothing but wait for this one.
        """
        found = [Level(self.on(lane, names & mask)) for mask in (self.annotations, self.lines)]
        if lane != self.main and self.main != NOBODY:
            working = self.on(self.main, self.ops | self.calls)
            worked_ns = covered_ns(self.columns, working, start_ns, end_ns)
            quiet = 2 * worked_ns < end_ns - start_ns
            found += [
                Level(self.on(self.main, names & mask), quiet)
                for mask in (self.annotations, self.lines)
            ]
        return found

    def calls_of(self, lane: int) -> list[Level]:
        """What the thread did under the user's names: operators, or calls."""
        return [Level(self.on(lane, mask)) for mask in (self.ops, self.calls)]

    def _of_kind(self, *kinds: str) -> np.ndarray:
        """Without intervals that hold a whole step: to be in one of them says nothing."""
        import numpy as np

        columns, steps = self.columns, np.flatnonzero(self.steps)
        mask = self.all & columns.of_kind(*kinds)
        if len(steps):
            rows = np.flatnonzero(mask)
            at = np.searchsorted(columns.start_ns[steps], columns.start_ns[rows])
            ends_ns = columns.end_ns[steps[np.minimum(at, len(steps) - 1)]]
            mask[rows[(at < len(steps)) & (ends_ns <= columns.end_ns[rows])]] = False
        found: np.ndarray = mask
        return found

    def _main(self, work: np.ndarray) -> int:
        import numpy as np

        columns = self.columns
        if not self.for_device:
            return int(columns.lane[np.argmax(work)])
        if not self.all.any():
            return NOBODY
        count, linked = len(columns.lanes), self.calls & (columns.link != NO_LINK)
        steps, annotations, lines, ops, calls, launches = (
            np.bincount(columns.lane[mask], minlength=count)
            for mask in (self.steps, self.annotations, self.lines, self.ops, self.calls, linked)
        )
        named = np.array(["main" in lane.name for lane in columns.lanes])
        first_ns, last_ns = np.full(count, columns.end_ns.max()), np.zeros(count, dtype=np.int64)
        np.minimum.at(first_ns, columns.lane[self.all], columns.start_ns[self.all])
        np.maximum.at(last_ns, columns.lane[self.all], columns.end_ns[self.all])
        drives = (launches > 0) * 2 + ((ops > 0) & (calls > 0))
        ranks = (last_ns - first_ns, lines, annotations, drives, named, steps)
        return int(np.lexsort(ranks)[-1])


def tell(
    columns: Columns,
    levels: Sequence[Level],
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    found: np.ndarray,
) -> None:
    """Fill in `found`, by stretch, codes of the names that tell most of what was done. Where it is
    NOBODY the first level is asked, where that does not tell the next. The stretches are in order
    and apart.
    """
    import numpy as np

    for level in levels:
        open_ = found == NOBODY
        at = np.flatnonzero(open_ if level.asked is None else open_ & level.asked)
        found[at] = _most(columns, level, start_ns[at], end_ns[at])


def _most(columns: Columns, level: Level, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """By stretch, the innermost name that covers half of it at least, else the one that covers most
    if the level's intervals together cover half; else NOBODY.
    """
    import numpy as np

    found, rows = np.full(len(start_ns), NOBODY), level.rows
    first = np.searchsorted(end_ns, columns.start_ns[rows], side="right")
    behind = np.searchsorted(start_ns, columns.end_ns[rows], side="left")
    which, at = spread(first, np.maximum(first, behind))
    if not len(at):
        return found
    row = rows[which]
    part_ns = np.minimum(columns.end_ns[row], end_ns[at])
    part_ns -= np.maximum(columns.start_ns[row], start_ns[at])
    key = at * len(columns.names) + columns.name[row]
    order = np.argsort(key, kind="stable")
    heads = np.flatnonzero(np.diff(key[order], prepend=-1))
    total_ns = np.add.reduceat(part_ns[order], heads)
    at = at[order[heads]]
    innermost = row[order[np.append(heads[1:], len(order)) - 1]]
    half_ns = (end_ns - start_ns + 1) // 2
    enough = level.anyway | (covered_ns(columns, rows, start_ns, end_ns) >= half_ns)
    for chosen, rank in ((enough[at], total_ns), (total_ns >= half_ns[at], innermost)):
        # Where an index repeats, the last value stays: that of the highest rank.
        best = np.flatnonzero(chosen)
        best = best[np.argsort(rank[best], kind="stable")]
        found[at[best]] = columns.name[innermost[best]]
    return found


def covered_ns(
    columns: Columns, rows: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> np.ndarray:
    """How much of each stretch the intervals cover together. `rows`: in order, or a mask."""
    union = union_of(columns, rows)
    covered: np.ndarray = union.until(end_ns) - union.until(start_ns)
    return covered


def named(columns: Columns, mask: np.ndarray, says: Callable[[str], bool]) -> np.ndarray:
    """The intervals in the mask whose name `says` so; each name is asked about once."""
    import numpy as np

    used = np.bincount(columns.name[mask], minlength=len(columns.names))
    wanted = np.zeros(len(columns.names), dtype=bool)
    wanted[[code for code in np.flatnonzero(used) if says(columns.names[code])]] = True
    found: np.ndarray = mask & wanted[columns.name]
    return found


def spread(first: np.ndarray, behind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (i, j) with first[i] <= j < behind[i]."""
    import numpy as np

    counts = behind - first
    owner = np.repeat(np.arange(len(first)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)
