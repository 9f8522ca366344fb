"""Views of a LineProfile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from perfkit import optional, units
from perfkit.records.lines import Function, LineProfile, Loop, Statement
from perfkit.render import source
from perfkit.render.theme import MASK, STYLE, is_stable

__all__ = ["MIME", "bundle", "html", "text", "widget"]

MIME = "application/vnd.perfkit.lines.v1+json"
COLD = 0.01
"""Functions with a smaller share are folded."""
MOST_ROWS, MOST_NAMES = 400, 12
TEXT_COLUMNS, HTML_COLUMNS = 100, 160
MODES = {
    "bursts": "lines traced in short bursts, times from {ticks} in between",
    "exact": "every statement traced, the tracer's own cost taken out",
    "twice": "times from {ticks} in a plain run, hits from a second, traced one",
    "steps": "stopped after each statement",
}
CELL = ("<module>", "<cell>", "the cell")
_HEAT = "213,94,0"
_LINE = "rgba(128,128,128,0.35)"
_NUMBER = "padding:1px 7px;text-align:right;white-space:nowrap;border:0;vertical-align:baseline"
_LEFT = "padding:1px 7px;text-align:left;white-space:nowrap;border:0;vertical-align:baseline"
_SOURCE = (
    "padding:1px 7px;text-align:left;white-space:pre;border:0;vertical-align:baseline;"
    "font-family:monospace;font-size:12px;width:100%"
)
_BADGE = (
    "margin-left:14px;padding:0 6px;border-radius:8px;font-family:sans-serif;font-size:11px;"
    "white-space:nowrap;border:1px solid " + _LINE
)


class _Group(NamedTuple):
    """A function and those of its statements that are shown."""

    function: Function
    rows: Sequence[Statement]


class _Column(NamedTuple):
    """One column: what it says of a statement and, where it has a word, of a function."""

    title: str
    of: Callable[[Statement], str]
    total: Callable[[Function], str] = lambda _: ""


class _Spot(NamedTuple):
    """Where most of the time is spent: a statement, or a tight loop as a whole."""

    kind: str
    at: Statement | Loop
    self_s: float


class _Report(NamedTuple):
    """What both views show, in order."""

    hot: Sequence[_Group]
    cold: Sequence[_Group]
    columns: Sequence[_Column]
    badges: dict[tuple[str, str, int], Loop]
    remarks: Sequence[str]


def bundle(
    profile: LineProfile, *, unit_s: float | None = None, strip_zero: bool = False
) -> dict[str, Any]:
    """All views by MIME type. The JSON has the headline, not the rows."""
    summary: dict[str, Any] = {"record": "LineProfile", "mode": profile.mode}
    if not is_stable():
        summary |= {name: getattr(profile, name) for name in ("wall_s", "overhead", "ticks")}
        summary["hottest"] = _spot_summary(_hottest(profile))
    return {
        "text/plain": text(profile, unit_s, strip_zero),
        "text/html": html(profile, unit_s, strip_zero),
        MIME: summary,
    }


def text(profile: LineProfile, unit_s: float | None = None, strip_zero: bool = False) -> str:
    """Aligned text, one statement a line, its source at the right.

    `unit_s`: print times as plain numbers in this unit. `strip_zero`: leave out what never ran.
    """
    report = _report(profile, unit_s, strip_zero)
    folded = [_folded(report.cold, shares=True)] if report.cold else []
    return "\n".join(
        [
            _headline(profile),
            *(f"  {line}" for line in _measured(profile, unit_s)),
            *(f"  {line}".rstrip() for line in _text_table(report)),
            *(f"  {line}" for line in [*folded, *report.remarks]),
        ]
    )


def html(profile: LineProfile, unit_s: float | None = None, strip_zero: bool = False) -> str:
    """The same as a heat table; functions under 1 % are folded, and open without a script."""
    report = _report(profile, unit_s, strip_zero)
    label, number, rest = _headline(profile).partition(": ")
    head = f"{escape(label)}{number}<strong>{_marked(rest)}</strong>"
    measured = "".join(
        f'<div style="{STYLE["note"]}">{_marked(line)}</div>' for line in _measured(profile, unit_s)
    )
    folded = ""
    if report.cold:
        summary = escape(_folded(report.cold))
        folded = (
            f'<details><summary style="cursor:pointer">{summary}</summary>'
            f"{_html_table(report, report.cold)}</details>"
        )
    remarks = "".join(
        f'<div style="{STYLE["note"]}">{_marked(line)}</div>' for line in report.remarks
    )
    return (
        f'<div style="{STYLE["box"]};max-width:{620 + 40 * len(report.columns)}px">'
        f'<div style="{STYLE["head"]}">{head}</div>{measured}'
        f"{_html_table(report, report.hot)}{folded}{remarks}</div>"
    )


def widget(profile: LineProfile) -> Any:
    """An ipywidgets view: pick a hot statement, slide how many times faster, read the run's time.

    Raises MissingDependency where ipywidgets is not there.
    """
    widgets = optional.require("ipywidgets", "the widget of a line profile")
    hot = sorted((r for r in profile.statements if r.time_s), key=lambda r: -r.time_s)[:20]
    if not hot:
        return widgets.HTML("no statement took time that could be saved")
    wide = {"width": "640px"}
    spot = _hottest(profile)
    which = widgets.Dropdown(
        options=[(_choice(row), place) for place, row in enumerate(hot)],
        value=hot.index(spot.at) if spot and spot.at in hot else 0,
        description="statement",
        layout=wide,
    )
    factor = widgets.SelectionSlider(
        options=[*((f"{n} x", n) for n in (2, 3, 5, 10, 100)), ("gone", 0)],
        description="faster",
        layout=wide,
    )
    says = widgets.HTML()

    def tell(change: Any = None) -> None:
        says.value = _marked(_what_if(profile, hot[which.value], factor.value))

    which.observe(tell, "value")
    factor.observe(tell, "value")
    tell()
    return widgets.VBox([which, factor, says])


def _choice(row: Statement) -> str:
    words = source.fit(source.lines(row.source.lstrip())[0], 50)
    return f"{_place(row).replace('`', '')}, {units.share(row.share)}: {words}"


def _what_if(profile: LineProfile, row: Statement, factor: int) -> str:
    """The run's new time by Amdahl's law; factor 0 is the statement gone."""
    if row.share >= 1:
        return f"{_place(row)} is the whole run: what it gains, the run gains"
    gain = row.speed_up(factor) if factor else row.bound
    change = f"{factor} x faster" if factor else "gone"
    new = units.seconds(profile.wall_s / gain) if gain else units.NOT_AVAILABLE
    return (
        f"with {_place(row)} {change}, the run takes {new} instead of "
        f"{units.seconds(profile.wall_s)}: {units.ratio(gain)} faster"
    )


def _report(profile: LineProfile, unit_s: float | None, strip_zero: bool) -> _Report:
    rows = _selected(profile, strip_zero)
    groups = _groups(profile, rows)
    cold = [group for group in groups if group.function.share < COLD]
    hot = [group for group in groups if group.function.share >= COLD]
    if is_stable() or not hot:
        hot, cold = groups, []
    badges, homeless = _badges(profile.loops, rows)
    asked = sum(not (strip_zero and _idle(row)) for row in profile.statements)
    columns = _columns(profile, unit_s)
    left_out = asked - len(rows)
    return _Report(hot, cold, columns, badges, _remarks(profile, rows, homeless, left_out))


def _selected(profile: LineProfile, strip_zero: bool) -> list[Statement]:
    """The statements that are shown: of more than 400 the hottest 400 that ran."""
    rows = [row for row in profile.statements if not (strip_zero and _idle(row))]
    if len(rows) <= MOST_ROWS:
        return rows
    places = [place for place, row in enumerate(rows) if not _idle(row)]
    if not is_stable():
        places.sort(key=lambda place: (-rows[place].time_s, -rows[place].hits))
    return [rows[place] for place in sorted(places[:MOST_ROWS])]


def _groups(profile: LineProfile, rows: Iterable[Statement]) -> list[_Group]:
    """Functions, the hottest first; in the stable mode by name."""
    known = {(function.file, function.name): function for function in profile.functions}
    groups = [
        _Group(
            known.get(key) or _guessed(key, found, profile.wall_s),
            sorted(found, key=lambda row: (row.line, row.end_line)),
        )
        for key, found in _by_function(rows).items()
    ]
    if is_stable():
        return sorted(groups, key=lambda group: (group.function.name, group.function.line))
    return sorted(groups, key=lambda group: (-group.function.time_s, group.function.line))


def _by_function(rows: Iterable[Statement]) -> dict[tuple[str, str], list[Statement]]:
    inside: dict[tuple[str, str], list[Statement]] = {}
    for row in rows:
        inside.setdefault((row.file, row.function), []).append(row)
    return inside


def _guessed(key: tuple[str, str], rows: Sequence[Statement], wall_s: float) -> Function:
    """A function that the record has statements of and no sum."""
    file, name = key
    time_s = sum(row.self_s for row in rows)
    line = min(row.line for row in rows)
    share = time_s / wall_s if wall_s else 0.0
    return Function(name=name, file=file, line=line, time_s=time_s, share=share)


def _badges(
    loops: Iterable[Loop], rows: Sequence[Statement]
) -> tuple[dict[tuple[str, str, int], Loop], list[Loop]]:
    """Loops by the row of their header, and those whose header has no row of its own here."""
    inside = _by_function(rows)
    found: dict[tuple[str, str, int], Loop] = {}
    homeless = []
    for loop in loops:
        headers = [
            row
            for row in inside.get((loop.file, loop.function), ())
            if row.line <= loop.line <= row.end_line
        ]
        line = max((row.line for row in headers), default=0)
        if headers and (loop.file, loop.function, line) not in found:
            found[loop.file, loop.function, line] = loop
        else:
            homeless.append(loop)
    return found, homeless


def _subtotal(loop: Loop) -> str:
    return f"loop {_share(loop.share)} ±{_points(loop.uncertainty)}"


def _idle(row: Statement) -> bool:
    """Was nothing of it seen? In the stable mode only what cannot differ counts."""
    return not row.hits and (row.hits_exact if is_stable() else not row.time_s)


def _columns(profile: LineProfile, unit_s: float | None) -> list[_Column]:
    def time(value_s: float | None) -> str:
        if is_stable():
            return MASK
        return units.seconds(value_s) if unit_s is None else _plain(value_s, unit_s)

    def ran(say: Callable[[Statement], str]) -> Callable[[Statement], str]:
        return lambda row: "" if _idle(row) else say(row)

    columns = [
        _Column("line", lambda row: str(row.line)),
        _Column(
            _clock(profile),
            ran(lambda row: time(row.time_s)),
            lambda function: time(function.time_s),
        ),
        _Column("share", ran(_row_share), lambda function: _share(function.share)),
        _Column("± points", ran(lambda row: _points(row.uncertainty))),
        _Column("hits", lambda row: _hits(row, profile)),
        _Column("per hit", ran(lambda row: time(_per_hit(row)))),
        _Column("bound", ran(lambda row: _bound(row.share, row.uncertainty))),
    ]
    if profile.synchronized:
        columns[2:2] = [
            _Column("host", ran(lambda row: time(row.host_s))),
            _Column("device", ran(lambda row: time(row.device_s))),
        ]
    if profile.memory:
        columns += [
            _Column("allocated", ran(lambda row: _capacity(row.host_bytes))),
            _Column("peak", ran(lambda row: _capacity(row.host_peak_bytes))),
            _Column("on device", ran(lambda row: _capacity(row.device_bytes))),
        ]
    return columns


def _clock(profile: LineProfile) -> str:
    return "wall" if profile.synchronized else "time"


def _plain(value_s: float | None, unit_s: float) -> str:
    if value_s is None:
        return units.NOT_AVAILABLE
    value = value_s / unit_s
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _capacity(nbytes: int | None) -> str:
    return MASK if is_stable() else units.capacity(nbytes)


def _share(value: float) -> str:
    return MASK if is_stable() else units.share(value)


def _row_share(row: Statement) -> str:
    return f"{'~' if row.tight and not is_stable() else ''}{_share(row.share)}"


def _points(uncertainty: float) -> str:
    """An uncertainty in points; one that is there is never shown as none."""
    if is_stable():
        return MASK
    return str(round(100 * uncertainty) or (1 if uncertainty else 0))


def _hits(row: Statement, profile: LineProfile) -> str:
    if is_stable() and profile.mode == "bursts":
        # Whether a burst saw all of them depends on how fast the machine was.
        return MASK
    if row.hits_exact:
        return f"{row.hits:,}"
    if is_stable():
        return MASK
    return f">= {row.hits:,}" if row.hits else units.NOT_AVAILABLE


def _per_hit(row: Statement) -> float | None:
    return row.time_s / row.hits if row.hits_exact and row.hits else None


def _bound(share: float, uncertainty: float) -> str:
    """Amdahl's bound, or its lower limit where the share may as well be all of the run."""
    if is_stable():
        return MASK
    least = _least_bound(share, uncertainty)
    if least is not None:
        return f"> x{_factor(least)}"
    return f"x{_factor(1 / (1 - share))}" if share < 1 else units.NOT_AVAILABLE


