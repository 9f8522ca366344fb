"""Tables of several columns as aligned text and as HTML, and names that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from perfkit.render import source
from perfkit.render.theme import STYLE

__all__ = ["Cell", "Grid", "as_html", "as_text", "clean", "shorten"]

ON_ONE_LINE = 60
LONGEST = 2000
"""As much of a name is in the tooltip; some are 100 kB long."""
_LINE = "rgba(128,128,128,0.35)"
_CELL = "padding:1px 14px 1px 0;border:0;background:none;vertical-align:top"
_HEAD = f"{_CELL};font-weight:600;white-space:nowrap;border-bottom:1px solid {_LINE}"
_QUALIFIER = re.compile(r"(?:\(anonymous namespace\)|\w+)::")
_BAR = "rgba(213,94,0,0.45)"


class Cell(NamedTuple):
    """What one cell says. `name`: a name of any length, shown where there is no text, cut in the
    middle. `share`: of one, as a bar in HTML.
    """

    text: str = ""
    name: str = ""
    share: float | None = None


class Grid(NamedTuple):
    """A table with its heading. `head`: a column that begins with a blank is one of numbers.
    `most`: columns that a name may take.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    notes: Sequence[str] = ()
    most: int = 44


def clean(name: str) -> str:
    """A name on one line, without control characters, and of a length that can be shown."""
    text = name[: 4 * LONGEST].encode(errors="replace").decode()
    return " ".join(source.lines(text, limit=LONGEST))


def shorten(name: str, most: int) -> str:
    """A clean name of at most `most` columns. One of C++ first loses its namespaces, its type and
    its arguments; then begin and end are kept.
    """
    name = clean(name)
    if source.width(name) > most and "::" in name:
        name = _without_arguments(_QUALIFIER.sub("", name).removeprefix("void "))
    if source.width(name) <= most:
        return name
    head = source.fit(name, most * 3 // 5)
    tail = name[len(name) - (most - source.width(head)) :]
    while source.width(tail) > most - source.width(head):
        tail = tail[1:]
    return head + tail


def _without_arguments(name: str) -> str:
    """C++ without the list in its last parentheses, which repeats the template's."""
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place] if name.endswith(")") else name
    return name


def as_text(grid: Grid) -> str:
    """Aligned columns below the title."""
    rows = [[_said(cell, grid.most) for cell in row] for row in (grid.head, *grid.rows)]
    widths = [max(map(source.width, column)) for column in zip(*rows, strict=True)]
    right = [head.startswith(" ") for head in grid.head]
    lines = (
        "  ".join(
            " " * (width - source.width(word)) + word
            if at_right
            else word + " " * (width - source.width(word))
            for word, width, at_right in zip(row, widths, right, strict=True)
        )
        for row in rows
    )
    return "\n".join(
        f"  {line}".rstrip()
        for line in (f"{grid.title}:", *(f"  {o}" for o in lines), *_notes(grid))
    )


def as_html(grid: Grid) -> str:
    """The same as a table. The whole of a name that was cut is in its title."""
    right = [head.startswith(" ") for head in grid.head]
    head = "".join(
        f'<th style="{_HEAD};text-align:{side}">{escape(word.strip())}</th>'
        for word, side in zip(grid.head, ["right" if n else "left" for n in right], strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(_cell(cell, number, grid.most) for cell, number in zip(row, right, strict=True))
        + "</tr>"
        for row in grid.rows
    )
    notes = "".join(f'<div style="{STYLE["note"]}">{escape(note)}</div>' for note in grid.notes)
    return (
        f'<div style="overflow-x:auto"><table style="{STYLE["table"]}">'
        f'<thead><tr style="background:none">{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{notes}"
    )


def _notes(grid: Grid) -> Sequence[str]:
    return [f"  {note}" for note in grid.notes]


def _said(cell: Cell | str, most: int) -> str:
    if isinstance(cell, str):
        return cell.strip()
    return cell.text or shorten(cell.name, most)


def _cell(cell: Cell | str, number: bool, most: int) -> str:
    said = _said(cell, most)
    style = f"{_CELL};text-align:left"
    if len(said) <= ON_ONE_LINE:
        style += ";white-space:nowrap"
    if number:
        style = f"{_CELL};text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
    title = ""
    if isinstance(cell, Cell):
        whole = clean(cell.name)
        title = f' title="{escape(whole)}"' if cell.name and whole != said else ""
        if cell.share is not None:
            percent = f"{100 * min(cell.share, 1):.1f}%"
            style += (
                f";background:linear-gradient({_BAR},{_BAR}) no-repeat left center/{percent} 70%"
                " content-box;min-width:90px"
            )
    return f'<td style="{style}"{title}>{escape(said)}</td>'
