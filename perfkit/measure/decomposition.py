"""Take one run apart: what the host did, where it waited, what each device did meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple, get_args

from perfkit.devices.base import Seen
from perfkit.intervals import Interval, Intervals, covered_s
from perfkit.records.timing import Direction, Part, Sample, Span, Transfer

__all__ = ["Reading", "Run", "decompose", "typical_parts", "typical_transfers"]

MOST_SPANS = 400
UNSEEN = 0.1
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
MEMORIES: tuple[Literal["pinned", "pageable"] | None, ...] = ("pinned", "pageable", None)


class Reading(NamedTuple):
    """The clock around one sample: body begun, body returned, devices drained; how long the
    thread stood ready without a core, None if the kernel does not tell; and the processor time
    that it used in the body.
    """

    start_s: float
    stop_s: float
    end_s: float
    wait_s: float | None
    number: int = 1
    cpu_s: float | None = None


class Run(NamedTuple):
    """A sample and what else was seen: what each runtime did, why something is not known."""

    sample: Sample
    parts: tuple[Part, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    spans: tuple[Span, ...] = ()
    reasons: tuple[str, ...] = ()


def decompose(
    reading: Reading,
    seen: Mapping[str, Seen],
    blind: Collection[str] = (),
    silent: Collection[str] = (),
) -> Run:
    """One run from the clock's reading and what each runtime's trace saw.

    `blind` names the runtimes of whose blocking calls some are not seen, `silent` those that do
    not tell when their work started and ended.
    """
    number = reading.number
    naive_s = (reading.stop_s - reading.start_s) / number
    wait_s = None
    if reading.wait_s is not None:
        # The meter is read just outside the clock; a share above one would be nonsense.
        wait_s = min(reading.wait_s, reading.end_s - reading.start_s) / number
    working = {name: part for name, part in seen.items() if part.launches != 0}
    if not working:
        # Nothing was given away, so everything was drained when the body returned.
        return Run(Sample(naive_s=naive_s, wall_s=naive_s, host_s=naive_s, wait_s=wait_s))
    waits = [span for part in working.values() for span in part.waits]
    rows = [
        row._replace(start_s=max(row.start_s, reading.start_s)) if part.bracketed else row
        for part in working.values()
        for row in part.intervals
    ]
    untimed = [part.reason for part in working.values() if part.untimed]
    known = rows and not untimed and not working.keys() & set(silent)
    columns = Intervals(rows) if known else None
    brackets = [part.reason for part in working.values() if part.bracketed and not part.untimed]
    blocked_s = covered_s(waits, reading.start_s, reading.stop_s)
    # CUDA's waits spin on the processor: a thread that waits for a bracketed device does not sleep.
    spins = any(part.bracketed for part in working.values())
    is_blind = working.keys() & set(blind) and (spins or _slept_unseen(reading, blocked_s))
    sample = Sample(
        naive_s=naive_s,
        wall_s=(reading.end_s - reading.start_s) / number,
        host_s=None if is_blind else naive_s - blocked_s / number,
        device_s=(columns.span_s() or 0.0) / number if columns else None,
        device_busy_s=columns.busy_s() / number if columns and not brackets else None,
        wait_s=wait_s,
        launches=_launches(working.values(), number),
        compiles=sum(part.compiles for part in working.values()),
        compile_s=sum(part.compile_s for part in working.values()),
    )
    return Run(
        sample,
        tuple(_part(name, part, number, name in silent) for name, part in working.items()),
        _transfers(rows),
        _spans(reading, rows, waits),
        (*(f"no device time: {reason}" for reason in untimed), *(brackets if columns else ())),
    )


def _slept_unseen(reading: Reading, blocked_s: float) -> bool:
    """Was the thread off the processor for longer than the waits that were seen? Then it slept,
    or waited for a device where nobody could see it: which of the two is not known.
    """
    if reading.cpu_s is None or reading.wait_s is None:
        return True
    body_s = reading.stop_s - reading.start_s
    return body_s - reading.cpu_s - reading.wait_s - blocked_s > UNSEEN * body_s


def _part(backend: str, seen: Seen, number: int, is_silent: bool) -> Part:
    known = seen.intervals and not seen.untimed and not is_silent
    columns = Intervals(seen.intervals) if known else None
    # A bracket holds gaps, so it is no busy time.
    busy_s = columns.busy_s() / number if columns and not seen.bracketed else None
    return Part(
        backend=backend,
        device_s=(columns.span_s() or 0.0) / number if columns else None,
        device_busy_s=busy_s,
        launches=_launches([seen], number),
    )


def typical_parts(runs: Iterable[Run]) -> tuple[Part, ...]:
    """Each runtime in a typical run: medians over the runs in which it worked."""
    every = [part for run in runs for part in run.parts]
    return tuple(
        Part(
            backend=name,
            device_s=_median([part.device_s for part in every if part.backend == name]),
            device_busy_s=_median([part.device_busy_s for part in every if part.backend == name]),
            launches=_whole(_median([part.launches for part in every if part.backend == name])),
        )
        for name in dict.fromkeys(part.backend for part in every)
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _launches(parts: Iterable[Seen], number: int) -> int | None:
    counts = [part.launches for part in parts]
    known = [count for count in counts if count is not None]
    return round(sum(known) / number) if len(known) == len(counts) else None


def _transfers(rows: Sequence[Interval]) -> tuple[Transfer, ...]:
    copies = [row for row in rows if row.kind in DIRECTIONS]
    return tuple(
        Transfer(
            direction=direction,
            memory=memory,
            count=len(group),
            nbytes=sum(copy.nbytes for copy in group),
            seconds=sum(copy.end_s - copy.start_s for copy in group),
        )
        for direction in DIRECTIONS
        for memory in MEMORIES
        if (group := [c for c in copies if (c.kind, _memory(c.name)) == (direction, memory)])
    )


def _memory(name: str) -> Literal["pinned", "pageable"] | None:
    """The host's memory in a copy, as CUDA's profiler names it: Memcpy HtoD (Pinned -> Device)."""
    if "Pinned" in name:
        return "pinned"
    return "pageable" if "Pageable" in name else None


def typical_transfers(runs: Iterable[Run]) -> tuple[Transfer, ...]:
    """The transfers of a typical run: medians over the runs that had such copies."""
    every = [copy for run in runs for copy in run.transfers]
    return tuple(
        Transfer(
            direction=direction,
            memory=memory,
            count=round(median(copy.count for copy in group)),
            nbytes=round(median(copy.nbytes for copy in group)),
            seconds=median(copy.seconds for copy in group),
        )
        for direction in DIRECTIONS
        for memory in MEMORIES
        if (group := [c for c in every if (c.direction, c.memory) == (direction, memory)])
    )


def _spans(
    reading: Reading, rows: Sequence[Interval], waits: Sequence[tuple[float, float]]
) -> tuple[Span, ...]:
    """Bars of the picture: what the host did, where it waited, and the lanes of the devices."""
    start_s, stop_s, end_s = reading.start_s, reading.stop_s, reading.end_s
    bars = [
        Interval(start_s, stop_s, "host", "host", "body"),
        Interval(stop_s, end_s, "host", "drain", "perfkit drains the device"),
    ]
    blocked = [
        Interval(max(a, start_s), min(b, stop_s), "host", "wait", "waits for the device")
        for a, b in waits
        if b > start_s and a < stop_s
    ]
    # A thousandth of the picture is less than a pixel.
    least_s = (end_s - start_s) / 1000
    bars += _joined(blocked, least_s)
    bars += _joined(sorted(rows, key=lambda row: (row.lane, row.start_s)), least_s)
    longest = sorted(bars, key=lambda bar: bar.start_s - bar.end_s)[:MOST_SPANS]
    return tuple(
        Span(
            lane=bar.lane,
            kind=bar.kind,
            name=bar.name,
            start_s=bar.start_s - start_s,
            end_s=bar.end_s - start_s,
        )
        for bar in sorted(longest)
    )


def _joined(rows: Iterable[Interval], least_s: float) -> list[Interval]:
    """Neighbours of one lane and kind that no eye could tell apart become one bar."""
    bars: list[Interval] = []
    for row in rows:
        last = bars[-1] if bars else None
        if last and _is_near(last, row, least_s):
            name = last.name if last.name == row.name else f"{last.name[:40]} and more"
            bars[-1] = last._replace(end_s=max(last.end_s, row.end_s), name=name)
        else:
            bars.append(row)
    return bars


def _is_near(one: Interval, other: Interval, least_s: float) -> bool:
    same = (one.lane, one.kind) == (other.lane, other.kind)
    return same and other.start_s - one.end_s < least_s
