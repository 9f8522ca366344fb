"""The last run of a `%%gpu_time` as columns: its record keeps the bars of its picture."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.errors import UsageError
from perfkit.records.timing import Timing
from perfkit.timeline.columns import DEVICE_KINDS, Columns, Event, Lane

__all__ = ["columns_of"]

_HOST = {"host": "host", "wait": "wait", "drain": "wait", "compile": "compile"}
"""Kinds of a timing's bars that are on the host; "other" is work of a device."""


def columns_of(timing: Timing) -> Columns:
    """The bars of the run that `timing` pictures. Raises UsageError where it pictures none."""
    if not timing.spans:
        raise UsageError(
            f"{timing.label or 'this timing'} has no picture of a run: no device worked in it"
        )
    return Columns.of(_events(timing), source="%%gpu_time")


def _events(timing: Timing) -> Iterator[Event]:
    for span in timing.spans:
        start_ns, end_ns = round(1e9 * span.start_s), round(1e9 * span.end_s)
        if span.kind in _HOST:
            lane, kind = Lane("", "thread main"), _HOST[span.kind]
        else:
            # "opencl queue 0", "cuda:0 stream 7": the device, and the queue on it.
            lane = Lane(span.lane.partition(" ")[0], span.lane)
            kind = span.kind if span.kind in DEVICE_KINDS else "device"
        yield Event(start_ns, max(start_ns, end_ns), lane, kind, span.name or span.kind)
