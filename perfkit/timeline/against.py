"""Two traces side by side: what changed."""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from perfkit.records.timeline import DeviceTimeline, Difference, TimelineReport

__all__ = ["differences"]

MOST_KERNELS = 5


def differences(here: TimelineReport, there: TimelineReport) -> TimelineReport:
    """`here` with what differs from `there`: devices by their order, work by its name."""
    rows = [
        Difference(what="median step", here=_step_s(here), there=_step_s(there)),
        Difference(what="span of the trace", here=here.span_s, there=there.span_s),
        *_devices(here, there),
        Difference(
            what="programs compiled", here=_compiles(here), there=_compiles(there), unit="count"
        ),
        Difference(
            what="copies the host waited for",
            here=_blocking(here),
            there=_blocking(there),
            unit="count",
        ),
        *_kernels(here, there),
    ]
    known = tuple(row for row in rows if row.here is not None or row.there is not None)
    return replace(here, against=there.label, differences=known)


def _devices(here: TimelineReport, there: TimelineReport) -> list[Difference]:
    rows = []
    for own, other in zip(here.devices, there.devices, strict=False):
        name = own.name if own.name == other.name else f"{own.name} against {other.name}"
        rows += [
            Difference(
                what=f"{name}: duty cycle",
                here=own.duty_cycle,
                there=other.duty_cycle,
                unit="share",
            ),
            *(
                Difference(what=f"{name}: {word}", here=getattr(own, f), there=getattr(other, f))
                for word, f in (
                    ("busy", "busy_s"),
                    ("idle", "idle_s"),
                    ("compute", "compute_s"),
                    ("copies", "copy_s"),
                    ("collectives", "collective_s"),
                )
            ),
            *_causes(name, own, other),
        ]
    return rows


def _causes(name: str, own: DeviceTimeline, other: DeviceTimeline) -> list[Difference]:
    mine, theirs = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for device, total in ((own, mine), (other, theirs)):
        for row in device.causes:
            total[row.cause] = total.get(row.cause, 0.0) + row.idle_s
    return [
        Difference(
            what=f"{name}: idle, {cause}", here=mine.get(cause, 0.0), there=theirs.get(cause, 0.0)
        )
        for cause in dict.fromkeys((*mine, *theirs))
    ]


def _kernels(here: TimelineReport, there: TimelineReport) -> list[Difference]:
    """Work whose total time changed most."""
    mine, theirs = _totals(here), _totals(there)
    names = sorted(
        mine.keys() | theirs.keys(), key=lambda n: -abs(mine.get(n, 0.0) - theirs.get(n, 0.0))
    )
    return [
        Difference(what=f"all of {name}", here=mine.get(name), there=theirs.get(name))
        for name in names[:MOST_KERNELS]
    ]


def _totals(report: TimelineReport) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in report.kernels:
        total[row.name] = total.get(row.name, 0.0) + row.total_s
    return total


def _step_s(report: TimelineReport) -> float | None:
    return median(step.duration_s for step in report.steps) if report.steps else None


def _compiles(report: TimelineReport) -> float:
    return float(sum(row.count for row in report.compiles))


def _blocking(report: TimelineReport) -> float | None:
    known = [row.blocking for row in report.copies if row.direction == "d2h"]
    return None if not known else float(sum(count or 0 for count in known))
