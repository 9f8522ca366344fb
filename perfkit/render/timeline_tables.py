"""The tables of a TimelineReport: each a Grid, left out where it has nothing to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from perfkit import units
from perfkit.records.timeline import (
    CAUSES,
    CauseShare,
    Copies,
    DeviceTimeline,
    Difference,
    Gap,
    Step,
    TimelineReport,
)
from perfkit.render.grid import Cell, Grid, shorten
from perfkit.render.theme import MASK, is_stable

__all__ = ["largest_gaps", "tables"]

MOST_CAUSES, MOST_STEPS, MOST_ROWS, MOST_OUTLIERS = 8, 12, 10, 6
SMALL_CAUSE, MOST_BESIDE, MOST_NAME = 0.005, 26, 64
DIRECTIONS = {
    "h2d": "to device",
    "d2h": "to host",
    "d2d": "on device",
    "memset": "memset",
}
DUTY = (
    "busy is not useful: it says that some work ran, not how much of the device it used "
    "(duty cycle = busy / span)"
)
LATENCY = "latency: from the launching call to the start of its work, waiting in the queue included"
DEPTH = "queue depth: launches that had not started when another was made; 0: the device was empty"
OPERATORS = "outside operators the thread runs Python, or nothing"


def tables(report: TimelineReport, gaps_most: int) -> list[Grid]:
    """All tables with rows, in order. In stable mode that of the devices alone, masked."""
    if is_stable():
        return [_devices(report)] if report.devices else []
    found = (
        _devices(report) if report.devices else _host(report),
        _differences(report),
        _causes(report),
        _gaps(report, gaps_most),
        _steps(report.steps, report.span_s),
        _compiles(report),
        _copies(report),
        _launches(report.devices),
        _kernels(report),
        None if report.devices else _operators(report),
    )
    return [grid for grid in found if grid is not None and grid.rows]


def largest_gaps(report: TimelineReport) -> list[tuple[str, Gap]]:
    """Gaps of all devices with their device, longest first; without devices, those between the
    host's operators.
    """
    shown = _shown(report)
    found = [(device.name, gap) for device in shown for gap in device.gaps]
    return sorted(found, key=lambda pair: -pair[1].duration_s)


def _devices(report: TimelineReport) -> Grid:
    masked = (lambda _: MASK) if is_stable() else None
    say, share = masked or units.seconds, masked or units.share
    return Grid(
        "devices",
        (
            "device",
            " span",
            " busy",
            " idle",
            " compute",
            " non-compute",
            " copies",
            " collectives",
            " duty cycle",
        ),
        [
            (
                Cell(name=one.name),
                *map(say, (one.span_s, one.busy_s, one.idle_s, one.compute_s, one.non_compute_s)),
                *map(say, (one.copy_s, one.collective_s)),
                share(one.duty_cycle),
            )
            for one in report.devices
        ],
        (DUTY, *([] if is_stable() else _hidden(report.devices))),
    )


def _hidden(devices: Iterable[DeviceTimeline]) -> Iterator[str]:
    for one in devices:
        moved_s = one.copy_s + one.collective_s
        if one.hidden_s and moved_s:
            yield (
                f"{one.name}: {units.seconds(one.hidden_s)} of its copies and collectives "
                "ran behind compute"
            )


def _shown(report: TimelineReport) -> Sequence[DeviceTimeline]:
    """The devices, or where there are none the host's operators."""
    return report.devices or ((report.host,) if report.host else ())


def _host(report: TimelineReport) -> Grid | None:
    host = report.host
    if host is None:
        return None
    return Grid(
        "the host",
        ("thread", " span", " in operators", " outside", " share", " stretches"),
        [
            (
                Cell(name=", ".join(host.lanes) or host.name),
                *map(units.seconds, (host.span_s, host.busy_s, host.idle_s)),
                units.share(host.duty_cycle),
                f"{host.intervals:,}",
            )
        ],
        (OPERATORS,),
    )


def _differences(report: TimelineReport) -> Grid:
    return Grid(
        "what changed",
        ("", " here", f" {report.against or 'there'}", " change"),
        [
            (Cell(name=row.what), _figure(row, row.here), _figure(row, row.there), _change(row))
            for row in report.differences
        ],
    )


def _figure(row: Difference, value: float | None) -> str:
    if value is None:
        return units.NOT_AVAILABLE
    match row.unit:
        case "share":
            return units.share(value)
        case "count":
            return f"{value:,.0f}"
    return units.seconds(value)


def _change(row: Difference) -> str:
    if row.here is None or row.there is None:
        return ""
    if row.here == row.there:
        return "same"
    if row.unit == "share":
        return f"{100 * (row.here - row.there):+.1f} points"
    if not row.there:
        return "new"
    return "gone" if not row.here else units.ratio(row.here / row.there)


