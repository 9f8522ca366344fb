"""The steps of a loop: how long each took, and how much of it the device worked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfkit.errors import UsageError
from perfkit.records.timeline import Step
from perfkit.timeline.busy import Union
from perfkit.timeline.columns import Columns
from perfkit.timeline.kineto import step_number

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Marks", "parse_range", "step_table", "steps_in"]

ENOUGH_STEPS = 4
"""Fewer have no outliers."""
FAR, FACTOR = 5.0, 1.25
"""An outlier takes FACTOR times the median, and is FAR median absolute deviations above it."""


class Marks:
    """The steps of a trace: `name`, `number` (None if it has none), `start_ns`, `end_ns` by step.

    A step lasts until the next one begins, the last one to its own end: what a loop does between
    two marks belongs to the step before.
    """

    def __init__(self, columns: Columns, rows: np.ndarray) -> None:
        import numpy as np

        self.names = [columns.names[code] for code in columns.name[rows]]
        details = [columns.details[code] for code in columns.detail[rows]]
        self.numbers = [step_number(*pair) for pair in zip(self.names, details, strict=True)]
        self.start_ns = columns.start_ns[rows]
        own_ends = columns.end_ns[rows]
        self.end_ns = np.concatenate((self.start_ns[1:], own_ends[-1:]))

    def __len__(self) -> int:
        return len(self.names)

    def at(self, when_ns: np.ndarray) -> np.ndarray:
        """The index of the step that each time lies in; -1 outside all of them."""
        import numpy as np

        if not len(self):
            return np.full(len(when_ns), -1)
        index = np.searchsorted(self.start_ns, when_ns, side="right") - 1
        late = when_ns >= self.end_ns[np.maximum(index, 0)]
        found: np.ndarray = np.where(late, -1, index)
        return found

    def counts(self, when_ns: np.ndarray) -> np.ndarray:
        """How many of the times lie in each step."""
        import numpy as np

        at = self.at(when_ns)
        return np.bincount(at[at >= 0], minlength=len(self))


def parse_range(text: str) -> tuple[int, int]:
    """The first and the last step that "3:5" names; "3" is one step. Raises UsageError."""
    first, colon, last = text.partition(":")
    numbers = (first, last if colon else first)
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise UsageError(f"steps {text!r}: give the first and the last one, such as 3:5")
    return int(numbers[0]), int(numbers[1])


def steps_in(columns: Columns) -> Marks:
    """The steps of the series that has most of them: a trace may hold the profiler's own besides
    the user's, and the same on several threads.
    """
    import numpy as np

    rows = np.flatnonzero(columns.of_kind("step"))
    series = [
        (columns.lane[row], columns.names[columns.name[row]].rstrip("0123456789")) for row in rows
    ]
    if not series:
        return Marks(columns, rows)
    most, _ = Counter(series).most_common(1)[0]
    return Marks(columns, rows[[one == most for one in series]])


def step_table(
    marks: Marks, busy: Union | None, blocking_ns: np.ndarray, compiles_ns: np.ndarray
) -> tuple[Step, ...]:
    """One record a step. `busy`: when the device worked; the others: when it happened."""
    import numpy as np

    if not len(marks):
        return ()
    lasting_ns = marks.end_ns - marks.start_ns
    busy_ns = None if busy is None else busy.until(marks.end_ns) - busy.until(marks.start_ns)
    blocking, compiles = marks.counts(blocking_ns), marks.counts(compiles_ns)
    middle = np.median(lasting_ns)
    apart = np.median(np.abs(lasting_ns - middle))
    far = (lasting_ns > FACTOR * middle) & (lasting_ns > middle + FAR * apart)
    return tuple(
        Step(
            name=marks.names[i],
            number=marks.numbers[i],
            start_s=1e-9 * int(marks.start_ns[i]),
            duration_s=1e-9 * int(lasting_ns[i]),
            busy_s=None if busy_ns is None else 1e-9 * int(busy_ns[i]),
            duty_cycle=None
            if busy_ns is None or not lasting_ns[i]
            else min(1.0, int(busy_ns[i]) / int(lasting_ns[i])),
            blocking_copies=int(blocking[i]),
            compiles=int(compiles[i]),
            outlier=bool(far[i]) and len(marks) >= ENOUGH_STEPS,
        )
        for i in range(len(marks))
    )
