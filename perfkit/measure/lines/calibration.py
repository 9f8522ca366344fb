"""What one line event costs on this machine now."""

from __future__ import annotations

import time
from typing import NamedTuple

from perfkit.measure.lines.events import LineEvents

__all__ = ["Costs", "calibrate"]

LOOPS, ROUNDS = 1000, 5


class Costs(NamedTuple):
    """Seconds for each hit: in all, and of these what the line itself is charged. `spread`: how
    far the calibrations differ, as a share.
    """

    event_s: float
    inline_s: float
    spread: float


def _kernel(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
        total ^= number
        total += 1
    return total


def calibrate(events: LineEvents) -> Costs:
    """The least of a few short rounds, since a neighbour can only make them longer. Leaves
    `events` off, with the kernel's own hits in it.
    """
    events.add(_kernel.__code__)
    plain, traced, charged = [], [], []
    now = time.perf_counter
    for _ in range(ROUNDS):
        start_s = now()
        _kernel(LOOPS)
        plain.append(now() - start_s)
        before_s = _charged_s(events)
        events.switch_on()
        start_s = now()
        _kernel(LOOPS)
        traced.append(now() - start_s)
        events.switch_off()
        charged.append(_charged_s(events) - before_s)
    hits = 4 * LOOPS
    event_s = max(1e-9, min(traced) - min(plain)) / hits
    inline_s = max(0.0, min(charged) - min(plain)) / hits
    usual_s = sorted(traced)[ROUNDS // 2]
    return Costs(event_s, min(inline_s, event_s), usual_s / min(traced) - 1)


def _charged_s(events: LineEvents) -> float:
    return 1e-9 * sum(ns for _, ns in events.table()[id(_kernel.__code__)].values())
