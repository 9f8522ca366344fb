"""The timeline to zoom and to search, beside a running kernel. Only functions import this."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget  # noqa: TID253 - a class must inherit from it
import traitlets

from perfkit.records.timeline import CAUSES, TimelineReport
from perfkit.render import timeline
from perfkit.render.grid import clean
from perfkit.render.theme import COLOURS
from perfkit.render.timeline_picture import WORDS
from perfkit.render.timeline_tables import largest_gaps
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, Columns, Lane
from perfkit.timeline.launches import launch_rows
from perfkit.timeline.picture import lane_order

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TimelineWidget"]

STATIC = Path(__file__).parent / "static"
STILL = {
    "text/plain": "(the timeline to zoom and to search needs the kernel that made it)",
    "text/html": "<div>The timeline to zoom and to search needs the kernel that made it.</div>",
}
LONGEST = 400
"""Characters of a name that are sent."""
DARK = {"wait", "step", "kernel", "compile", "device", "python", "annotation", "memset", "d2d"}
"""Kinds whose colour is light: words on it are dark."""


class TimelineWidget(anywidget.AnyWidget):
    """Intervals on a canvas: zoom, search, click a gap to see its cause.

    Its HTML and text are those of the report, for readers without the kernel. JupyterLab shows them
    only in a notebook that it does not trust: show the report beside it, and say so by
    `alone=False`.
    """

    _esm = STATIC / "timeline.js"
    _css = STATIC / "timeline.css"
    start = traitlets.Bytes().tag(sync=True)
    end = traitlets.Bytes().tag(sync=True)
    lane = traitlets.Bytes().tag(sync=True)
    kind = traitlets.Bytes().tag(sync=True)
    name = traitlets.Bytes().tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, columns: Columns, report: TimelineReport, *, alone: bool = True) -> None:
        self._columns, self._report, self._alone = columns, report, alone
        self._calls: np.ndarray | None = None
        lanes, codes = _lanes(columns)
        super().__init__(
            start=columns.start_ns.astype("<f8").tobytes(),
            end=columns.end_ns.astype("<f8").tobytes(),
            lane=codes.astype("<u2").tobytes(),
            kind=columns.kind.astype("u1").tobytes(),
            name=columns.name.astype("<u4").tobytes(),
            words={
                "title": timeline.sentence(report).partition("\n")[0],
                "lanes": lanes,
                "names": [_sent(name) for name in columns.names],
                "kinds": [_kind(kind) for kind in KINDS],
                "gaps": _gaps(report),
            },
        )
        self.on_msg(self._answer)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = super()._repr_mimebundle_(**kwargs)
        data, metadata = shown or ({}, {})
        still = timeline.bundle(self._report) if self._alone else STILL
        return {**data, **still}, metadata

    def _answer(self, _: Any, asked: Any, buffers: Any) -> None:
        """Say of one interval what was not sent with all of them."""
        row = asked.get("row") if isinstance(asked, dict) else None
        if not isinstance(row, int) or not 0 <= row < len(self._columns):
            return
        columns = self._columns
        nbytes = int(columns.nbytes[row])
        self.send(
            {
                "row": row,
                "nbytes": None if nbytes == NO_BYTES else nbytes,
                "detail": _sent(columns.details[columns.detail[row]]),
                "call": int(self._launched_by()[row]),
            }
        )

    def _launched_by(self) -> np.ndarray:
        """By interval, the row of the call that launched it, or -1."""
        import numpy as np

        if self._calls is None:
            work = self._columns.of_kind(*DEVICE_KINDS)
            self._calls = np.full(len(self._columns), -1)
            self._calls[work] = launch_rows(self._columns, work)
        return self._calls


def _lanes(columns: Columns) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Lanes in the order they are drawn, and by interval the place of its lane. Marks on a device
    are no work: they have a lane of their own below its own.
    """
    import numpy as np

    marks = columns.of_kind("device_mark")
    marked = set(np.unique(columns.lane[marks]).tolist())
    working = set(np.unique(columns.lane[~marks]).tolist())
    place = np.zeros((2, max(len(columns.lanes), 1)), dtype=np.int64)
    lanes: list[dict[str, Any]] = []
    for code in lane_order(columns):
        for is_mark, used in enumerate((working, marked)):
            if code in used:
                place[is_mark, code] = len(lanes)
                lanes.append(_lane(columns.lanes[code], marks=bool(is_mark)))
    codes: np.ndarray = place[marks.astype(int), columns.lane]
    return lanes, codes


def _lane(lane: Lane, *, marks: bool) -> dict[str, Any]:
    name = f"{lane.name} (marks)" if marks else lane.name
    return {"device": clean(lane.device), "name": clean(name), "marks": marks}


def _kind(kind: str) -> dict[str, str]:
    ink = "#000000" if kind in DARK else "#ffffff"
    word = "mark" if kind == "device_mark" else WORDS[kind]
    return {"word": word, "colour": COLOURS.get(kind, COLOURS["other"]), "ink": ink}


def _gaps(report: TimelineReport) -> list[dict[str, Any]]:
    found = largest_gaps(report) if report.devices else []
    return [
        {
            "device": clean(device),
            "start": 1e9 * gap.start_s,
            "end": 1e9 * (gap.start_s + gap.duration_s),
            "cause": gap.cause,
            "meaning": CAUSES[gap.cause],
            "host": _sent(gap.host),
            "before": _sent(gap.before),
            "after": _sent(gap.after),
            "share": gap.share,
            "step": gap.step,
        }
        for device, gap in found
    ]


def _sent(name: str) -> str:
    name = clean(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
