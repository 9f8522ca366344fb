"""Small pictures as inline SVG: no script, no font files, text in the reader's own colour."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from perfkit import units
from perfkit.records.timing import Span
from perfkit.render.theme import COLOURS

__all__ = ["lanes"]

WIDTH, LEFT, RIGHT, LANE, BAR, AXIS = 740, 130, 20, 26, 16, 34
WORDS = {
    "host": "body runs",
    "wait": "body waits",
    "drain": "perfkit drains",
    "kernel": "kernel",
    "h2d": "copy to the device",
    "d2h": "copy to the host",
    "d2d": "copy on the device",
}


def lanes(spans: Sequence[Span], title: str) -> str:
    """One row for each lane, the host first, on one time axis from the start of the body."""
    names = sorted({span.lane for span in spans}, key=lambda name: (name != "host", name))
    end_s = max(span.end_s for span in spans) or 1e-9
    scale = (WIDTH - LEFT - RIGHT) / end_s
    height = LANE * len(names) + AXIS + 22
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'style="max-width:100%;height:auto" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="12" font-family="sans-serif" fill="currentColor">'
        f"<title>{escape(title)}</title>"
    ]
    for number, name in enumerate(names):
        top = number * LANE + (LANE - BAR) / 2
        parts.append(f'<text x="0" y="{top + 12:g}">{escape(name[:20])}</text>')
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + BAR:g}" y2="{top + BAR:g}" '
            'stroke="currentColor" stroke-opacity="0.2"/>'
        )
        parts += [_bar(span, top, scale) for span in spans if span.lane == name]
    parts.append(_axis(LANE * len(names) + 4, end_s, scale))
    shown = {span.kind for span in spans}
    parts.append(_legend([kind for kind in COLOURS if kind in shown], height - 8))
    return "".join(parts) + "</svg>"


def _bar(span: Span, top: float, scale: float) -> str:
    left = LEFT + max(span.start_s, 0.0) * scale
    # A bar thinner than this could not be seen; the figures carry the truth.
    width = max((span.end_s - max(span.start_s, 0.0)) * scale, 0.7)
    text = f"{span.name}: {units.seconds(max(span.end_s - span.start_s, 0.0))}"
    return (
        f'<rect x="{left:.2f}" y="{top:g}" width="{width:.2f}" height="{BAR}" '
        f'fill="{COLOURS.get(span.kind, COLOURS["other"])}"><title>{escape(text)}</title></rect>'
    )


def _axis(top: float, end_s: float, scale: float) -> str:
    step_s = _round_step(end_s)
    marks = []
    ticks = int(end_s / step_s + 1e-9) + 1
    for tick in range(ticks):
        x = LEFT + tick * step_s * scale
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{top + 4:g}" stroke="currentColor"/>'
            f'<text x="{x:.1f}" y="{top + 16:g}" text-anchor="middle">'
            f"{escape(units.seconds(tick * step_s) if tick else '0')}</text>"
        )
    return "".join(marks)


def _round_step(end_s: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that gives four to nine ticks."""
    power = 1.0
    while power > end_s:
        power /= 10
    while power * 10 <= end_s:
        power *= 10
    return next(power * f for f in (0.1, 0.2, 0.5, 1.0) if end_s / (power * f) <= 10)


def _legend(kinds: Sequence[str], base: float) -> str:
    parts, x = [], float(LEFT)
    for kind in kinds:
        words = WORDS.get(kind, kind)
        parts.append(
            f'<rect x="{x:.0f}" y="{base - 9:g}" width="10" height="10" '
            f'fill="{COLOURS.get(kind, COLOURS["other"])}"/>'
            f'<text x="{x + 15:.0f}" y="{base:g}">{escape(words)}</text>'
        )
        x += 34 + 6 * len(words)
    return "".join(parts)
