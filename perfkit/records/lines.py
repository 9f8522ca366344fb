"""Where the time of a run went, statement by statement, and what each could win at most."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.errors import UsageError
from perfkit.records.base import Bytes, Count, Part, Quality, Record, Seconds
from perfkit.records.machine import Machine

__all__ = ["Function", "LineProfile", "Loop", "Mode", "Statement"]

Mode = Literal["bursts", "exact", "twice", "steps"]


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement: a call over four lines is one row; a compound statement's is its header.

    `hits`: how often it ran, a lower limit unless `hits_exact`. `raw_s`: what the tracer's clock
    said, its own cost included; None where the statement was not traced all the time. `time_s`:
    true time with all that it called. `self_s`: the same without other profiled functions.
    `share`: `time_s` over the run's corrected wall time, recursion counted once, with an
    `uncertainty` in the same unit. `loop`: line of the innermost loop around it in its function,
    0 outside loops; `tight`: it shares a loop with others that are too short to be told apart, so
    that the loop's sum is the number to trust. `host_s`, `device_s`: host time without the waiting
    that perfkit added, and device time of what it launched, where each statement was waited for;
    `host_bytes`, `device_bytes`: memory that it left allocated; `host_peak_bytes`: how far it
    grew on the way.
    """

    function: str
    file: str = ""
    line: Count
    end_line: Count
    source: str
    hits: Count
    hits_exact: bool = True
    raw_s: Seconds | None = None
    time_s: Seconds
    self_s: Seconds
    share: Part
    uncertainty: Part
    loop: Count = 0
    tight: bool = False
    host_s: Seconds | None = None
    device_s: Seconds | None = None
    host_bytes: int | None = None
    host_peak_bytes: Bytes | None = None
    device_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def bound(self) -> float | None:
        """How many times faster the run would be if this took no time (Amdahl 1967)."""
        return 1 / (1 - self.share) if self.share < 1 else None

    def speed_up(self, factor: float) -> float:
        """How many times faster the run would be if this were `factor` times faster (Amdahl)."""
        if not factor > 0:
            raise UsageError(f"factor is {factor!r}: give a number above 0, such as 10")
        return 1 / (1 - self.share + self.share / factor)


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A loop's sum over its header and body, with all that they called. Fields as in Statement."""

    function: str
    file: str = ""
    line: Count
    end_line: Count
    time_s: Seconds
    share: Part
    uncertainty: Part
    tight: bool = False


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A profiled function (or the cell) and where it stands."""

    name: str
    file: str = ""
    line: Count
    time_s: Seconds
    share: Part


class LineProfile(Record, frozen=True, kw_only=True):
    """A line profile of one run of a cell or function.

    `mode`: bursts (traced in short bursts, time from ticks in between), exact (all traced), twice
    (a plain run for time, a traced one for hits) or steps (stopped after each statement, for
    device time and memory). `wall_s`: the run without perfkit's own cost; `elapsed_s`: with it;
    `plain_s`: the plain run of `twice`; all three without the time in which the thread had no
    core. `ticks`: samples that the times stand on. `traced_share`: part of the elapsed time in
    which lines were traced.
    """

    label: str = ""
    mode: Mode
    synchronized: bool = False
    memory: bool = False
    wall_s: Seconds
    elapsed_s: Seconds
    plain_s: Seconds | None = None
    ticks: Count = 0
    bursts: Count = 0
    traced_share: Part = 1.0
    functions: tuple[Function, ...] = ()
    statements: tuple[Statement, ...] = ()
    loops: tuple[Loop, ...] = ()
    backends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = ""
    machine: Machine
    quality: Quality

    @property
    def overhead(self) -> float | None:
        """How many times slower the profiled run was than a plain one."""
        return self.elapsed_s / self.wall_s if self.wall_s else None

    def at(self, line: int, function: str | None = None) -> Statement:
        """The hottest statement on a line (of a function). Raises UsageError if none is there."""
        found = [
            row
            for row in self.statements
            if row.line <= line <= row.end_line and function in (None, row.function)
        ]
        if not found:
            where = f" of {function}" if function else ""
            raise UsageError(f"no statement on line {line}{where} was profiled: see .statements")
        return max(found, key=lambda row: row.time_s)
