"""Columns as Chrome's trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, NO_LINK, Columns, Lane
from perfkit.timeline.kineto import OWN, kind_of
from perfkit.timeline.launches import launch_rows

if TYPE_CHECKING:
    from perfkit.records.timeline import TimelineReport

__all__ = ["chrome_json"]

CATEGORIES = {
    "kernel": ("kernel",),
    "collective": ("kernel", "collective_comm"),
    "h2d": ("gpu_memcpy",),
    "d2h": ("gpu_memcpy",),
    "d2d": ("gpu_memcpy",),
    "memset": ("gpu_memset",),
    "step": ("user_annotation",),
    "annotation": ("user_annotation",),
    "python": ("python_function",),
    "op": ("cpu_op",),
    "runtime": ("cuda_runtime",),
    "wait": ("cuda_runtime",),
    "compile": ("user_annotation", "cuda_runtime"),
    "host": ("overhead",),
    "device_mark": ("gpu_user_annotation",),
}
"""Kineto's categories. Some kinds it tells by the name as well; where the name does not say so, the
category is our own: "perfkit.wait".
"""
BESIDE = "Trace"
"""Kineto's category of what is no work: readers leave it out."""
_PROCESS = re.compile(r"process (-?\d+), (.+)", re.DOTALL)
_THREAD = re.compile(r"thread (-?\d+)\b")
_PLAIN = re.compile(r"0|-?[1-9]\d{0,14}")


class _Place(NamedTuple):
    """A lane as the format has it: process and thread, and what the device is called."""

    pid: int
    tid: int | str
    device: int | str | None


def chrome_json(columns: Columns, report: TimelineReport | None = None) -> bytes:
    """The trace as JSON: processes are devices and the host, threads are lanes, times are exact.

    Read again it gives the same columns. `report`: its gaps become a thread of each device, named
    by their causes.
    """
    places = _places(columns)
    lines = [
        *_metadata(columns, places),
        *_events(columns, places),
        *_arrows(columns, places),
        *([] if report is None else _gaps(report, columns, places)),
    ]
    head = f'{{"schemaVersion":1,"baseTimeNanoseconds":{columns.origin_ns}'
    return "".join((head, ',"traceEvents":[\n', ",\n".join(lines), "\n]}\n")).encode()


def _places(columns: Columns) -> list[_Place]:
    """By lane. A number that a name has is kept, since people know it; else the name stands."""
    hosts = [_PROCESS.match(lane.name) for lane in columns.lanes]
    taken = {int(found[1]) for found in hosts if found}
    devices = dict.fromkeys((*columns.devices(), *(lane.device for lane in columns.lanes)))
    devices.pop("", None)
    pids = dict(zip(devices, (n for n in count() if n not in taken), strict=False))
    pids[""] = next(n for n in count(10_000) if n not in taken)
    places: list[_Place] = []
    for lane, found in zip(columns.lanes, hosts, strict=True):
        pid, name = pids[lane.device], lane.name
        if found and not lane.device:
            pid, name = int(found[1]), found[2]
        tid = _tid(lane, name)
        # Two names may have the same number.
        tid = name if any((pid, tid) == place[:2] for place in places) else tid
        places.append(_Place(pid, tid, _device(lane.device)))
    return places


def _tid(lane: Lane, name: str) -> int | str:
    if lane.device:
        return _number(name.removeprefix("stream "))
    found = _THREAD.match(name)
    return _number(found[1]) if found else name


def _number(text: str) -> int | str:
    """The number that it is, if that is written so again."""
    return int(text) if _PLAIN.fullmatch(text) else text


def _device(name: str) -> int | str | None:
    if not name:
        return None
    number = _number(name.removeprefix("GPU "))
    return name if isinstance(number, str) or not name.startswith("GPU ") else number


def _metadata(columns: Columns, places: list[_Place]) -> Iterator[str]:
    named: set[int] = set()
    for order, (place, lane) in enumerate(zip(places, columns.lanes, strict=True)):
        if place.pid not in named:
            named.add(place.pid)
            process = lane.device or "host"
            yield _meta("process_name", place, name=process)
            yield _meta("process_sort_index", place, sort_index=place.pid)
        found = _PROCESS.match(lane.name)
        thread = found[2] if found and not lane.device else lane.name
        yield _meta("thread_name", place, name=thread)
        yield _meta("thread_sort_index", place, sort_index=order)


