"""The picture of a timeline: a row a lane as inline SVG, or a matplotlib figure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from perfkit import optional, units
from perfkit.records.timeline import Gap, Picture, TimelineReport
from perfkit.render.grid import shorten
from perfkit.render.svg import BAR, LEAST, WIDTH, axis, round_step, row
from perfkit.render.theme import COLOURS, STYLE
from perfkit.render.timeline_tables import largest_gaps

__all__ = ["WORDS", "figure", "html", "png"]

WORDS = {
    "kernel": "kernel",
    "collective": "collective",
    "h2d": "copy to the device",
    "d2h": "copy to the host",
    "d2d": "copy on the device",
    "memset": "memset",
    "device": "work on the device",
    "step": "step",
    "annotation": "annotation",
    "wait": "waits for the device",
    "compile": "compiles",
    "runtime": "call of the runtime",
    "op": "operator",
    "python": "Python",
    "host": "host",
    "other": "other",
}
"""Kinds in words, in the order of the legend."""
TOUCHING = ("step", "annotation")
"""Kinds whose bars follow one another without a break: a hairline tells them apart."""
IDLE = "#d55e00"
VISIBLE = 0.01
"""A gap of this share of the picture is marked, and has its number in the table of gaps below."""
NUMBERED, APART = 10, 2.5
"""As many gaps have a number, if it has so many percent of the picture for itself."""
LONGEST_LABEL = 32


def html(report: TimelineReport) -> str:
    """Lanes on one time axis, with the gaps of each device marked; empty without lanes."""
    end_s = _end_s(report)
    if not report.picture or not end_s:
        return ""
    gaps = _visible(report, end_s)
    numbers = {id(gap): place + 1 for place, (_, gap) in enumerate(largest_gaps(report))}
    rows = []
    for picture, following in pairwise([*report.picture, None]):
        assert picture is not None
        own = gaps.get(picture.device, []) if picture.device else []
        rows.append(row(_label(picture), _svg(picture, own, WIDTH / end_s)))
        if own and (following is None or following.device != picture.device):
            numbered = [(numbers[id(gap)], gap) for gap in own if numbers[id(gap)] <= NUMBERED]
            rows.append(row("", _numbers(numbered, end_s)))
    kinds = {bar[2] for picture in report.picture for bar in picture.bars}
    return (
        f'<table style="{STYLE["table"]};width:100%;font-size:12px"><tbody>{"".join(rows)}'
        f"{row('', axis(end_s, round_step(end_s)))}{row('', _legend(kinds, bool(gaps)))}"
        "</tbody></table>"
    )


def figure(report: TimelineReport) -> Any:
    """A matplotlib figure of the same. It is closed to pyplot, so that no cell shows it twice.

    Raises MissingDependency where matplotlib is not there.
    """
    module = optional.require("matplotlib.figure", "the figure of a timeline")
    end_s = _end_s(report) or 1.0
    scale, unit = units.time_unit(end_s)
    made = module.Figure(figsize=(10, 1.2 + 0.32 * len(report.picture)), layout="constrained")
    axes = made.subplots()
    gaps = _visible(report, end_s)
    for place, picture in enumerate(report.picture):
        for kind in sorted({bar[2] for bar in picture.bars}):
            spans = [(b[0] / scale, (b[1] - b[0]) / scale) for b in picture.bars if b[2] == kind]
            # An outline keeps short bars visible, and tells apart those that touch.
            outline = "white" if kind in TOUCHING else _colour(kind)
            style = {"facecolors": _colour(kind), "edgecolors": outline, "linewidths": 0.3}
            axes.broken_barh(spans, (place - 0.4, 0.8), label=_said(kind), **style)
        idle = gaps.get(picture.device, []) if picture.device else []
        if idle:
            spans = [(gap.start_s / scale, gap.duration_s / scale) for gap in idle]
            style = {"facecolors": "none", "edgecolors": IDLE, "linewidths": 0.3}
            axes.broken_barh(spans, (place - 0.4, 0.8), hatch="////", label="idle", **style)
    axes.set_yticks(range(len(report.picture)), [_name(picture) for picture in report.picture])
    axes.invert_yaxis()
    axes.set_xlim(0, end_s / scale)
    axes.set_xlabel(f"time since the trace began [{unit}]")
    axes.set_ylabel("lane")
    unique = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if unique:
        made.legend(
            unique.values(), unique.keys(), loc="outside lower center", ncols=5, frameon=False
        )
    return made


def png(report: TimelineReport) -> bytes:
    """The figure as a PNG. Raises MissingDependency where matplotlib is not there."""
    file = io.BytesIO()
    figure(report).savefig(file, format="png", dpi=110)
    return file.getvalue()


def _end_s(report: TimelineReport) -> float:
    ends = [bar[1] for picture in report.picture for bar in picture.bars[-1:]]
    return max([report.span_s or 0.0, *ends])


def _visible(report: TimelineReport, end_s: float) -> dict[str, list[Gap]]:
    """By device, the gaps that are wide enough to be seen, in order of time."""
    found: dict[str, list[Gap]] = {}
    for device in report.devices:
        wide = [gap for gap in device.gaps if gap.duration_s >= VISIBLE * end_s]
        if wide:
            found[device.name] = sorted(wide, key=lambda gap: gap.start_s)
    return found


def _name(picture: Picture) -> str:
    lane = shorten(picture.lane, LONGEST_LABEL)
    return f"{shorten(picture.device, LONGEST_LABEL)}, {lane}" if picture.device else lane


def _label(picture: Picture) -> str:
    return escape(_name(picture))


def _svg(picture: Picture, gaps: Sequence[Gap], scale: float) -> str:
    """One lane. What is alike is one path: a tenth of the text that single bars take."""
    paths: dict[str, list[str]] = {}
    starts = [*(bar[0] * scale for bar in picture.bars[1:]), float("inf")]
    for bar, following in zip(picture.bars, starts, strict=True):
        x, width = bar[0] * scale, (bar[1] - bar[0]) * scale
        if bar[2] in TOUCHING:
            width -= min(1.5 * LEAST, 0.3 * width)
        # A short bar is widened to be seen, but only where that makes no crowd look busy.
        width = max(width, min(LEAST, 0.1 * (following - x)))
        x = min(x, WIDTH - width)
        paths.setdefault(bar[2], []).append(_box(x, width))
    bars = "".join(f'<path fill="{_colour(k)}" d="{"".join(d)}"/>' for k, d in paths.items())
    return (
        f'<svg viewBox="0 0 {WIDTH} {BAR}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(_name(picture))}" xmlns="http://www.w3.org/2000/svg" '
        f'style="display:block;width:100%;height:{BAR}px">{_idle(gaps, scale)}{bars}</svg>'
    )


def _box(x: float, width: float) -> str:
    return f"M{x:.5g} 0h{width:.3g}v{BAR}h-{width:.3g}z"


def _idle(gaps: Sequence[Gap], scale: float) -> str:
    """Tinted and ruled, so that it is told from a bar without its colour as well."""
    if not gaps:
        return ""
    spans = [(gap.start_s * scale, gap.duration_s * scale) for gap in gaps]
    tint = "".join(_box(*span) for span in spans)
    lines = "".join(f"M{x:.5g} {y}h{width:.3g}" for x, width in spans for y in (4, 8, 12))
    return (
        f'<path fill="{IDLE}" fill-opacity="0.16" d="{tint}"/>'
        f'<path stroke="{IDLE}" stroke-opacity="0.55" d="{lines}"/>'
    )


def _numbers(gaps: Iterable[tuple[int, Gap]], end_s: float) -> str:
    """The numbers of gaps, each where the gap is: a span reaches to the next one."""
    wanted = sorted((100 * (g.start_s + g.duration_s / 2) / end_s, n) for n, g in gaps)
    kept: list[tuple[float, int]] = []
    for at, number in wanted:
        if kept and at - kept[-1][0] < APART:
            if number > kept[-1][1]:
                continue
            kept.pop()
        kept.append((at, number))
    places = [0.0, *(at for at, _ in kept), 100.0]
    widths = [after - before for before, after in pairwise(places)]
    words = ["", *(str(number) for _, number in kept)]
    spans = " ".join(
        f'<span style="display:inline-block;flex:none;width:{width:.2f}%;white-space:nowrap">'
        f"{word}</span>"
        for width, word in zip(widths, words, strict=True)
    )
    return f'<div style="display:flex;overflow:hidden;{STYLE["note"]}">{spans}</div>'


def _legend(kinds: Iterable[str], idle: bool) -> str:
    shown = sorted(set(kinds), key=lambda kind: [*WORDS, kind].index(kind))
    return " ".join(_entry(colour, word) for colour, word in _entries(shown, idle))


def _entries(kinds: Sequence[str], idle: bool) -> Iterator[tuple[str, str]]:
    yield from ((_colour(kind), _said(kind)) for kind in kinds)
    if idle:
        yield IDLE, "idle; the number is that of the gap below"


def _entry(colour: str, word: str) -> str:
    square = "▤" if colour == IDLE and word.startswith("idle") else "■"
    return (
        f'<span style="white-space:nowrap;margin-right:14px"><span style="color:{colour};'
        f'font-size:16px">{square}</span> {escape(word)}</span>'
    )


def _colour(kind: str) -> str:
    return COLOURS.get(kind, COLOURS["other"])


def _said(kind: str) -> str:
    return WORDS.get(kind, kind)
