"""From ticks and hits to each statement's time."""

from __future__ import annotations

import dis
import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perfkit.measure.lines.calibration import Costs
from perfkit.measure.lines.events import LOCAL
from perfkit.measure.lines.profiled import Profiled, Stack
from perfkit.measure.lines.sampler import LATE_S, Weight
from perfkit.measure.lines.statements import Layout, Row

__all__ = ["Attributed", "Block", "Traced", "attribute"]

MOSTLY = 0.7
"""A block that was traced for more of its time keeps the tracer's own times."""
TIGHT_S = 2e-6
"""Lines that take less for each hit cannot be told apart inside one loop."""
LONG_S = 0.3e-3
"""Statements that take as long as this for each hit can hold a tick back."""
BYTECODE_S, USUAL_BYTECODES = 8e-9, 4.5
"""Before Python 3.12 each bytecode under tracing costs so much more; the calibration's lines have
so many."""

LEAST_BYTECODE_S = 2e-9
"""No bytecode takes less."""

Pool = dict[tuple[int, ...], float]
"""Seconds by the statements under way, the innermost first."""
Block = tuple[int, int]
"""A layout's number and the line of a loop in it, 0 for what is outside loops."""


class Traced(NamedTuple):
    """What the tracer saw of one statement: hits and seconds as it charged them. `unfinished`: how
    often it was under way when tracing stopped. `inner`: events in comprehensions and lambdas that
    are part of it, where they are functions.
    """

    hits: int = 0
    raw_s: float = 0.0
    unfinished: int = 0
    inner: float = 0.0


class Attributed:
    """Seconds by statement number; by block, by layout. `tight`: statements that share their
    loop's time only by the tracer's split; `pools`: that time by block.
    """

    def __init__(self) -> None:
        self.time_s: dict[int, float] = defaultdict(float)
        self.self_s: dict[int, float] = defaultdict(float)
        self.loops: dict[Block, float] = defaultdict(float)
        self.layouts: dict[int, float] = defaultdict(float)
        self.tight: set[int] = set()
        self.pools: dict[Block, float] = defaultdict(float)
        self.counts: dict[int, int] = defaultdict(int)
        self.wall_s = 0.0

    def scale(self, wall_s: float) -> None:
        """Stretch all times to a run of that length."""
        self._multiply(wall_s / self.wall_s if self.wall_s else 1.0)
        self.wall_s = wall_s

    def fit(self) -> None:
        """Shrink times that add up to more than the run, as they do where it was interrupted."""
        used_s = max([sum(self.self_s.values()), *self.time_s.values(), *self.layouts.values()])
        if used_s > self.wall_s:
            self._multiply(self.wall_s / used_s)

    def _multiply(self, factor: float) -> None:
        for times in (self.time_s, self.self_s, self.loops, self.layouts):
            for key in times:
                times[key] *= factor  # type: ignore[index]