def _meta(what: str, place: _Place, **args: Any) -> str:
    return _json({"ph": "M", "name": what, "pid": place.pid, "tid": place.tid, "args": args})


def _events(columns: Columns, places: list[_Place]) -> Iterator[str]:
    names = [_json(name) for name in columns.names]
    heads = [f'"pid":{_json(place.pid)},"tid":{_json(place.tid)}' for place in places]
    devices = [f'"device":{_json(place.device)},"stream":{_json(place.tid)}' for place in places]
    details = [f'"detail":{_json(detail)}' for detail in columns.details]
    categories: dict[tuple[int, int], str] = {}
    on_device = {KINDS.index(kind) for kind in (*DEVICE_KINDS, "device_mark")}
    for start, end, lane, kind, name, nbytes, link, detail in zip(
        *(getattr(columns, column).tolist() for column in _COLUMNS), strict=True
    ):
        category = categories.get((kind, name))
        if category is None:
            category = _json(_category(KINDS[kind], columns.names[name]))
            categories[kind, name] = category
        args = [devices[lane]] if kind in on_device else []
        if link != NO_LINK:
            args.append(f'"correlation":{link}')
        if nbytes != NO_BYTES:
            args.append(f'"bytes":{nbytes}')
        if detail:
            args.append(details[detail])
        yield (
            f'{{"ph":"X","cat":{category},"name":{names[name]},{heads[lane]},"ts":{_us(start)},'
            f'"dur":{_us(end - start)},"args":{{{",".join(args)}}}}}'
        )


_COLUMNS = ("start_ns", "end_ns", "lane", "kind", "name", "nbytes", "link", "detail")


def _category(kind: str, name: str) -> str:
    known = (category for category in CATEGORIES.get(kind, ()) if kind_of(category, name) == kind)
    return next(known, f"{OWN}{kind}")


def _arrows(columns: Columns, places: list[_Place]) -> Iterator[str]:
    """From each launching call to its work."""
    import numpy as np

    work = columns.of_kind(*DEVICE_KINDS)
    calls = launch_rows(columns, work)
    known = calls >= 0
    heads = [f'"pid":{place.pid},"tid":{_json(place.tid)}' for place in places]
    for phase, rows in (
        ('"s"', calls[known]),
        ('"f","bp":"e"', np.flatnonzero(work)[known]),
    ):
        lanes, starts = columns.lane[rows].tolist(), columns.start_ns[rows].tolist()
        for number, (lane, start) in enumerate(zip(lanes, starts, strict=True)):
            yield (
                f'{{"ph":{phase},"cat":"ac2g","name":"ac2g","id":{number},{heads[lane]},'
                f'"ts":{_us(start)}}}'
            )


def _gaps(report: TimelineReport, columns: Columns, places: list[_Place]) -> Iterator[str]:
    """The gaps as a thread of their device."""
    for device in report.devices:
        lanes = (
            p for p, lane in zip(places, columns.lanes, strict=True) if lane.device == device.name
        )
        place = next(lanes, None)
        if place is None:
            continue
        place = place._replace(tid="idle")
        yield _meta("thread_name", place, name="idle: cause")
        yield _meta("thread_sort_index", place, sort_index=-1)
        for gap in sorted(device.gaps, key=lambda gap: gap.start_s):
            start, lasting = round(1e9 * gap.start_s), round(1e9 * gap.duration_s)
            args = {"host": gap.host, "before": gap.before, "after": gap.after, "step": gap.step}
            name = f"{gap.cause}: {gap.host}" if gap.host else gap.cause
            yield (
                f'{{"ph":"X","cat":"{BESIDE}","name":{_json(name)},"pid":{place.pid},"tid":"idle",'
                f'"ts":{_us(start)},"dur":{_us(lasting)},"args":{_json(args)}}}'
            )


def _us(ns: int) -> str:
    """Microseconds, to the nanosecond."""
    whole, part = divmod(ns, 1000)
    return f"{whole}.{part:03d}" if part else str(whole)


def _json(value: object) -> str:
    """As JSON without control characters that is valid UTF-8, whatever a name is made of."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode().replace("\x7f", "\\u007f")
