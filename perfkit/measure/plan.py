"""What is asked of a measurement."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from perfkit.errors import UsageError

__all__ = ["Plan"]


class Plan(NamedTuple):
    """`repeat` samples (1: run once), `warmup` runs before them (None: by time), inside
    `budget_s` seconds. `backends`: watch only these. `synchronize=False` drains nothing.
    `trace`: one run more, under the profiler of each runtime that has one. `graph`: capture one
    run as a graph, and take as many samples of its replay.
    """

    repeat: int | Literal["auto"] = 1
    warmup: int | None = None
    budget_s: float = 2.0
    backends: tuple[str, ...] | None = None
    cold: bool = False
    synchronize: bool = True
    trace: bool = False
    graph: bool = False

    def checked(self) -> Plan:
        """This plan. Raises UsageError in one line where it makes no sense."""
        if self.repeat != "auto" and not _is_whole(self.repeat, least=1):
            raise UsageError(f"repeat is {self.repeat!r}: give a whole number from 1, or 'auto'")
        if self.warmup is not None and not _is_whole(self.warmup, least=0):
            raise UsageError(f"warmup is {self.warmup!r}: give a whole number from 0")
        budget_s = self.budget_s
        if not _is_real(budget_s) or not 0 < budget_s < math.inf:
            raise UsageError(f"budget is {budget_s!r}: give seconds above 0")
        if not self.synchronize and (self.trace or self.graph):
            raise UsageError("--no-sync waits for nothing: leave out --trace and --graph")
        return self


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