def _causes(report: TimelineReport) -> Grid:
    if not report.devices:
        return _doings(report.host)
    several = len(report.devices) > 1
    rows: list[Sequence[Cell | str]] = []
    said: set[str] = set()
    for device in report.devices:
        shown = [row for row in device.causes if row.share >= SMALL_CAUSE][:MOST_CAUSES]
        named = [Cell(name=device.name)] if several else []
        for row in shown:
            meaning = "" if row.cause in said else CAUSES[row.cause]
            said.add(row.cause)
            rows.append((*named, row.cause, Cell(name=row.host), *_idle([row]), meaning))
        rest = [row for row in device.causes if row not in shown]
        if rest:
            rows.append((*named, f"{len(rest)} more", "", *_idle(rest), ""))
    head = ("cause", "the host was in", " idle", " gaps", " of idle", "")
    return Grid("idle time by cause", (*(["device"] if several else []), *head), rows)


def _doings(host: DeviceTimeline | None) -> Grid:
    """What the host did between its operators. It has no cause: nothing waited for it."""
    by_name: dict[str, list[CauseShare]] = {}
    for cause in host.causes if host else ():
        by_name.setdefault(cause.host or "not shown", []).append(cause)
    groups = sorted(by_name.items(), key=lambda item: -sum(row.idle_s for row in item[1]))
    rows = [(Cell(name=name), *_idle(causes)) for name, causes in groups[:MOST_CAUSES]]
    head = ("the host was in", " time", " stretches", " of it")
    return Grid("time without an operator", head, rows)


def _idle(rows: Sequence[CauseShare]) -> Sequence[Cell | str]:
    share = sum(row.share for row in rows)
    return (
        units.seconds(sum(row.idle_s for row in rows)),
        f"{sum(row.count for row in rows):,}",
        Cell(units.share(share), share=share),
    )


def _gaps(report: TimelineReport, most: int) -> Grid:
    gaps = largest_gaps(report)
    count = sum(d.gap_count for d in _shown(report))
    several, on_device = len(report.devices) > 1, bool(report.devices)
    steps = any(gap.step is not None for _, gap in gaps[:most])
    what = "gaps" if on_device else "stretches without an operator"
    return Grid(
        f"largest {what}, {min(most, len(gaps))} of {count:,}",
        (
            *("", " at", " for"),
            *(["device"] if several else []),
            *(["cause"] if on_device else []),
            "the host was in",
            *([" step"] if steps else []),
            "between",
        ),
        [
            (
                f"{place + 1}",
                _instant(gap.start_s, report.span_s),
                units.seconds(gap.duration_s),
                *([Cell(name=device)] if several else []),
                *([gap.cause] if on_device else []),
                Cell(name=gap.host),
                *(["" if gap.step is None else f"{gap.step}"] if steps else []),
                Cell(
                    f"{shorten(gap.before, MOST_BESIDE)} → {shorten(gap.after, MOST_BESIDE)}",
                    name=f"{gap.before} → {gap.after}",
                ),
            )
            for place, (device, gap) in enumerate(gaps[:most])
        ],
    )


def _instant(when_s: float, span_s: float | None) -> str:
    """A point of time in the unit of the trace, to be found again in its picture."""
    scale, unit = units.time_unit(span_s or when_s)
    return f"{when_s / scale:,.3f} {unit}"


def _steps(steps: Sequence[Step], span_s: float | None) -> Grid:
    known = any(step.duty_cycle is not None for step in steps)
    shown = list(steps) if len(steps) <= MOST_STEPS else _notable(steps)
    middle_s = median(step.duration_s for step in steps) if steps else 0.0
    rows: list[Sequence[Cell | str]] = [_step(step, known, span_s) for step in shown]
    if len(steps) > 1:
        shares = [step.duty_cycle for step in steps if step.duty_cycle is not None]
        rows.insert(
            0,
            (
                "median",
                "",
                units.seconds(middle_s),
                *([units.share(median(shares)) if shares else ""] if known else []),
                f"{median(step.blocking_copies for step in steps):.3g}",
                f"{sum(step.compiles for step in steps)} in all",
                "",
            ),
        )
    left_out = len(steps) - len(shown)
    return Grid(
        units.count(len(steps), "step"),
        (
            *("step", " at", " took"),
            *([" device busy"] if known else []),
            *(" blocking copies", " compiles", ""),
        ),
        rows,
        [f"{left_out:,} ordinary steps are left out"] if left_out else [],
    )


