"""A trace in the hand: its columns, and what they tell."""

from __future__ import annotations

import gzip
from functools import cached_property
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError
from perfkit.records.base import keep_last
from perfkit.records.timeline import DeviceTimeline, Gap, Step, TimelineReport
from perfkit.records.timing import Timing
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import Columns
from perfkit.timeline.export import chrome_json
from perfkit.timeline.files import find_trace, is_xplane, pieces, whole
from perfkit.timeline.judge import judge
from perfkit.timeline.steps import steps_in
from perfkit.timeline.timed import columns_of
from perfkit.timeline.xplane import read_xplane

__all__ = ["Timeline", "read_timeline"]


class Timeline:
    """One trace. `columns`: its intervals; `report`: the record of what they tell, made when it is
    first asked for.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        label: str = "",
        against: TimelineReport | None = None,
        **recorded: Any,
    ) -> None:
        self.columns, self._label = columns, label
        self._against, self._recorded = against, recorded

    @cached_property
    def report(self) -> TimelineReport:
        """The record: judged once."""
        return judge(self.columns, label=self._label, against=self._against, **self._recorded)

    @property
    def devices(self) -> tuple[DeviceTimeline, ...]:
        """Span, busy, idle, duty cycle and gaps of each device; empty without device events."""
        return self.report.devices

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The largest gaps of all devices, or of the host's operators, longest first."""
        found = [gap for device in self.devices for gap in device.gaps]
        if self.report.host is not None:
            found += self.report.host.gaps
        return tuple(sorted(found, key=lambda gap: -gap.duration_s))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the loop."""
        return self.report.steps

    def to_json(self) -> str:
        """The report as one line of JSON."""
        return self.report.to_json()

    def save(self, path: str | Path) -> Path:
        """Write Chrome's trace JSON, which Perfetto opens; compressed if `path` ends in .gz."""
        path = Path(path).expanduser()
        data = chrome_json(self.columns, self.report)
        try:
            path.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
        return path

    def __repr__(self) -> str:
        return f"<Timeline {self._label or 'of a cell'}: {len(self.columns):,} intervals>"


def read_timeline(
    path: str | Path | Timing,
    *,
    against: str | Path | None = None,
    steps: tuple[int, int] | None = None,
) -> Timeline:
    """Read a trace and judge it: Chrome JSON of PyTorch's or JAX's profiler (.json, .json.gz), an
    .xplane.pb, or a folder that holds such files, of which the newest is taken; or the record of a
    `%%gpu_time`, whose last run it pictures.

    `against`: another trace, to see what changed. `steps`: (first, last) numbers of the steps to
    look at; what lies outside is left out. Raises UsageError in one line for what is no trace.
    """
    other = None if against is None else read_timeline(against, steps=steps).report
    if isinstance(path, Timing):
        columns, label = columns_of(path), path.label
    else:
        file = find_trace(path)
        columns, label = _read(file), file.name
    selection = ""
    if steps is not None:
        columns, selection = _selected(columns, steps, label)
    timeline = Timeline(columns, label=label, against=other, selection=selection)
    keep_last(timeline.report)
    return timeline


def _read(path: Path) -> Columns:
    if is_xplane(path):
        return read_xplane(whole(path), str(path))
    return read_chrome(pieces(path), str(path))


def _selected(columns: Columns, steps: tuple[int, int], where: str) -> tuple[Columns, str]:
    """What overlaps the steps from the first to the last, both inside."""
    marks, (first, last) = steps_in(columns), steps
    chosen = [i for i, number in enumerate(marks.numbers) if number is not None]
    chosen = [i for i in chosen if first <= (marks.numbers[i] or 0) <= last]
    if not chosen:
        known = [number for number in marks.numbers if number is not None]
        there = f"it has {min(known)} to {max(known)}" if known else "it marks no steps"
        raise UsageError(f"{where} has no steps {first} to {last}: {there}")
    start_ns, end_ns = int(marks.start_ns[chosen[0]]), int(marks.end_ns[chosen[-1]])
    inside = (columns.start_ns < end_ns) & (columns.end_ns > start_ns)
    return columns.where(inside), f"steps {first} to {last}"