def _least_bound(share: float, uncertainty: float) -> float | None:
    """The lower limit where no upper one is known."""
    least = 1 - share + uncertainty
    return 1 / least if share + uncertainty >= 1 and 0 < least < 1 else None


def _factor(value: float) -> str:
    return units.ratio(value).removesuffix(" x")


def _hottest(profile: LineProfile) -> _Spot | None:
    """The statement, or the tight loop, in which most time is spent outside other functions."""
    tight = {(x.file, x.function, x.line): x for x in profile.loops if x.tight}
    sums: dict[tuple[str, str, int], float] = defaultdict(float)
    spots = []
    for row in profile.statements:
        around = [(row.file, row.function, line) for line in (row.line, row.loop)]
        loop = next((key for key in around if key in tight), None) if row.tight else None
        if loop:
            sums[loop] += row.self_s
        else:
            spots.append(_Spot("statement", row, row.self_s))
    spots += [_Spot("loop", tight[key], self_s) for key, self_s in sums.items()]
    best = max(spots, key=lambda spot: spot.self_s, default=None)
    return best if best and best.self_s else None


def _spot_summary(spot: _Spot | None) -> dict[str, Any] | None:
    if spot is None:
        return None
    bound = 1 / (1 - spot.at.share) if spot.at.share < 1 else None
    return {
        "kind": spot.kind,
        "function": spot.at.function,
        "line": spot.at.line,
        "share": spot.at.share,
        "bound": bound,
    }


