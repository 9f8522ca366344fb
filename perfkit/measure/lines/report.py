"""The record of a line profile, from what was observed."""

from __future__ import annotations

import ast
import dis
import math
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Literal, NamedTuple

from perfkit.measure.lines.attribution import (
    CALL_EVENTS,
    Attributed,
    Traced,
    attribute,
    attribute_exactly,
)
from perfkit.measure.lines.calibration import Costs
from perfkit.measure.lines.events import LOCAL
from perfkit.measure.lines.profiled import Profiled, inner_code
from perfkit.measure.lines.sampler import Sampler
from perfkit.measure.lines.statements import Layout, Row
from perfkit.measure.lines.targets import words_in
from perfkit.records.base import Quality
from perfkit.records.lines import Function, LineProfile, Loop, Statement
from perfkit.records.timing import DISTURBED
from perfkit.system.facts import machine

__all__ = ["Observed", "file_name", "record"]

SURE = {"bursts": 0.06 if LOCAL else 0.07, "twice": 0.05, "exact": 0.01}
"""Uncertainty of a share of one half, measured on programs of known shares; 90 % lie within."""
FEW_TICKS, FEW_SURE = 20, 0.06
LEAST_TICKS = 5
"""Below these ticks say nothing."""
BUSY = 0.1
"""A neighbour widens it by such a part of the time that it took: caches are shared too."""
CALIBRATION = 0.35
"""How far the seconds taken off for line events may be off, as a share: events cost more between
the lines of a real program than in the calibration's loop.
"""
SLOW_APPEND_S = 2e-6
"""`text += more` takes less than this where it can grow in place."""
LIGHT = 0.15
"""Tracing that costs a smaller part of the run leaves the tracer's own times right."""
LOOP_SPLIT = 0.25
"""Rows of one tight loop are known to such a part of the loop's share."""


class Observed(NamedTuple):
    """All that a run has left. `table`: hits and nanoseconds by line, by the code's id. `plain`:
    the sampler of the plain run of 'twice'. `elapsed_s`: of each run. `has_base`: the first layout
    is the body itself, which ran once.
    """

    label: str
    mode: Literal["bursts", "exact", "twice"]
    profiled: Profiled
    table: dict[int, dict[int, tuple[int, int]]]
    costs: Costs
    sampler: Sampler
    plain: Sampler | None
    elapsed_s: tuple[float, ...]
    has_base: bool
    notes: tuple[str, ...]
    stopped: str


def record(seen: Observed) -> LineProfile:
    """Attribute, judge, and build the record."""
    traced = _traced(seen)
    timed = seen.plain or seen.sampler
    always = seen.plain is not None or seen.mode == "exact" or not seen.sampler.off_s
    found: Attributed | None = None
    removed: dict[int, float] = {}
    if always:
        elapsed_s = max(1e-9, seen.elapsed_s[-1] - seen.sampler.own_s)
        found, removed = attribute_exactly(
            seen.profiled, seen.sampler.weights, traced, seen.costs, elapsed_s
        )
    if seen.plain is not None and found is not None and len(seen.elapsed_s) == 2:
        plain_s, traced_s = seen.elapsed_s
        costly = traced_s > (1 + LIGHT) * plain_s or sum(removed.values()) > LIGHT * traced_s
        if costly and timed.ticks >= LEAST_TICKS:
            found, removed = None, {}
        else:
            # Tracing cost next to nothing: the tracer's own times are the best there are.
            found.scale(max(1e-9, seen.elapsed_s[0] - seen.plain.own_s))
    if found is None:
        traced_weights = seen.sampler.weights if seen.plain is not None else None
        found = attribute(seen.profiled, timed.weights, traced, seen.costs, traced_weights)
    found.fit()
    _add_threads(found, seen, timed)
    all_traced = always and not seen.sampler.displaced
    return _Builder(seen, traced, found, removed, all_traced).profile()


