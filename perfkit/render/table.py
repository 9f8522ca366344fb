"""Rows of (name, value, note) as aligned text and as an HTML table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from perfkit.render.theme import STYLE

_NAME = "font-weight:600;white-space:nowrap"

__all__ = ["Row", "as_html", "as_text"]


class Row(NamedTuple):
    """One quantity. `value` carries its unit; `note` says what it is in a few words."""

    name: str
    value: str
    note: str = ""


def as_text(rows: Sequence[Row], indent: str = "  ") -> str:
    """Names left, values right, notes left, one row a line."""
    names = max((len(row.name) for row in rows), default=0)
    values = max((len(row.value) for row in rows), default=0)
    lines = (f"{indent}{r.name:<{names}}  {r.value:>{values}}  {r.note}".rstrip() for r in rows)
    return "\n".join(lines)


def as_html(rows: Sequence[Row]) -> str:
    """The same as a table, escaped."""
    body = "".join(
        f'<tr style="background:none"><th scope="row" style="{STYLE["cell"]};{_NAME}">'
        f'{escape(row.name)}</th><td style="{STYLE["number"]}">{escape(row.value)}</td>'
        f'<td style="{STYLE["cell"]};{STYLE["note"]}">{escape(row.note)}</td></tr>'
        for row in rows
    )
    return f'<table style="{STYLE["table"]}"><tbody>{body}</tbody></table>'
