"""The five bets: placed in lesson 00, each settled in the lesson that measures it."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

import msgspec

from perfkit.errors import UsageError
from perfkit.lessons.predictions import reveal
from perfkit.lessons.traces import Table
from perfkit.records.lesson import Prediction
from perfkit.render import grid
from perfkit.render import lesson as view
from perfkit.render.theme import STYLE

__all__ = ["BETS", "Bet", "Line", "settle", "slip"]


class Bet(NamedTuple):
    """The number of the lesson that settles a bet, what it is about, and its unit."""

    lesson: str
    about: str
    unit: str


BETS = {
    "bet.loop": Bet("20", "three loops against one @", "times as long"),
    "bet.disk": Bet("10", "a small read from disk against memory", "times as long"),
    "bet.share": Bet("30", "the hottest line of EM", "% of the time"),
    "bet.stopwatch": Bet("31", "the stopwatch, for eight times the work", "times as long"),
    "bet.cache": Bet("42", "ten shuffled workers, 90 % from the cache", "epochs"),
}
"""All bets there are, in the order in which lesson 00 asks for them."""


class Line(str):
    """A line that a notebook shows as it shows a prediction."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<div style="{STYLE["box"]}"><strong>{escape(self)}</strong></div>'


def slip(*placed: Prediction) -> Table:
    """What was bet on what, and which lesson settles it. Raises UsageError if one is no bet."""
    rows = [
        (str(number), bet.about, _said(one, bet.unit), f"lesson {bet.lesson}")
        for one in placed
        for number, bet in [_find(one.key)]
    ]
    missing = sum(one.value is None for one in placed)
    note = f"{missing} of {len(placed)} are missing: put numbers in place of None, and run it again"
    head = ("bet", "about", " yours", "settled in")
    return Table(grid.Grid("your bets", head, rows, [note if missing else "All are placed."]))


def settle(key: str, measured: float) -> Line:
    """A bet beside what was measured, also for those who placed none.

    Raises UsageError for a bet that does not exist, and for what is no number.
    """
    number, bet = _find(key)
    seen = msgspec.structs.replace(reveal(key, measured), unit=bet.unit)
    return Line(f"bet {number} of lesson 00, {bet.about}: {view.bundle(seen)['text/plain']}")


def _find(key: str) -> tuple[int, Bet]:
    if key not in BETS:
        raise UsageError(f"{key!r} is no bet: there are {', '.join(BETS)}")
    return 1 + list(BETS).index(key), BETS[key]


def _said(bet: Prediction, unit: str) -> str:
    return "" if bet.value is None else f"{bet.value:.4g} {unit}"