def attribute(
    profiled: Profiled,
    weights: Mapping[Stack, Weight],
    traced: Mapping[int, Traced],
    costs: Costs,
    traced_weights: Mapping[Stack, Weight] | None = None,
) -> Attributed:
    """Give each tick's time to the statements under way.

    Statements that wait for a call are certain. Of the innermost one only its block is, since
    ticks arrive at jumps and calls alone: the block's time is split by the tracer's times. What
    ran long in one piece keeps its own ticks. `traced_weights`: ticks of a run that was traced all
    the time, if `traced` is from one.
    """
    found = Attributed()
    pools: dict[Block, Pool] = defaultdict(lambda: defaultdict(float))
    late: dict[Block, Pool] = defaultdict(lambda: defaultdict(float))
    within: dict[Block, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for stack, weight in weights.items():
        found.wall_s += weight.true_s
        if stack.top < 0:
            continue
        _add_certain(found, profiled, stack, weight)
        block = profiled.owners[stack.top], profiled.statement(stack.top).loop
        within[block][0] += weight.traced_s
        within[block][1] += weight.seconds
        if stack.called:
            _add_top(found, stack.top, stack.outer, weight.true_s)
        else:
            kind = late if stack.late else pools
            kind[block][stack.top, *stack.outer] += weight.true_s
    inside = _traced_callees(weights if traced_weights is None else traced_weights)
    own = {
        number: _own_s(*profiled.row(number), seen, inside.get(number, 0.0), costs)
        for number, seen in traced.items()
    }
    long_ = _long(weights, traced)
    for block, pool in late.items():
        traced_s, seconds = within[block]
        trust = traced_weights is not None or traced_s > MOSTLY * seconds
        _place_late(found, profiled, block, pool, own if trust else {}, traced, inside)
    for block, pool in pools.items():
        _split(found, profiled, block, pool, long_, own, traced)
    return found


def _add_certain(found: Attributed, profiled: Profiled, stack: Stack, weight: Weight) -> None:
    """Outer statements, and for all of the stack its loops and functions, each once."""
    blocks: set[Block] = set()
    for number in (*stack.outer, stack.top):
        layout, place = profiled.row(number)
        owner = profiled.owners[number]
        blocks.update((owner, loop) for loop in layout.loops_around(layout.rows[place]))
        found.counts[number] += weight.count
    for number in stack.outer:
        found.time_s[number] += weight.true_s
    for block in blocks:
        found.loops[block] += weight.true_s
    for owner in {profiled.owners[number] for number in (*stack.outer, stack.top)}:
        found.layouts[owner] += weight.true_s


def _add_top(found: Attributed, number: int, outer: Iterable[int], seconds: float) -> None:
    found.self_s[number] += seconds
    if number not in outer:
        found.time_s[number] += seconds


def _long(weights: Mapping[Stack, Weight], traced: Mapping[int, Traced]) -> set[int]:
    """Statements whose own ticks are right: they run long in one piece, or were never traced."""
    tops = {stack.top for stack in weights if not stack.called and not stack.late}
    return {
        number
        for number in tops
        if (seen := traced.get(number, Traced())).raw_s > LATE_S * (seen.hits + seen.unfinished)
        or not seen.hits
    }


def _place_late(
    found: Attributed,
    profiled: Profiled,
    block: Block,
    pool: Pool,
    own: Mapping[int, float],
    traced: Mapping[int, Traced],
    inside: Mapping[int, float],
) -> None:
    """A late tick may lie behind the operator that took the time: where the tracer saw the block,
    its times of the long statements say how the late time is split. Statements that mostly wait
    for other code, of which the tracer's own time is a small difference, keep their ticks.
    """
    long_ = {
        number: own[number]
        for number in profiled.numbers(block[0])
        if profiled.statement(number).loop == block[1]
        and number in own
        and own[number] > LONG_S * max(1, traced[number].hits)
        and inside.get(number, 0.0) < 0.5 * traced[number].raw_s
    }
    total_s = sum(long_.values())
    for (top, *outer), seconds in pool.items():
        waits = inside.get(top, 0.0) >= 0.5 * traced.get(top, Traced()).raw_s
        if not total_s or (waits and top in own):
            _add_top(found, top, outer, seconds)
            continue
        for number, own_s in long_.items():
            _add_top(found, number, outer, seconds * own_s / total_s)


def _traced_callees(weights: Mapping[Stack, Weight]) -> dict[int, float]:
    """Seconds, while tracing, in which a statement waited for a call."""
    inside: dict[int, float] = defaultdict(float)
    for stack, weight in weights.items():
        for number in stack.outer:
            inside[number] += weight.traced_s
        if stack.called and stack.top >= 0:
            # Its own ticks are certain already: the split is about the rest.
            inside[stack.top] += weight.traced_s
    return inside


def _split(
    found: Attributed,
    profiled: Profiled,
    block: Block,
    pool: Pool,
    kept: set[int],
    own: Mapping[int, float],
    traced: Mapping[int, Traced],
) -> None:
    """Share out the ticks of one block among its statements, by the tracer's times."""
    owner, loop = block
    for (top, *outer), seconds in pool.items():
        if top in kept:
            _add_top(found, top, outer, seconds)
    pool = {stack: seconds for stack, seconds in pool.items() if stack[0] not in kept}
    members = {
        number: own[number]
        for number in profiled.numbers(owner)
        if profiled.statement(number).loop == loop and number in own and number not in kept
    }
    total_s = sum(members.values())
    for (top, *outer), seconds in pool.items():
        if not total_s:
            _add_top(found, top, outer, seconds)
            continue
        for number, part_s in members.items():
            _add_top(found, number, outer, seconds * part_s / total_s)
    short = [n for n, part_s in members.items() if part_s < TIGHT_S * max(1, traced[n].hits)]
    if loop and len(short) > 1:
        found.tight.update(short)
        found.pools[block] += sum(pool.values())


def _own_s(layout: Layout, place: int, seen: Traced, inside_s: float, costs: Costs) -> float:
    """The tracer's time for a statement less what it called and less the tracing itself."""
    inline_s = costs.inline_s + _extra_s(layout, place)
    least_s = LEAST_BYTECODE_S * bytecodes(layout, layout.rows[place])
    return max(seen.raw_s - inside_s - seen.hits * max(0.0, inline_s), seen.hits * least_s)


def _extra_s(layout: Layout, place: int) -> float:
    """What tracing costs a line more than those that it was calibrated on."""
    if LOCAL:
        return 0.0
    return BYTECODE_S * (bytecodes(layout, layout.rows[place]) - USUAL_BYTECODES)


def bytecodes(layout: Layout, row: Row) -> int:
    """How many bytecodes a statement has."""
    counts: dict[int, int] | None = layout.__dict__.get("_bytecodes")
    if counts is None:
        counts = defaultdict(int)
        for instruction in dis.get_instructions(layout.code):
            line = instruction.positions.lineno if instruction.positions else None
            if line is not None and line in layout.row_of_line:
                counts[layout.row_of_line[line]] += 1
        layout.__dict__["_bytecodes"] = counts
    return counts[layout.row_of_line[row.line]]


_WAITS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
CALL_EVENTS = 1.2
"""Entering and leaving a profiled function costs as much as so many line events."""


def attribute_exactly(
    profiled: Profiled,
    weights: Mapping[Stack, Weight],
    traced: Mapping[int, Traced],
    costs: Costs,
    elapsed_s: float,
) -> tuple[Attributed, dict[int, float]]:
    """Take the tracer's own times, less the cost of the events on a line and in what it called;
    the ticks say who called whom. Also returns the seconds that were taken off each statement.
    """
    found = attribute(profiled, weights, traced, costs, weights)
    found.tight.clear()
    spent = _cost_by_layout(profiled, traced, costs)
    # Recursive functions keep their ticks, whose sum is to be this run's as well.
    found.scale(max(0.0, elapsed_s - sum(spent.values())))
    recursive = _recursive(profiled, weights)
    nested, inside = _nesting(profiled, weights)
    removed: dict[int, float] = {}
    for number, seen in traced.items():
        layout, place = profiled.row(number)
        inline_s = seen.raw_s - _own_s(layout, place, seen, 0.0, costs)
        under = nested.get(number, {})
        removed[number] = inline_s + costs.event_s * seen.inner
        removed[number] += sum(share * spent[owner] for owner, share in under.items())
        if profiled.owners[number] in recursive:
            continue
        true_s = max(0.0, seen.raw_s - removed[number])
        if layout.code.co_flags & _WAITS:
            # The tracer does not see a coroutine wait; the ticks do.
            true_s = max(true_s, found.time_s.get(number, 0.0))
        found.time_s[number] = true_s
        found.self_s[number] = found.time_s[number] * (1 - inside.get(number, 0.0))
    for number in list(found.time_s):
        if number not in traced and profiled.owners[number] not in recursive:
            del found.time_s[number]
            found.self_s.pop(number, None)
    _sum_up(found, profiled, recursive)
    used_s = max([sum(found.self_s.values()), *found.layouts.values()])
    found.wall_s = max(found.wall_s, min(used_s, elapsed_s))
    return found, removed


def _cost_by_layout(
    profiled: Profiled, traced: Mapping[int, Traced], costs: Costs
) -> dict[int, float]:
    """Seconds that the events of each function's code took."""
    spent: dict[int, float] = defaultdict(float)
    for number, seen in traced.items():
        layout, place = profiled.row(number)
        calls = seen.hits if not place else 0
        spent[profiled.owners[number]] += (
            seen.hits * (costs.event_s + _extra_s(layout, place))
            + (CALL_EVENTS * calls + seen.inner) * costs.event_s
        )
    return spent


def _recursive(profiled: Profiled, weights: Iterable[Stack]) -> set[int]:
    """Layouts that called themselves: the tracer counts their time once for each depth."""
    found = set()
    for stack in weights:
        owners = [profiled.owners[number] for number in (*stack.outer, stack.top) if number >= 0]
        found |= {owner for owner in owners if owners.count(owner) > 1}
    return found


def _nesting(
    profiled: Profiled, weights: Mapping[Stack, Weight]
) -> tuple[dict[int, dict[int, float]], dict[int, float]]:
    """For each statement: which share of each layout's time was under it, and which share of its
    own time other profiled code ran.
    """
    total: dict[int, float] = defaultdict(float)
    under: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    spent: dict[int, float] = defaultdict(float)
    waiting: dict[int, float] = defaultdict(float)
    for stack, weight in weights.items():
        if stack.top < 0:
            continue
        chain = (stack.top, *stack.outer)
        for owner in {profiled.owners[number] for number in chain}:
            total[owner] += weight.seconds
        for depth, number in enumerate(chain):
            spent[number] += weight.seconds
            if depth:
                waiting[number] += weight.seconds
            for owner in {profiled.owners[inner] for inner in chain[:depth]}:
                under[number][owner] += weight.seconds
    shares = {
        number: {owner: seconds / total[owner] for owner, seconds in owners.items()}
        for number, owners in under.items()
    }
    return shares, {number: waiting[number] / spent[number] for number in spent if spent[number]}


def _sum_up(found: Attributed, profiled: Profiled, recursive: set[int]) -> None:
    """Loops and functions as sums of their statements."""
    loops: dict[Block, float] = defaultdict(float)
    layouts: dict[int, float] = defaultdict(float)
    for number, seconds in found.time_s.items():
        layout, place = profiled.row(number)
        owner = profiled.owners[number]
        layouts[owner] += seconds
        for loop in layout.loops_around(layout.rows[place]):
            loops[owner, loop] += seconds
    for block, seconds in loops.items():
        if block[0] not in recursive:
            found.loops[block] = seconds
    for owner, seconds in layouts.items():
        if owner not in recursive:
            found.layouts[owner] = seconds
