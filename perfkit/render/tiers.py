"""Views of a TierTable and of a TierPlan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from perfkit import optional, units
from perfkit.records.tiers import Tier, TierPlan, TierTable
from perfkit.render.theme import COLOURS, MASK, STYLE, is_stable

__all__ = ["MIME", "bundle", "figure", "html", "text"]

MIME = "application/vnd.perfkit.tiers.v1+json"
HEADS = ("tier", "persists", "shared", "capacity", "free", "read", "write", "latency", "IOPS", "")
SIGNS = {"measured": "", "nominal": "(n)", "elsewhere": "(m)", "absent": ""}
_CELL = "padding:2px 10px 2px 0;white-space:nowrap;border:0;background:none;vertical-align:baseline"
_WIDTH = 1000


def bundle(record: TierTable | TierPlan) -> dict[str, Any]:
    """All views by MIME type."""
    if isinstance(record, TierPlan):
        return {"text/plain": _plan_text(record), "text/html": _plan_html(record)}
    summary: dict[str, Any] = {
        "record": "TierTable",
        "tiers": [{"name": tier.name, "kind": tier.kind} for tier in record.tiers],
    }
    if not is_stable():
        for row, tier in zip(summary["tiers"], record.tiers, strict=True):
            row |= {"read_Bps": tier.read_Bps, "latency_s": tier.latency_s}
    return {"text/plain": text(record), "text/html": html(record), MIME: summary}


# -- the table -------------------------------------------------------------------------------------


def text(table: TierTable | TierPlan) -> str:
    """Aligned text: your rows, then those of the other machine."""
    if isinstance(table, TierPlan):
        return _plan_text(table)
    rows = [HEADS, *map(_cells, table.tiers)]
    if table.reference:
        rows += [("",) * len(HEADS), *map(_cells, table.reference)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEADS))]
    lines = []
    for number, row in enumerate(rows):
        if not any(row):
            lines += ["", f"  {table.reference_name}:"]
            continue
        cells = [
            cell.ljust(width) if n < 3 or n == len(HEADS) - 1 or not number else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join([_head(table), *lines, *(f"  {line}" for line in _remarks(table))])


def html(table: TierTable) -> str:
    """The same with bars: bandwidth and latency on logarithmic scales."""
    rows = "".join(_row(tier, table) for tier in table.tiers)
    if table.reference:
        rows += (
            f'<tr style="background:none"><td colspan="{len(HEADS)}" style="{_CELL};'
            f'padding-top:10px;text-align:left;{STYLE["note"]}">'
            f"{escape(table.reference_name)}</td></tr>"
        )
        rows += "".join(_row(tier, table) for tier in table.reference)
    heads = "".join(
        f'<th style="{_CELL};text-align:{"left" if n < 3 else "right"};font-weight:600">'
        f"{escape(head)}</th>"
        for n, head in enumerate(HEADS[:-1])
    )
    picture = "" if is_stable() else _picture(table)
    remarks = "".join(f"<div>{escape(line)}</div>" for line in _remarks(table))
    return (
        f'<div style="{STYLE["box"]};max-width:1050px"><div style="{STYLE["head"]}"><strong>'
        f"{escape(_head(table))}</strong></div>"
        f'<div style="overflow-x:auto"><table style="{STYLE["table"]}"><thead>'
        f'<tr style="background:none">{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{picture}{remarks}</div>"
    )


def _head(table: TierTable) -> str:
    if is_stable():
        return f"{table.label}: {MASK}"
    measured = sum(tier.figures == "measured" for tier in table.tiers)
    spent = f"{table.label}: {units.count(measured, 'tier')} in {units.seconds(table.spent_s)}"
    if table.waited_s > 0.1:
        spent += f", of which {units.seconds(table.waited_s)} of waiting for other probes"
    return spent + (f", stopped by {table.stopped}" if table.stopped else "")


def _cells(tier: Tier) -> tuple[str, ...]:
    """The row's words; what was refused is struck out with its reason below."""
    sign = SIGNS[tier.figures]
    doubt = {"valid": "", "suspect": "?", "refused": "!"}[tier.quality.status]
    doubt = "" if is_stable() else doubt
    multiplier = f" x {tier.multiplier}" if tier.multiplier else ""
    if tier.figures == "absent":
        return (_clean(tier.name), "absent", *("–",) * (len(HEADS) - 3), "")
    return (
        _clean(tier.name),
        _said(tier.persistent, "persistent" in tier.filled_in),
        _said(tier.shared, "shared" in tier.filled_in),
        _masked(units.capacity(tier.capacity_bytes)),
        _masked(units.capacity(tier.free_bytes)),
        _masked(units.bandwidth(tier.read_Bps)) + multiplier,
        _masked(units.bandwidth(tier.write_Bps)),
        _masked(units.seconds(tier.latency_s)),
        _masked(units.NOT_AVAILABLE if tier.iops is None else f"{tier.iops:,.0f}"),
        f"{sign}{doubt}",
    )


