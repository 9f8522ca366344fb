"""Source text as it is shown: safe, without tabs, cut by its display width, in syntax colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from itertools import groupby

from perfkit import optional

__all__ = ["coloured", "fit", "indent", "lines", "width"]

TAB = 4
MOST_LINES = 20
# Of middling lightness. On white and on JupyterLab's dark ground alike each has a contrast of 4.2,
# and of 5.5 mixed with the reader's own colour; a notebook that is not trusted loses the mix.
COLOURS = (
    ("Keyword", "#9a5fd6"),
    ("Operator.Word", "#9a5fd6"),
    ("Name.Decorator", "#9a5fd6"),
    ("Literal.String.Interpol", ""),
    ("Literal.String", "#2e8b57"),
    ("Literal.Number", "#b8651b"),
    ("Name.Function", "#1f7fc4"),
    ("Name.Class", "#1f7fc4"),
    ("Name.Builtin", "#0f8a8a"),
    ("Comment", "#808080"),
)
_DIRECTIONS = dict.fromkeys(
    [*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\N{REPLACEMENT CHARACTER}"
)
# Control characters as their pictures: an escape must not reach a terminal.
_SAFE = (
    _DIRECTIONS
    | {code: chr(0x2400 + code) for code in range(0x20)}
    | {0x7F: "\N{SYMBOL FOR DELETE}"}
)


def width(text: str) -> int:
    """Columns that a text takes: East Asian wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def fit(text: str, limit: int) -> str:
    """The text, or as much of it as leaves room for an ellipsis in `limit` columns."""
    if width(text) <= limit:
        return text
    taken, kept = 0, []
    for letter in text:
        taken += _columns(letter)
        if taken >= limit:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def indent(sources: Sequence[str]) -> int:
    """Columns of white space that all lines of all sources begin with."""
    rows = [row for text in sources for row in _expanded(text) if row.strip()]
    return min((len(row) - len(row.lstrip()) for row in rows), default=0)


def lines(text: str, margin: int = 0, limit: int = 100) -> list[str]:
    """The lines of a statement without their common margin, each cut to `limit` columns.

    Beyond 20 lines a last one says how many are left out.
    """
    rows = _expanded(text)
    shown = [fit(row[margin:] if row[:margin].isspace() else row, limit) for row in rows]
    if len(shown) > MOST_LINES:
        shown[MOST_LINES - 1 :] = [f"… {len(shown) - MOST_LINES + 1} more lines"]
    return shown


def coloured(text: str) -> str:
    """Python source as escaped HTML, coloured by inline styles."""
    lexers = optional.require("pygments.lexers", "syntax colour")
    tokens = lexers.PythonLexer(stripnl=False, ensurenl=False).get_tokens(text)
    runs = groupby(tokens, key=lambda token: _colour(str(token[0]).removeprefix("Token.")))
    return "".join(_span(colour, "".join(part for _, part in run)) for colour, run in runs)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _expanded(text: str) -> list[str]:
    """Lines as Python sees them (not as str.splitlines does), with tabs and controls made safe."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    return [row.expandtabs(TAB).translate(_SAFE).rstrip() for row in rows]


def _colour(kind: str) -> str:
    return next((colour for name, colour in COLOURS if kind.startswith(name)), "")


def _span(colour: str, text: str) -> str:
    if not colour or text.isspace():
        return escape(text)
    mixed = f"color-mix(in srgb,{colour} 80%,currentcolor)"
    return f'<span style="color:{colour};color:{mixed}">{escape(text)}</span>'