def _traced(seen: Observed) -> dict[int, Traced]:
    """Hits and seconds of each statement, with those that were under way at a switch."""
    found: dict[int, Traced] = {}
    partial = seen.sampler.partial
    for owner, layout in enumerate(seen.profiled.layouts):
        lines = seen.table.get(id(layout.code), {})
        events = {line: hits for line, (hits, _) in lines.items()}
        raw_ns = [0.0] * len(layout.rows)
        unfinished = [0] * len(layout.rows)
        for line, (_, ns) in lines.items():
            if line in layout.row_of_line:
                raw_ns[layout.row_of_line[line]] += ns
        bytecode = hash(layout.code.co_code)
        for (key, line), (part_ns, count) in partial.items():
            if key == bytecode and line in layout.row_of_line:
                raw_ns[layout.row_of_line[line]] += part_ns
                unfinished[layout.row_of_line[line]] += count
        start = seen.profiled.starts[owner]
        inner = _inner_events(layout, seen.table)
        for place, row in enumerate(layout.rows):
            hits = layout.hits(row, events)
            if seen.stopped and _is_under_way(row, bytecode, seen.sampler.last_lines):
                hits += 1
            raw_s = 1e-9 * raw_ns[place]
            if hits:
                raw_s += 0.5 * seen.sampler.halves.get(start + place, 0) * raw_s / hits
            if hits or raw_s:
                found[start + place] = Traced(hits, raw_s, unfinished[place], inner.get(place, 0.0))
    return found


def _is_under_way(row: Row, bytecode: int, lines: set[tuple[int, int]]) -> bool:
    return any((bytecode, line) in lines for line in range(row.line, row.end_line + 1))


def _inner_events(
    layout: Layout, table: Mapping[int, dict[int, tuple[int, int]]]
) -> dict[int, float]:
    """Events in the comprehensions and lambdas of each statement, by its place."""
    found: dict[int, float] = {}
    for code in inner_code(layout.code):
        place = layout.row_of_line.get(code.co_firstlineno)
        hits = sum(count for count, _ in table.get(id(code), {}).values())
        if place is not None and hits:
            calls = hits if code.co_name == "<lambda>" else 0
            found[place] = found.get(place, 0.0) + hits + CALL_EVENTS * calls
    return found


def _add_threads(found: Attributed, seen: Observed, timed: Sampler) -> None:
    """Time of other threads counts for their statements, and not for the run."""
    if not timed.other_threads:
        return
    traced: Mapping[int, Traced] = {}
    others = attribute(seen.profiled, timed.other_threads, traced, seen.costs)
    for mine, theirs in (
        (found.time_s, others.time_s),
        (found.self_s, others.self_s),
        (found.layouts, others.layouts),
    ):
        for key, seconds in theirs.items():
            mine[key] = min(found.wall_s, mine.get(key, 0.0) + seconds)
    for block, seconds in others.loops.items():
        found.loops[block] = min(found.wall_s, found.loops.get(block, 0.0) + seconds)


