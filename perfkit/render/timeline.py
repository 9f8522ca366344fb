"""Views of a TimelineReport."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from statistics import median
from typing import Any

from perfkit import units
from perfkit.records.timeline import CAUSES, Cause, DeviceTimeline, TimelineReport
from perfkit.render import grid, timeline_picture
from perfkit.render.grid import clean, shorten
from perfkit.render.theme import MASK, STYLE, is_stable
from perfkit.render.timeline_tables import tables

__all__ = ["MIME", "bundle", "html", "sentence", "text"]

MIME = "application/vnd.perfkit.timeline.v1+json"
NO_DEVICE = "this trace has no device events"
ENOUGH = 0.95
"""A device that is busier has no idle time to speak of."""
MAIN_CAUSE = 0.25
"""A cause of a smaller share of the idle time is one of many."""
MOST_SENTENCES, MOST_NAME, MOST_LABEL = 8, 60, 120
GAPS_IN_TEXT, GAPS_IN_HTML = 5, 10
FOLDED = ("work by name", "operators", "launches", "copies")
_WORDS: dict[Cause, str] = {
    "waiting on a stream": "the next work was launched and waited for another stream or device",
    "launch gap": "the next work was launched and about to start",
}


def bundle(report: TimelineReport) -> dict[str, Any]:
    """All views by MIME type. The JSON has the headline figures of each device."""
    summary: dict[str, Any] = {
        "record": "TimelineReport",
        "devices": [{"name": device.name} for device in report.devices],
    }
    if not is_stable():
        summary |= {"label": _label(report), "span_s": report.span_s, "steps": len(report.steps)}
        if report.steps:
            summary["median_step_s"] = median(step.duration_s for step in report.steps)
        for row, device in zip(summary["devices"], report.devices, strict=True):
            row |= {name: getattr(device, name) for name in ("span_s", "busy_s", "duty_cycle")}
            row["causes"] = [
                {"cause": one.cause, "host": shorten(one.host, MOST_LABEL), "share": one.share}
                for one in device.causes[:3]
            ]
    return {"text/plain": text(report), "text/html": html(report), MIME: summary}


def text(report: TimelineReport) -> str:
    """A verdict in words, then aligned tables."""
    first, *others = sentence(report).split("\n")
    return "\n".join(
        [
            f"{_label(report)}: {first}",
            *(f"  {line}" for line in (*others, *_read(report))),
            *(grid.as_text(one) for one in tables(report, GAPS_IN_TEXT)),
            *(f"  {line}" for line in _remarks(report)),
        ]
    )


def html(report: TimelineReport) -> str:
    """The same with a picture; long tables are folded, and open without a script."""
    first, *others = (_marked(line) for line in sentence(report).split("\n"))
    more = "".join(f"<div><strong>{line}</strong></div>" for line in others)
    read = "".join(f'<div style="{STYLE["note"]}">{escape(line)}</div>' for line in _read(report))
    picture = "" if is_stable() else timeline_picture.html(report)
    remarks = "".join(f"<div>{escape(line)}</div>" for line in _remarks(report))
    return (
        f'<div style="{STYLE["box"]};max-width:1000px"><div style="{STYLE["head"]}">'
        f"{escape(_label(report))}: <strong>{first}</strong></div>{more}{read}{picture}"
        f"{''.join(map(_table, tables(report, GAPS_IN_HTML)))}{remarks}</div>"
    )


def sentence(report: TimelineReport) -> str:
    """How busy each device was, and why it was not; a line a device, the idlest first."""
    if is_stable():
        return MASK
    stopped = f"stopped by {clean(report.stopped)}; until then " if report.stopped else ""
    if not report.devices:
        return stopped + NO_DEVICE + _host(report.host)
    ordered = sorted(report.devices, key=lambda device: device.duty_cycle)
    lines = [_verdict(device) for device in ordered[:MOST_SENTENCES]]
    rest = ordered[MOST_SENTENCES:]
    if rest:
        lines.append(
            f"{len(rest)} more devices were busy {units.share(rest[0].duty_cycle)} to "
            f"{units.share(rest[-1].duty_cycle)}"
        )
    return stopped + "\n".join(lines)


def _host(host: DeviceTimeline | None) -> str:
    if host is None:
        return ", and no operators of the host"
    where = ", ".join(shorten(lane, MOST_NAME) for lane in host.lanes)
    return (
        f"; on the host, operators took {units.share(host.duty_cycle)} of "
        f"{units.seconds(host.span_s)} on {where}"
    )


def _verdict(device: DeviceTimeline) -> str:
    busy = (
        f"{shorten(device.name, MOST_NAME)} was busy {units.share(device.duty_cycle)} of "
        f"{units.seconds(device.span_s)}"
    )
    if device.duty_cycle > ENOUGH:
        return f"{busy}: no idle time to speak of"
    return f"{busy}; {_why(device)}" if device.causes else busy


def _why(device: DeviceTimeline) -> str:
    """The cause of most of the idle time, and what the host was in if that is one thing."""
    by_cause: dict[Cause, float] = {}
    for row in device.causes:
        by_cause[row.cause] = by_cause.get(row.cause, 0.0) + row.share
    cause, share = max(by_cause.items(), key=lambda item: item[1])
    if share < MAIN_CAUSE:
        first = sorted(by_cause, key=lambda one: -by_cause[one])[:3]
        parts = ", ".join(f"{one} {units.share(by_cause[one])}" for one in first)
        return f"its idle time has no one cause: {parts}"
    top = max((row for row in device.causes if row.cause == cause), key=lambda row: row.share)
    why = _WORDS.get(cause, CAUSES[cause])
    if not top.host or top.share < share / 2:
        return f"for {units.share(share)} of the idle time {why}"
    name = shorten(top.host, MOST_NAME).replace("`", "'")
    if cause in _WORDS:
        return f"for {units.share(top.share)} of the idle time {why}, at `{name}`"
    return f"{units.share(top.share)} of the idle time is `{name}`: {why}"


def _label(report: TimelineReport) -> str:
    return shorten(report.label, MOST_LABEL) or "timeline"


def _read(report: TimelineReport) -> Iterator[str]:
    """What was read, and how much of it."""
    if not is_stable():
        parts = [clean(report.source), units.count(report.events, "interval")]
        if report.span_s is not None:
            parts.append(units.seconds(report.span_s))
        yield ", ".join([*filter(None, parts), clean(report.selection)])


def _remarks(report: TimelineReport) -> list[str]:
    if is_stable():
        return []
    reasons, status = report.quality.reasons, report.quality.status
    return [
        *(f"note: {clean(note)}" for note in report.notes if note not in reasons),
        *(f"{status}, {clean(reason)}" for reason in reasons),
    ]


def _table(one: grid.Grid) -> str:
    title = f'<span style="font-weight:600">{escape(clean(one.title))}</span>'
    if one.title.startswith(FOLDED):
        summary = f'<summary style="cursor:pointer">{title}</summary>'
        return f"<details>{summary}{grid.as_html(one)}</details>"
    return f'<div style="margin-top:8px">{title}</div>{grid.as_html(one)}'


def _marked(line: str) -> str:
    """Escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line))