def _place(at: Statement | Loop) -> str:
    return f"line {at.line} of {_name(at.function)}"


def _name(function: str) -> str:
    return "the cell" if function in CELL else f"`{function}`"


def _headline(profile: LineProfile) -> str:
    """How long it took without perfkit, and where most of that went."""
    label = profile.label or "line profile"
    if not profile.statements:
        return (
            f"{label}: no statement was profiled: no function of your own is called by name; "
            "name one with -f"
        )
    if is_stable():
        return f"{label}: {MASK}"
    wall = f"{label}: {units.seconds(profile.wall_s)}"
    spot = _hottest(profile)
    if spot is None:
        return wall
    about = "about " if spot.kind == "statement" and spot.at.tight else ""
    share = units.share(spot.at.share)
    return f"{wall}, of which {about}{share} in one {spot.kind} ({_place(spot.at)})"


def _measured(profile: LineProfile, unit_s: float | None) -> list[str]:
    """What the hottest part could win, and how all this was measured."""
    spot = None if is_stable() else _hottest(profile)
    lines = [] if spot is None else [_win(spot)]
    ticks = f"{MASK} ticks" if is_stable() else units.count(profile.ticks, "tick")
    parts = [MODES[profile.mode].format(ticks=ticks)]
    if profile.synchronized:
        devices = f" ({', '.join(profile.backends)})" if profile.backends else ""
        parts[0] += f" until the devices were empty{devices}"
    parts += filter(None, [_slowed(profile)])
    if spot is not None:
        points = _points(spot.at.uncertainty)
        parts.append(f"shares ±{points} {'point' if points == '1' else 'points'}")
    lines.append("; ".join(parts))
    if unit_s is not None:
        lines.append(f"times in units of {unit_s:g} s")
    return lines