class _Builder:
    def __init__(
        self,
        seen: Observed,
        traced: Mapping[int, Traced],
        found: Attributed,
        removed: Mapping[int, float],
        all_traced: bool,
    ) -> None:
        self._seen, self._traced, self._found = seen, traced, found
        self._removed, self._all_traced = removed, all_traced
        self._profiled = seen.profiled
        self._wall_s = found.wall_s
        self._notes = dict.fromkeys(seen.notes)
        self._inexact = _in_untraced_threads(seen) if all_traced else _inexact(seen)
        self._ticks = (seen.plain or seen.sampler).ticks

    def profile(self) -> LineProfile:
        seen, sampler = self._seen, self._seen.sampler
        elapsed_s = sum(seen.elapsed_s)
        shown = [
            owner
            for owner in range(len(self._profiled.layouts))
            if self._was_seen(owner) or (seen.has_base and owner == 0)
        ]
        statements = tuple(row for owner in shown for row in self._statements(owner))
        return LineProfile.of(
            label=seen.label,
            mode=seen.mode,
            wall_s=self._wall_s,
            elapsed_s=elapsed_s,
            plain_s=seen.elapsed_s[0] if seen.plain else None,
            ticks=self._ticks,
            bursts=sampler.bursts,
            traced_share=self._traced_share(),
            functions=tuple(self._function(owner) for owner in shown),
            statements=statements,
            loops=tuple(row for owner in shown for row in self._loops(owner)),
            notes=(*self._notes, *self._warnings()),
            stopped=seen.stopped,
            machine=machine(),
            quality=self._quality(),
        )

    def _was_seen(self, owner: int) -> bool:
        if self._found.layouts.get(owner):
            return True
        return any(number in self._traced for number in self._profiled.numbers(owner))

    def _traced_share(self) -> float:
        elapsed_s = self._seen.elapsed_s[-1]
        return max(0.0, 1 - self._seen.sampler.off_s / elapsed_s) if elapsed_s else 1.0

    def _share(self, seconds: float) -> float:
        return min(1.0, seconds / self._wall_s) if self._wall_s else 0.0

    def _function(self, owner: int) -> Function:
        layout = self._profiled.layouts[owner]
        seconds = self._found.layouts.get(owner, 0.0)
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
            seconds = self._found.loops.get((owner, line), 0.0)
            yield Loop(
                function=layout.name,
                file=file_name(layout.code),
                line=line,
                end_line=end_line,
                time_s=seconds,
                share=self._share(seconds),
                uncertainty=self._of_loop(owner, line),
                tight=(owner, line) in self._found.pools,
            )

    def _statements(self, owner: int) -> Iterator[Statement]:
        layout = self._profiled.layouts[owner]
        for place, row in enumerate(layout.rows):
            number = self._profiled.starts[owner] + place
            time_s = self._found.time_s.get(number, 0.0)
            traced = self._traced.get(number, Traced())
            hits, exact = self._hits(layout, number, place, traced)
            yield Statement(
                function=layout.name,
                file=file_name(layout.code),
                line=row.line,
                end_line=row.end_line,
                source=layout.source(row),
                hits=hits,
                hits_exact=exact,
                raw_s=traced.raw_s if self._all_traced else None,
                time_s=time_s,
                self_s=min(time_s, self._found.self_s.get(number, 0.0)),
                share=self._share(time_s),
                uncertainty=self._uncertainty(number, (owner, row.loop)),
                loop=row.loop,
                tight=number in self._found.tight,
            )

    def _hits(self, layout: Layout, number: int, place: int, traced: Traced) -> tuple[int, bool]:
        is_base = self._seen.has_base and self._profiled.owners[number] == 0
        if is_base and layout.rows[place].once and not self._all_traced:
            # Outside loops and branches a statement of the cell runs once or not at all.
            seen = traced.hits or traced.unfinished or self._found.counts.get(number)
            ran = bool(seen) or not self._seen.stopped or self._passed(number)
            return int(ran), ran
        exact = number not in self._inexact and not self._seen.sampler.displaced
        exact = exact and not layout.hides_turns(layout.rows[place])
        return traced.hits, exact

    def _passed(self, number: int) -> bool:
        return any(later > number and later in self._traced for later in self._profiled.numbers(0))

    # -- how sure ------------------------------------------------------------------------------

    def _whole(self, share: float) -> float:
        """Uncertainty of the share of a whole statement, loop or call."""
        most = SURE[self._seen.mode]
        if self._ticks < FEW_TICKS and self._seen.mode != "exact":
            most = FEW_SURE
        if self._all_traced and self._seen.mode == "bursts":
            most = SURE["exact"]
        most += BUSY * min(0.3, self._wait_share)
        tick = 1 / max(self._ticks, 1)
        spread = max(most * math.sqrt(4 * share * (1 - share)), 0.005, min(tick, most))
        if self._ticks < FEW_TICKS:
            spread += self._missing
        return min(1.0, spread)

    def _of_loop(self, owner: int, line: int) -> float:
        layout = self._profiled.layouts[owner]
        removed_s = sum(
            self._removed.get(number, 0.0)
            for number in self._profiled.numbers(owner)
            if line in layout.loops_around(self._profiled.statement(number))
        )
        share = self._share(self._found.loops.get((owner, line), 0.0))
        return min(1.0, self._whole(share) + self._of_removal(removed_s, share))

    def _of_removal(self, removed_s: float, share: float) -> float:
        """What an error in the cost of an event does to a share: to its time and to the whole."""
        if not self._removed or not self._wall_s:
            return 0.0
        whole_s = max(0.0, self._seen.elapsed_s[-1] - self._wall_s)
        return min(1.0, CALIBRATION * (removed_s + share * whole_s) / self._wall_s)

    @cached_property
    def _missing(self) -> float:
        """Share of the run that no statement has: in a very short one that is somebody's."""
        if self._seen.has_base:
            used_s = sum(self._found.time_s.get(n, 0.0) for n in self._profiled.numbers(0))
        else:
            used_s = sum(self._found.self_s.values())
        return max(0.0, 1 - used_s / self._wall_s) if self._wall_s else 1.0

    def _uncertainty(self, number: int, block: tuple[int, int]) -> float:
        whole = self._whole(self._share(self._found.time_s.get(number, 0.0)))
        if number in self._found.tight:
            return max(whole, LOOP_SPLIT * self._share(self._found.pools[block]))
        share = self._share(self._found.time_s.get(number, 0.0))
        return min(1.0, whole + self._of_removal(self._removed.get(number, 0.0), share))

    @property
    def _wait_share(self) -> float:
        waited_s = (self._seen.plain or self._seen.sampler).waited_s
        spent_s = waited_s + self._seen.elapsed_s[0]
        return waited_s / spent_s if spent_s else 0.0

    def _quality(self) -> Quality:
        reasons = []
        if self._seen.stopped:
            reasons.append(f"stopped by {self._seen.stopped}")
        if self._ticks < FEW_TICKS and self._seen.mode != "exact" and self._is_costly():
            reasons.append(
                f"too short: {self._ticks} ticks; repeat the work inside the cell until it takes "
                "100 ms"
            )
        if self._seen.costs.spread > 0.15 and self._removed:
            reasons.append(
                f"the cost of an event scattered by {100 * self._seen.costs.spread:.0f} %: the "
                "machine is busy"
            )
        if self._seen.sampler.failure:
            reasons.append(self._seen.sampler.failure)
        waits = self._wait_share
        if waits > DISTURBED:
            reasons.append(
                f"the thread waited for a core in {100 * waits:.0f} % of the time, which is left "
                "out of all figures"
            )
        source = "tracer, less its own cost" if self._removed else "ticks between bursts"
        return Quality(
            status="suspect" if reasons else "valid",
            reasons=tuple(reasons),
            wait_share=waits,
            source=source,
        )

    def _is_costly(self) -> bool:
        """Did tracing take a part of the run that matters, or was it never on?"""
        removed_s = sum(self._removed.values())
        return not self._all_traced or removed_s > 0.1 * sum(self._seen.elapsed_s)

    def _warnings(self) -> Iterator[str]:
        seen = self._seen
        heavy = [
            number
            for number, seconds in self._removed.items()
            if number in self._traced
            and seconds > 0.5 * self._traced[number].raw_s
            and self._share(self._found.time_s.get(number, 0.0)) > 0.05
        ]
        if heavy and seen.mode == "exact":
            yield (
                "the tracer's own cost was more than half of what it measured on "
                f"{_lines(self._profiled, heavy)}: run without --exact for true shares"
            )
        if seen.plain is not None and len(seen.elapsed_s) == 2:
            difference = seen.elapsed_s[1] / seen.elapsed_s[0] if seen.elapsed_s[0] else 1.0
            yield f"the traced run took {difference:.2f} times as long as the plain one"
        timed = seen.plain or seen.sampler
        if timed.other_threads:
            yield (
                "other threads ran profiled code: their waits for the interpreter lock count as "
                "time, so that their shares are too high by 3 to 16 points"
            )
            if not LOCAL and seen.mode == "bursts":
                yield "hits in other threads are counted with --exact alone before Python 3.12"
        if not LOCAL and self._all_traced:
            for number in self._found.time_s:
                layout, place = self._profiled.row(number)
                hits = self._traced[number].hits if number in self._traced else 0
                slow = self._found.self_s.get(number, 0.0) > SLOW_APPEND_S * max(1, hits)
                if slow and hits > 100 and _may_grow_text(layout, place):
                    yield (
                        f"{_lines(self._profiled, [number])} may grow a text with "
                        "+=, which tracing makes quadratic before Python 3.12: its share means "
                        "nothing here"
                    )