def _quoted(text: str) -> str:
    """As the options take it: in the quotes that it does not hold itself."""
    if text.isascii() and not set(text) & set(" '\"\t"):
        return text
    return f"'{text}'" if '"' in text else f'"{text}"'


def _clean(words: str) -> str:
    """A folder's name may hold what moves the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def _said(answer: str, by_you: bool) -> str:
    return f"{answer} (you)" if by_you else answer


def _masked(words: str) -> str:
    return MASK if is_stable() and words != units.NOT_AVAILABLE else words


def _row(tier: Tier, table: TierTable) -> str:
    *cells, sign = _cells(tier)
    dim = ";opacity:0.7" if tier in table.reference or tier.figures == "absent" else ""
    refused = tier.quality.status == "refused" and not is_stable()
    strike = ";text-decoration:line-through" if refused else ""
    note = "" if is_stable() else tier.note
    body = "".join(
        f'<td style="{_CELL};text-align:{"left" if n < 3 else "right"}'
        f'{strike if n > 4 else ""};font-variant-numeric:tabular-nums">{escape(cell)}</td>'
        for n, cell in enumerate(cells)
    )
    name = f'<td style="{_CELL};text-align:left">{escape(sign)}</td>'
    return f'<tr style="background:none{dim}" title="{escape(note)}">{body}{name}</tr>'


def _remarks(table: TierTable) -> list[str]:
    if is_stable():
        return []
    signs = {SIGNS[tier.figures] for tier in table.reference} - {""}
    remarks = []
    if signs:
        remarks.append("(n) nominal: from a data sheet; (m) measured there, with its own method")
    for tier in table.tiers:
        mark = {"suspect": "?", "refused": "!"}.get(tier.quality.status)
        if mark:
            remarks.append(f"{mark} {tier.name}: {'; '.join(tier.quality.reasons)}")
    remarks += [
        f"{tier.name}: {tier.note}" for tier in table.tiers if tier.note and tier.kind != "cache"
    ]
    caches = [
        f"{tier.name.partition(' ')[0]} {tier.note.removesuffix(' on paper')}"
        for tier in table.tiers
        if tier.kind == "cache" and not tier.path and tier.note
    ]
    if caches:
        remarks.append(f"on paper: {', '.join(caches)}; the table has what the chase found")
    unknown = [t.path for t in table.tiers if "unknown" in (t.persistent, t.shared) and t.path]
    if unknown:
        remarks.append(
            "fill in what no file system tells: "
            f"%tiers --fill {_quoted(unknown[0] + ':persistent=yes,shared=no')}"
        )
    said = [*table.advice, *remarks, *(f"note: {note}" for note in table.notes)]
    return [_clean(line) for line in said]


def _picture(table: TierTable) -> str:
    """Bars on one logarithmic scale each: bandwidth to the right is better, latency to the left."""
    rows = [t for t in (*table.tiers, *table.reference) if t.read_Bps or t.latency_s]
    if not rows:
        return ""
    parts = []
    for title, field, colour, say in (
        (
            "read bandwidth, logarithmic: longer is faster",
            "read_Bps",
            COLOURS["host"],
            units.bandwidth,
        ),
        ("latency, logarithmic: longer is slower", "latency_s", COLOURS["kernel"], units.seconds),
    ):
        shown = [(tier, getattr(tier, field)) for tier in rows if getattr(tier, field)]
        if shown:
            parts.append(_bars(title, shown, colour, say, table))
    return f'<div style="margin:8px 0">{"".join(parts)}</div>'


def _short(name: str) -> str:
    return name if len(name) < 30 else f"…{name[-28:]}"


def _bars(
    title: str, shown: Sequence[tuple[Tier, float]], colour: str, say: Any, table: TierTable
) -> str:
    low = math.floor(math.log10(min(value for _, value in shown)) - 0.3)
    high = math.ceil(math.log10(max(value for _, value in shown)))
    body = ""
    for tier, value in shown:
        width = _WIDTH * (math.log10(value) - low) / max(high - low, 1)
        there = tier in table.reference
        fill = (
            f'fill="{colour}"' if not there else f'fill="none" stroke="{colour}" stroke-width="2"'
        )
        bar = (
            f'<svg viewBox="0 0 {_WIDTH} 14" preserveAspectRatio="none" '
            f'style="width:100%;height:10px;display:block"><rect x="1" y="2" '
            f'width="{max(width, 3):.0f}" height="10" {fill}/></svg>'
        )
        name = tier.name + (" (there)" if there else "")
        body += (
            f'<tr style="background:none"><td style="{_CELL};text-align:left;width:190px">'
            f"{escape(_short(name))}</td>"
            f'<td style="border:0;background:none;width:70%;padding:0 8px">{bar}</td>'
            f'<td style="{_CELL};text-align:right;width:90px">{escape(say(value))}</td></tr>'
        )
    return (
        f'<div style="font-weight:600;margin-top:6px">{escape(title)}</div>'
        f'<table style="{STYLE["table"]};width:100%;max-width:760px"><tbody>{body}</tbody></table>'
    )


def figure(table: TierTable) -> Any:
    """A matplotlib figure: bandwidth and latency over capacity, both axes logarithmic; filled
    points are this machine's, hollow ones the reference's. Raises MissingDependency.
    """
    pyplot = optional.require("matplotlib.pyplot", "the figure of a tier table")
    drawing, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, field, label in (
        (axes[0], "read_Bps", "read bandwidth in B/s"),
        (axes[1], "latency_s", "latency in s"),
    ):
        for tier in (*table.tiers, *table.reference):
            size, value = tier.capacity_bytes, getattr(tier, field)
            if not size or not value:
                continue
            there = tier in table.reference
            axis.loglog(
                size, value, "o", color=COLOURS["host"], fillstyle="none" if there else "full"
            )
            axis.annotate(
                tier.name, (size, value), textcoords="offset points", xytext=(5, 4), fontsize=8
            )
        axis.set_xlabel("capacity in bytes")
        axis.set_ylabel(label)
        axis.margins(0.25)
        axis.grid(alpha=0.3)
    return drawing


# -- the plan --------------------------------------------------------------------------------------


def _plan_lines(plan: TierPlan) -> list[tuple[str, str, str, str]]:
    kind = "quick" if plan.quick else "full"
    rows = [
        (
            "memory",
            f"{kind}: bandwidth and latency",
            f"{units.capacity(plan.memory_bytes)} of arrays",
            units.seconds(plan.memory_s),
        )
    ]
    for path in plan.paths:
        where = path.path + (f" ({path.why})" if path.why else "")
        if path.refused:
            rows.append((path.name, where, f"left out: {path.refused}", ""))
        elif path.same_as:
            rows.append((path.name, where, f"same file system as {path.same_as}", ""))
        else:
            fstype = "memory" if path.target.memory_backed else path.target.fstype
            size = f"{units.capacity(path.write_bytes)} written, then removed ({fstype})"
            rows.append((path.name, where, size, units.seconds(path.seconds)))
    devices = ", ".join(plan.devices) or "none: import a device runtime first"
    return [*rows, ("devices", devices, "", "")]


def _plan_head(plan: TierPlan) -> str:
    return (
        f"plan: {units.capacity(plan.write_bytes)} written to these folders and to nothing else, "
        f"about {units.seconds(plan.seconds)} in all; nothing has been done yet"
    )


def _plan_text(plan: TierPlan) -> str:
    rows = _plan_lines(plan)
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    lines = [
        "  " + "  ".join([*(c.ljust(w) for c, w in zip(row[:3], widths, strict=True)), row[3]])
        for row in rows
    ]
    return "\n".join([_plan_head(plan), *(line.rstrip() for line in lines)])


def _plan_html(plan: TierPlan) -> str:
    body = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_CELL};text-align:{"right" if n == 3 else "left"}">{escape(cell)}</td>'
            for n, cell in enumerate(row)
        )
        + "</tr>"
        for row in _plan_lines(plan)
    )
    return (
        f'<div style="{STYLE["box"]};max-width:1050px"><div style="{STYLE["head"]}"><strong>'
        f"{escape(_plan_head(plan))}</strong></div>"
        f'<table style="{STYLE["table"]}"><tbody>{body}</tbody></table></div>'
    )