def _slowed(profile: LineProfile) -> str:
    what = "the cell" if profile.label.startswith("%%") else "the run"
    if profile.overhead is None or profile.synchronized:
        return ""
    if is_stable():
        return f"{what} ran {MASK} x slower under the profiler"
    if profile.overhead < 1.005:
        return f"{what} ran as fast as without the profiler"
    return f"{what} ran {units.ratio(profile.overhead)} slower under the profiler"


def _win(spot: _Spot) -> str:
    least = _least_bound(spot.at.share, spot.at.uncertainty)
    if least is None and spot.at.share >= 1:
        return "it is the whole run: what it gains, the run gains"
    more = "" if least is None else "more than "
    factor = least or 1 / (1 - spot.at.share)
    return f"without it the run would be {more}{units.ratio(factor)} faster"


def _remarks(
    profile: LineProfile, rows: Sequence[Statement], homeless: Sequence[Loop], left_out: int
) -> list[str]:
    """What the columns mean, and all that makes the figures less sure."""
    remarks = []
    if rows:
        remarks.append(
            f"{_clock(profile)} and share include all that the statement calls; "
            "bound: if it took no time, the run would be so many times faster"
        )
    if profile.synchronized:
        remarks.append(
            "wall: until the devices were empty; host: without that waiting; device: the devices' "
            "own time for what the statement launched; host and device do not overlap in this mode"
        )
    if profile.memory:
        remarks.append(
            "allocated: host memory that was kept; peak: how far it grew on the way; "
            "on device: device memory that was kept"
        )
    if left_out:
        remarks.append(
            f"{units.count(left_out, 'statement')} left out: "
            f"of more than {MOST_ROWS} only the hottest that ran are shown"
        )
    if profile.stopped:
        remarks.append(f"stopped by {profile.stopped}: what was seen by then")
    return remarks if is_stable() else [*_marks(rows), *remarks, *_doubts(profile, rows, homeless)]