def _lines(profiled: Profiled, numbers: list[int]) -> str:
    named = []
    for number in numbers[:4]:
        layout, place = profiled.row(number)
        owner = "the cell" if layout.name == "<cell>" else layout.name
        named.append(f"line {layout.rows[place].line} of {owner}")
    return ", ".join(named) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")


def _may_grow_text(layout: Layout, place: int) -> bool:
    row = layout.rows[place]
    return bool(row.loop) and row.kind is ast.AugAssign and "+=" in layout.source(row)


def _in_untraced_threads(seen: Observed) -> set[int]:
    """Statements of functions that ran in other threads, which bursts do not trace before 3.12."""
    if LOCAL or seen.mode != "bursts":
        return set()
    owners = {
        seen.profiled.owners[number]
        for stack in seen.sampler.other_threads
        for number in (*stack.outer, stack.top)
    }
    return {number for owner in owners for number in seen.profiled.numbers(owner)}


def _inexact(seen: Observed) -> set[int]:
    """Statements that may have run while nothing was traced: their hits are a lower limit.

    Seen there by a tick; or lying between two places where the cell was seen; or in a function
    whose name stands in such a statement.
    """
    profiled, sampler = seen.profiled, seen.sampler
    found: set[int] = set()
    owners = {profiled.owners[number] for number in _in_untraced_threads(seen)}
    for number in sampler.unseen - {-1}:
        layout, place = profiled.row(number)
        owner = profiled.owners[number]
        if seen.has_base and owner == 0:
            loops = set(layout.loops_around(layout.rows[place]))
            outermost = max(loops, key=lambda line: layout.loops[line][0], default=0)
            found |= {
                each
                for each in profiled.numbers(owner)
                if outermost and outermost in set(layout.loops_around(profiled.statement(each)))
            } | {number}
        else:
            owners.add(owner)
    if seen.has_base:
        for first, last in sampler.base_moves:
            low, high = min(first, last), max(first, last)
            found |= {n for n in profiled.numbers(0) if low <= n <= high}
    return _spread_by_name(profiled, found, owners)


