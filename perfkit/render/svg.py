"""Small pictures: bars as inline SVG, words as HTML around them.

No script, no fonts, text in the reader's own colour. A notebook that is not trusted loses its SVG
but keeps all text between its tags, so there is none: without the bars the words still read well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from perfkit import units
from perfkit.records.timing import Span
from perfkit.render.theme import COLOURS, STYLE

__all__ = ["axis", "lanes", "round_step", "row"]

WIDTH, BAR = 1000, 16
LEAST = 1.0
"""A bar is at least so wide, in thousandths of the picture; the figures carry the truth."""
WORDS = {
    "host": "body runs",
    "wait": "body waits",
    "drain": "perfkit drains",
    "kernel": "kernel",
    "h2d": "copy to the device",
    "d2h": "copy to the host",
    "d2d": "copy on the device",
}
_LABEL = "padding:2px 12px 2px 0;white-space:nowrap;text-align:left;border:0;background:none"
_BARS = "padding:2px 0;width:100%;text-align:left;border:0;background:none"


def lanes(spans: Sequence[Span], title: str) -> str:
    """One row for each lane, the host first, on one time axis from the start of the body."""
    names = sorted({span.lane for span in spans}, key=lambda name: (name != "host", name))
    end_s = max(span.end_s for span in spans) or 1e-9
    rows = "".join(
        row(escape(name), _lane([s for s in spans if s.lane == name], end_s, name))
        for name in names
    )
    shown = {span.kind for span in spans if (span.end_s - span.start_s) * WIDTH > LEAST * end_s}
    legend = _legend([kind for kind in COLOURS if kind in shown])
    return (
        f'<table style="{STYLE["table"]};width:100%;font-size:12px"><tbody>{rows}'
        f"{row('', axis(end_s, round_step(end_s)))}{row('', legend)}</tbody></table>"
        f'<div style="{STYLE["note"]};font-size:12px">{escape(title)}</div>'
    )


def row(label: str, content: str) -> str:
    """One row of a picture, as HTML: a label, and what stands beside it."""
    return (
        f'<tr style="background:none"><td style="{_LABEL}">{label}</td>'
        f'<td style="{_BARS}">{content}</td></tr>'
    )


def _lane(spans: Sequence[Span], end_s: float, name: str) -> str:
    bars = "".join(_bar(span, WIDTH / end_s) for span in spans)
    return (
        f'<svg viewBox="0 0 {WIDTH} {BAR}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}" xmlns="http://www.w3.org/2000/svg" '
        f'style="display:block;width:100%;height:{BAR}px">{bars}</svg>'
    )


def _bar(span: Span, scale: float) -> str:
    start_s = max(span.start_s, 0.0)
    width = max((span.end_s - start_s) * scale, LEAST)
    colour = COLOURS.get(span.kind, COLOURS["other"])
    x = min(start_s * scale, WIDTH - LEAST)
    return f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="{BAR}" fill="{colour}"/>'


def axis(end_s: float, step_s: float) -> str:
    """Ticks with their labels to the right, each as wide as a step, all in one unit."""
    share = 100 * step_s / end_s
    # A label that begins close to the right edge would be cut off.
    ticks = [tick for tick in range(int(end_s / step_s) + 1) if tick * step_s < 0.85 * end_s]
    scale, unit = units.time_unit(end_s)
    spans = "".join(
        f'<span style="display:inline-block;flex:none;width:{share:.2f}%;white-space:nowrap;'
        f'box-sizing:border-box;padding-left:3px;border-left:1px solid">'
        f"{tick * step_s / scale:.6g} {unit}</span> "
        for tick in ticks
    )
    return f'<div style="display:flex;overflow:hidden">{spans}</div>'


def round_step(end_s: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that gives at most seven ticks."""
    power = 10.0 ** math.floor(math.log10(end_s))
    return next(power * f for f in (0.1, 0.2, 0.5, 1.0, 2.0) if end_s / (power * f) <= 6)


def _legend(kinds: Sequence[str]) -> str:
    square = '<span style="color:{};font-size:16px">■</span>'
    return " ".join(
        f'<span style="white-space:nowrap;margin-right:14px">{square.format(COLOURS[kind])} '
        f"{escape(WORDS.get(kind, kind))}</span>"
        for kind in kinds
    )