def _marks(rows: Sequence[Statement]) -> list[str]:
    """The signs that are used in the table, each with its sentence."""
    signs = []
    if any(row.tight for row in rows):
        signs.append(
            "~: lines of one tight loop: their sum is measured, the split inside is approximate"
        )
    if any(not row.hits_exact for row in rows):
        signs.append(">=: at least so many hits, not all were traced; so time per hit is not known")
    return signs


def _doubts(profile: LineProfile, rows: Sequence[Statement], homeless: Sequence[Loop]) -> list[str]:
    hidden = [loop for loop in homeless if loop.share >= COLD][:MOST_NAMES]
    said = {f"note: {_place(row)}: {note}": None for row in rows for note in row.notes}
    return [
        *(f"{_subtotal(loop)}: {_place(loop)}" for loop in hidden),
        *(f"note: {note}" for note in profile.notes),
        *said,
        *(
            f"{profile.quality.status}, {reason}"
            for reason in profile.quality.reasons
            if reason != f"stopped by {profile.stopped}"
        ),
    ]


def _title(function: Function) -> str:
    """A function with its place; the temporary file of a cell is no place."""
    name = _name(function.name).strip("`")
    if function.name in CELL:
        return name
    own = function.file and not function.file.startswith("<") and "ipykernel" not in function.file
    where = f" of {Path(function.file).name}" if own else ""
    return f"{name}, line {function.line}{where}"