def _spread_by_name(profiled: Profiled, found: set[int], owners: set[int]) -> set[int]:
    """Add the functions whose names stand in statements that are in `found`."""
    by_name: dict[str, set[int]] = {}
    for owner, layout in enumerate(profiled.layouts):
        by_name.setdefault(layout.code.co_name, set()).add(owner)
    done: set[int] = set()
    names = {name for number in found for name in _names_on(profiled, number)}
    while True:
        owners |= {owner for name in names for owner in by_name.get(name, ())}
        new = owners - done
        if not new:
            break
        done |= new
        names = {name for owner in new for name in words_in(profiled.layouts[owner].code)}
    for owner in owners:
        found |= set(profiled.numbers(owner))
    return found


def _names_on(profiled: Profiled, number: int) -> set[str]:
    layout, place = profiled.row(number)
    row = layout.rows[place]
    names = set()
    for instruction in dis.get_instructions(layout.code):
        line = instruction.positions.lineno if instruction.positions else None
        if line is not None and row.line <= line <= row.end_line:
            if isinstance(instruction.argval, str):
                names.add(instruction.argval)
            elif isinstance(instruction.argval, CodeType):
                names |= words_in(instruction.argval)
    return names


def file_name(code: CodeType) -> str:
    """Where code stands, for people: nothing for a cell."""
    name = code.co_filename
    if "ipykernel_" in name or name.startswith("<ipython-input"):
        return ""
    path = Path(name)
    for folder in map(Path, sys.path):
        if folder.name and path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return path.name
