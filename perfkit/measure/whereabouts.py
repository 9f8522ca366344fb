"""Which of the user's lines a thread was on, a thousand times a second, as intervals."""

from __future__ import annotations

import linecache
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from perfkit.measure.lines.targets import is_own
from perfkit.measure.lines.ticks import AlarmTicks, why_no_alarm

__all__ = ["Stretch", "whereabouts"]

Stretch = tuple[int, int, str]
"""(start_ns, end_ns, "train.py(12): log_step(loss)") on time.perf_counter_ns."""
LONGEST_NAME = 60


@contextmanager
def whereabouts() -> Iterator[list[Stretch]]:
    """Watch the calling thread meanwhile; the list is filled at the end, and stays empty where the
    alarm signal cannot be used: to walk a frame from another thread is not safe.

    Of a line, only what it calls outside the user's own code counts as its own.
    """
    seen: list[tuple[int, str, int]] = []

    def look(frame: FrameType | None) -> None:
        while frame is not None and not is_own(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            seen.append((time.perf_counter_ns(), frame.f_code.co_filename, frame.f_lineno))

    stretches: list[Stretch] = []
    if why_no_alarm():
        yield stretches
        return
    # What it has to look up once must not happen in an alarm, where the next one comes meanwhile.
    is_own(look.__code__)
    ticks = AlarmTicks()
    ticks.start(look)
    try:
        yield stretches
    finally:
        ticks.stop()
        stretches += _stretches(seen)


def _stretches(seen: list[tuple[int, str, int]]) -> Iterator[Stretch]:
    """Looks at one line in a row, from the middle between two looks to the next middle."""
    begin = 0
    for i in range(1, len(seen) + 1):
        if i < len(seen) and seen[i][1:] == seen[begin][1:]:
            continue
        start = seen[begin][0] if not begin else (seen[begin - 1][0] + seen[begin][0]) // 2
        end = seen[-1][0] if i == len(seen) else (seen[i - 1][0] + seen[i][0]) // 2
        yield start, end, _name(*seen[begin][1:])
        begin = i


def _name(path: str, number: int) -> str:
    text = " ".join(linecache.getline(path, number).split())
    short = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
    return f"{_file(path)}({number}): {short}" if short else f"{_file(path)}({number})"


def _file(path: str) -> str:
    """A cell's file has a number for a name."""
    is_cell = path.startswith("<ipython-input") or "ipykernel_" in path
    return "cell" if is_cell else Path(path).name
