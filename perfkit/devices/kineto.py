"""When the kernels of a CUDA device ran, from PyTorch's profiler.

It sees the work of the whole process, CuPy's too, through CUPTI: each kernel and copy by itself,
without the gaps between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from perfkit.devices.base import Clock
from perfkit.intervals import Interval
from perfkit.optional import loaded, require

__all__ = ["can_profile", "profiled"]

ANCHOR = "perfkit anchor"
COPIES = {"Memcpy HtoD": "h2d", "Memcpy DtoH": "d2h", "Memcpy DtoD": "d2d", "Memcpy PtoP": "d2d"}


def can_profile() -> bool:
    """Has the process imported a torch whose profiler knows CUDA? Imports nothing."""
    profiler = getattr(loaded("torch"), "profiler", None)
    if profiler is None:
        return False
    return profiler.ProfilerActivity.CUDA in profiler.supported_activities()


@contextmanager
def profiled(clock: Clock, kinds: Collection[str] = ("CUDA",)) -> Iterator[list[Interval]]:
    """Run the profiler; the list is filled when it stops. The work must have ended by then.

    `kinds` names the device types whose events are taken.
    """
    profiler = require("torch", "--trace").profiler
    rows: list[Interval] = []
    with profiler.profile(activities=list(profiler.supported_activities())) as session:
        start_s = clock()
        with profiler.record_function(ANCHOR):
            pass
        yield rows
    rows += _intervals(session.events(), start_s, kinds)


def _intervals(events: Iterable[Any], start_s: float, kinds: Collection[str]) -> list[Interval]:
    """Events as intervals, on the clock that read `start_s` at the anchor. Theirs counts µs."""
    events = list(events)
    anchor_us = next(event.time_range.start for event in events if event.name == ANCHOR)
    rows = []
    for event in events:
        if event.device_type.name not in kinds or event.name == ANCHOR:
            continue
        begin_s = start_s + 1e-6 * (event.time_range.start - anchor_us)
        end_s = start_s + 1e-6 * (event.time_range.end - anchor_us)
        kind = COPIES.get(event.name[:11], "kernel")
        rows.append(Interval(begin_s, end_s, f"cuda:{event.device_index}", kind, event.name))
    return rows