def _notable(steps: Sequence[Step]) -> list[Step]:
    """The slowest, among them all that are called outliers as far as there is room."""
    slow = sorted(steps, key=lambda step: (not step.outlier, -step.duration_s))
    most = max(3, sum(step.outlier for step in steps))
    return sorted(slow[: min(most, MOST_OUTLIERS)], key=lambda step: step.start_s)


def _step(step: Step, known: bool, span_s: float | None) -> Sequence[Cell | str]:
    return (
        Cell(name=step.name) if step.number is None else f"{step.number}",
        _instant(step.start_s, span_s),
        units.seconds(step.duration_s),
        *([units.share(step.duty_cycle)] if known else []),
        f"{step.blocking_copies}",
        f"{step.compiles}",
        "outlier" if step.outlier else "",
    )


def _compiles(report: TimelineReport) -> Grid:
    shapes = any(row.shapes for row in report.compiles)
    return Grid(
        f"compiled, {sum(row.count for row in report.compiles):,} times",
        ("program", " times", " took", *(["shapes"] if shapes else [])),
        [
            (
                Cell(name=row.name),
                f"{row.count:,}",
                units.seconds(row.total_s),
                *([Cell(name="; ".join(dict.fromkeys(row.shapes[:50])))] if shapes else []),
            )
            for row in report.compiles[:MOST_ROWS]
        ],
        _more(len(report.compiles)),
    )


def _copies(report: TimelineReport) -> Grid:
    by_direction: dict[str, list[Copies]] = {}
    for row in report.copies:
        by_direction.setdefault(row.direction, []).append(row)
    return Grid(
        "copies" + (" of all devices" if len(report.devices) > 1 else ""),
        ("", " copies", " bytes", " time", " rate", " the host waited for"),
        [_copy(direction, rows) for direction, rows in by_direction.items()],
    )


def _copy(direction: str, rows: Sequence[Copies]) -> Sequence[str]:
    sizes, waits = [row.nbytes for row in rows], [row.blocking for row in rows]
    nbytes = None if None in sizes else sum(size or 0 for size in sizes)
    seconds = sum(row.seconds for row in rows)
    return (
        DIRECTIONS[direction],
        f"{sum(row.count for row in rows):,}",
        units.capacity(nbytes),
        units.seconds(seconds),
        units.bandwidth(nbytes / seconds if nbytes and seconds else None),
        units.NOT_AVAILABLE if None in waits else f"{sum(wait or 0 for wait in waits):,}",
    )


def _launches(devices: Sequence[DeviceTimeline]) -> Grid:
    known = [(device.name, device.launches) for device in devices if device.launches]
    return Grid(
        "launches",
        ("device", " launches", " latency median", " p99", " queue depth median", " most"),
        [
            (
                Cell(name=name),
                f"{row.count:,}",
                units.seconds(row.latency_median_s),
                units.seconds(row.latency_p99_s),
                *(
                    units.NOT_AVAILABLE if depth is None else f"{depth:,}"
                    for depth in (row.depth_median, row.depth_max)
                ),
            )
            for name, row in known
        ],
        (LATENCY, DEPTH),
    )


def _kernels(report: TimelineReport) -> Grid:
    """Work by name; that of several devices together."""
    total: dict[tuple[str, str], tuple[int, float]] = {}
    for row in report.kernels:
        count, seconds = total.get((row.name, row.kind), (0, 0.0))
        total[row.name, row.kind] = count + row.count, seconds + row.total_s
    # Not the sum of these rows: a record keeps the longest of them alone.
    whole_s = sum(
        {row.device: row.total_s / row.share for row in report.kernels if row.share}.values()
    )
    rows = sorted(total.items(), key=lambda item: -item[1][1])
    return Grid(
        "work by name" + (" on all devices" if len(report.devices) > 1 else ""),
        ("name", "kind", " times", " total", " each", " of all work"),
        [
            (
                Cell(name=name),
                kind,
                f"{count:,}",
                units.seconds(seconds),
                units.seconds(seconds / count if count else None),
                Cell(units.share(seconds / whole_s if whole_s else 0.0)),
            )
            for (name, kind), (count, seconds) in rows[:MOST_ROWS]
        ],
        _more(len(rows)),
        MOST_NAME,
    )


def _operators(report: TimelineReport) -> Grid:
    rows = sorted(report.operators, key=lambda row: -row.self_s)
    return Grid(
        "operators by their own time",
        ("operator", " calls", " own time", " total"),
        [
            (
                Cell(name=row.name),
                f"{row.count:,}",
                units.seconds(row.self_s),
                units.seconds(row.total_s),
            )
            for row in rows[:MOST_ROWS]
        ],
        _more(len(rows)),
        MOST_NAME,
    )


def _more(count: int) -> list[str]:
    return [f"{count - MOST_ROWS:,} more are in the record"] if count > MOST_ROWS else []
