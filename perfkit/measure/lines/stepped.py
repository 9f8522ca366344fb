"""The record of a run that stopped after each statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from perfkit.measure.lines.profiled import Profiled
from perfkit.measure.lines.report import file_name
from perfkit.measure.lines.sampler import DISPLACED
from perfkit.measure.lines.statements import Layout
from perfkit.measure.lines.steps import Steps, Sums
from perfkit.records.base import Quality
from perfkit.records.lines import Function, LineProfile, Loop, Statement
from perfkit.system.facts import machine

__all__ = ["stepped"]

SURE = 0.02


class _Asked(Protocol):
    @property
    def sync(self) -> bool: ...

    @property
    def memory(self) -> bool: ...


def stepped(
    label: str,
    profiled: Profiled,
    steps: Steps,
    elapsed_s: float,
    stopped: str,
    asked: _Asked,
    notes: tuple[str, ...],
) -> LineProfile:
    """Sums by statement as a LineProfile. The wall time is that of the statements, one after the
    other: host and device do not overlap here.
    """
    wall_s = max(1e-9, elapsed_s - steps.own_s + steps.waited_s)
    return _Stepped(label, profiled, steps, wall_s, elapsed_s, stopped, asked, notes).profile()


class _Stepped:
    def __init__(
        self,
        label: str,
        profiled: Profiled,
        steps: Steps,
        wall_s: float,
        elapsed_s: float,
        stopped: str,
        asked: _Asked,
        notes: tuple[str, ...],
    ) -> None:
        self._label, self._profiled, self._steps = label, profiled, steps
        self._wall_s, self._elapsed_s, self._stopped = wall_s, elapsed_s, stopped
        self._asked, self._notes = asked, notes

    def profile(self) -> LineProfile:
        """Build it."""
        owners = {self._profiled.owners[number] for number in self._steps.sums}
        shown = sorted(owners)
        stopped = [f"stopped by {self._stopped}"] if self._stopped else []
        return LineProfile.of(
            label=self._label,
            mode="steps",
            synchronized=self._asked.sync,
            memory=self._asked.memory,
            wall_s=self._wall_s,
            elapsed_s=self._elapsed_s,
            functions=tuple(self._function(owner) for owner in shown),
            statements=tuple(row for owner in shown for row in self._statements(owner)),
            loops=tuple(row for owner in shown for row in self._loops(owner)),
            backends=tuple(sorted(self._steps.worked)),
            notes=(*self._notes, *self._remarks()),
            stopped=self._stopped,
            machine=machine(),
            quality=Quality(
                status="suspect" if stopped else "valid",
                reasons=tuple(stopped),
                source="host clock, stopped after each statement",
            ),
        )

    def _remarks(self) -> Iterator[str]:
        for name, reason in sorted(self._steps.reasons.items()):
            yield f"{name}: {reason}; the waiting for it stands for its device time"
        if self._steps.displaced:
            yield DISPLACED
        if self._asked.sync and not self._steps.worked:
            yield "no device was given work"
        if self._asked.memory:
            yield (
                "memory: what Python and NumPy allocated (tracemalloc); allocating is several "
                "times slower here, so read times from a profile without --memory"
            )

    def _share(self, seconds: float) -> float:
        return min(1.0, seconds / self._wall_s)

    def _sum(self, owner: int, loop: int | None = None) -> float:
        """Own time of a function's statements and of what they call, each once."""
        layout = self._profiled.layouts[owner]
        total = 0.0
        for number in self._profiled.numbers(owner):
            row = self._profiled.statement(number)
            if number in self._steps.sums and (loop is None or loop in layout.loops_around(row)):
                total += self._steps.sums[number].time_s
        return min(total, self._wall_s)

    def _function(self, owner: int) -> Function:
        layout, seconds = self._profiled.layouts[owner], self._sum(owner)
        return Function(
            name=layout.name,
            file=file_name(layout.code),
            line=layout.code.co_firstlineno,
            time_s=seconds,
            share=self._share(seconds),
        )

    def _loops(self, owner: int) -> Iterator[Loop]:
        layout = self._profiled.layouts[owner]
        for line, (end_line, _) in layout.loops.items():
            seconds = self._sum(owner, line)
            yield Loop(
                function=layout.name,
                file=file_name(layout.code),
                line=line,
                end_line=end_line,
                time_s=seconds,
                share=self._share(seconds),
                uncertainty=SURE,
            )

    def _statements(self, owner: int) -> Iterator[Statement]:
        layout = self._profiled.layouts[owner]
        events = self._steps.lines.get(id(layout.code), {})
        for place, number in enumerate(self._profiled.numbers(owner)):
            yield self._statement(layout, place, self._steps.sums.get(number, Sums()), events)

    def _statement(
        self, layout: Layout, place: int, sums: Sums, events: dict[int, int]
    ) -> Statement:
        row = layout.rows[place]
        memory = self._asked.memory
        return Statement(
            function=layout.name,
            file=file_name(layout.code),
            line=row.line,
            end_line=row.end_line,
            source=layout.source(row),
            hits=layout.hits(row, events),
            hits_exact=not layout.hides_turns(row),
            raw_s=sums.time_s,
            time_s=sums.time_s,
            self_s=max(0.0, sums.time_s - sums.inner_s),
            share=self._share(sums.time_s),
            uncertainty=SURE,
            loop=row.loop,
            host_s=sums.host_s if self._asked.sync else None,
            device_s=sums.device_s if self._asked.sync and self._steps.worked else None,
            host_bytes=sums.host_bytes if memory else None,
            host_peak_bytes=max(0, sums.peak_bytes) if memory else None,
            device_bytes=sums.device_bytes if memory and self._steps.counts_device else None,
        )