def _folded(cold: Sequence[_Group], shares: bool = False) -> str:
    names = [
        _name(function.name).strip("`") + (f" {_share(function.share)}" if shares else "")
        for function, _ in cold[:MOST_NAMES]
    ]
    more = f" and {len(cold) - MOST_NAMES} more" if len(cold) > MOST_NAMES else ""
    return f"{units.count(len(cold), 'function')} under 1 %: {', '.join(names)}{more}"


def _text_table(report: _Report) -> list[str]:
    """One head, then each function's name with its sums above its statements."""
    if not report.hot:
        return []
    columns = report.columns
    table: list[tuple[Sequence[str], str]] = [([c.title for c in columns], "source")]
    for function, rows in report.hot:
        table += [([], ""), ([c.total(function) for c in columns], _title(function))]
        margin = source.indent([row.source for row in rows])
        for row in rows:
            first, *others = source.lines(row.source, margin, TEXT_COLUMNS)
            loop = report.badges.get((row.file, row.function, row.line))
            table.append(
                ([c.of(row) for c in columns], first + (f"  [{_subtotal(loop)}]" if loop else ""))
            )
            table += [([], line) for line in others]
    table.append(([], ""))
    widths = [
        max(source.width(cells[place]) for cells, _ in table if cells)
        for place in range(len(columns))
    ]
    return [_text_row(cells or [""] * len(columns), widths, words) for cells, words in table]


def _text_row(cells: Sequence[str], widths: Sequence[int], words: str) -> str:
    padded = (" " * (n - source.width(cell)) + cell for cell, n in zip(cells, widths, strict=True))
    return "  ".join([*padded, words]).rstrip()


def _html_table(report: _Report, groups: Sequence[_Group]) -> str:
    if not groups:
        return ""
    head = "".join(
        f'<th style="{_NUMBER};font-weight:600">{escape(column.title)}</th>'
        for column in report.columns
    )
    body = "".join(_html_group(report, group) for group in groups)
    return (
        f'<div style="overflow-x:auto"><table style="{STYLE["table"]};width:100%;'
        f'font-variant-numeric:tabular-nums">'
        f'<thead><tr style="background:none">{head}'
        f'<th style="{_LEFT};font-weight:600">source</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _html_group(report: _Report, group: _Group) -> str:
    cells = "".join(
        f'<td style="{_NUMBER};border-top:1px solid {_LINE};padding-top:5px;font-weight:600">'
        f"{escape(column.total(group.function))}</td>"
        for column in report.columns
    )
    title = (
        f'<td style="{_LEFT};border-top:1px solid {_LINE};padding-top:5px">'
        f"<strong>{escape(_title(group.function))}</strong></td>"
    )
    margin = source.indent([row.source for row in group.rows])
    rows = "".join(_html_row(report, row, margin) for row in group.rows)
    return f'<tr style="background:none">{cells}{title}</tr>{rows}'


def _html_row(report: _Report, row: Statement, margin: int) -> str:
    cells = "".join(
        f'<td style="{_NUMBER}{_heat(row.share) if column.title == "share" else ""}">'
        f"{escape(column.of(row))}</td>"
        for column in report.columns
    )
    words = "\n".join(source.lines(row.source, margin, HTML_COLUMNS))
    code = escape(words) if _idle(row) else source.coloured(words)
    loop = report.badges.get((row.file, row.function, row.line))
    if loop:
        code += f'<span style="{_BADGE}{_heat(loop.share)}">{_subtotal(loop)}</span>'
    dimmed = ";opacity:0.65" if _idle(row) else ""
    return f'<tr style="background:none{dimmed}">{cells}<td style="{_SOURCE}">{code}</td></tr>'


def _heat(share: float) -> str:
    if is_stable() or share < COLD / 2:
        return ""
    return f";background-color:rgba({_HEAT},{0.04 + 0.56 * min(share, 1):.2f})"


def _marked(line: str) -> str:
    """Escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line))
