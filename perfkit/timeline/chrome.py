"""Chrome's trace JSON, as PyTorch's profiler, JAX and many others write it.

The file is read in pieces and each piece is decoded by itself, so that a trace of gigabytes needs
memory for its columns alone. A piece ends between two events; that it does is proven by its
decoding, since a cut anywhere else leaves a bracket or a quote open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from perfkit.errors import UsageError
from perfkit.timeline import kineto, xla
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, NO_LINK, Columns, Lane
from perfkit.units import count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["read_chrome"]

MOST_PENDING = 256 * 2**20
"""An event, or what stands around the events, may be as long as this."""
EXACT_US = 2.0**42
"""Above it a float of microseconds cannot hold nanoseconds: such times are read digit by digit."""
FARTHEST_US = 10 * 365 * 86400 * 1_000_000
"""Times farther than this from the middle of the trace are no times of this trace."""
MICROSECOND_NS = 1000
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_NOT_JSON = re.compile(rb"(?<=[\s:,\[])-?(?:NaN|nan|Infinity|inf)(?=[\s,}\]])")

Number = int | float | None
Id = int | float | str | None


class _Args(msgspec.Struct, gc=False):
    correlation: Id = None
    correlation_id: Id = None
    device: Id = None
    stream: Id = None
    bytes: Id = None
    step_num: Id = None
    name: Id = None
    labels: Id = None
    tf_op: Id = None
    shapes: Id = None
    detail: Id = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: Number = None
    dur: Number = None
    pid: Id = None
    tid: Id = None
    args: _Args | None = None


class _ExactEvent(_Event, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]


class _Document(msgspec.Struct):
    """The trace as an object. Events are decoded apart, from their text."""

    traceEvents: msgspec.Raw
    baseTimeNanoseconds: int | float | None = 0


_DOCUMENT = msgspec.json.Decoder(_Document)
_PLAIN = msgspec.json.Decoder(list[_Event])
_EXACT = msgspec.json.Decoder(list[_ExactEvent])
_SINGLE = msgspec.json.Decoder(list[msgspec.Raw])
_LENIENT = msgspec.json.Decoder(_Event, strict=False)
_LENIENT_EXACT = msgspec.json.Decoder(_ExactEvent, strict=False)


def read_chrome(pieces: Iterable[bytes], where: str = "") -> Columns:
    """The columns of a trace whose text comes in `pieces`.

    Raises UsageError, naming `where`, if it is not a trace or is cut off.
    """
    source = iter(pieces)
    reading = _Reading(where)
    pending = reading.begin(source)
    for piece in source:
        pending = reading.take(pending) + piece
        if len(pending) > MOST_PENDING:
            raise UsageError(
                f"{where}: one event of more than {MOST_PENDING >> 20} MiB: this is not a trace"
            )
    reading.end(pending)
    return reading.columns()


class _Reading:
    """A trace under way: columns so far, and what later events need to be understood."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._is_list = False
        self._exact = False
        self._base_ns = 0
        self._base_us: int | None = None
        self._parts: dict[str, list[np.ndarray]] = {}
        self._names: dict[str, int] = {}
        self._details: dict[str, int] = {"": 0}
        self._lanes: dict[Any, int] = {}
        self._places: dict[tuple[Any, ...], tuple[int, int] | tuple[()]] = {}
        self._processes: dict[Id, str] = {}
        self._threads: dict[tuple[Id, Id], str] = {}
        self._devices: dict[Id, Id] = {}
        self._unplaced: list[_Event] = []
        self._halves: list[_Event] = []
        self._left_out: Counter[str] = Counter()

    # -- text to events ------------------------------------------------------------------------

    def begin(self, source: Iterable[bytes]) -> bytes:
        """Read up to the first event; the text behind that point. Takes pieces from `source`."""
        text = b""
        for piece in source:
            text = (text + piece).lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] == b"[":
                self._is_list = True
                return text[1:]
            if text[:1] not in (b"", b"{") or len(text) > MOST_PENDING:
                break
            if found := _HEAD.search(text):
                self._take_rest(text[: found.start()] + b'"traceEvents":[]}')
                return text[found.end() :]
        if not text:
            raise UsageError(f"{self._where} is empty: record the trace again")
        raise self._is_no_trace()

    def take(self, text: bytes) -> bytes:
        """Decode the events of `text` but the last, which may go on; the text that is left."""
        window = 1 << 14
        while window < 2 * len(text):
            for cut in [m.start() for m in _BETWEEN.finditer(text, max(0, len(text) - window))][
                ::-1
            ]:
                events = self._events(b"[" + text[: cut + 1] + b"]")
                if events is not None:
                    self._add(events)
                    return text[cut + 1 :].lstrip().removeprefix(b",")
                if window > 1 << 14:
                    return text
            window *= 16
        return text

    def end(self, text: bytes) -> None:
        """Decode what is left, with what stands behind the events."""
        if self._is_list:
            # The format allows a list that is not closed, so that a program may end at any time.
            body = text.rstrip().rstrip(b",")
            events = self._events(b"[" + body + (b"" if body.endswith(b"]") else b"]"))
        else:
            events = self._take_rest(b'{"traceEvents":[' + text)
        if events is None:
            raise UsageError(
                f"{self._where} ends in the middle: it was cut off when it was written or copied; "
                "copy or record it again"
            )
        self._add(events)
        self._add(self._paired())
        self._add(self._unplaced, placing=True)

    def _take_rest(self, text: bytes) -> list[_Event] | None:
        """Keep what the object says beside its events, which are returned; None: cut off."""
        try:
            document = _DOCUMENT.decode(text)
        except msgspec.ValidationError:
            raise self._is_no_trace() from None
        except msgspec.DecodeError:
            cleaned = _NOT_JSON.sub(b"null", text)
            return None if cleaned == text else self._take_rest(cleaned)
        self._base_ns = int(document.baseTimeNanoseconds or 0) or self._base_ns
        return self._events(bytes(document.traceEvents))

    def _events(self, text: bytes) -> list[_Event] | None:
        """The events of a JSON list; None if it is none. Events that cannot be are left out."""
        try:
            if not self._exact:
                plain = _PLAIN.decode(text)
                if not any(type(event.ts) is float and event.ts > EXACT_US for event in plain):
                    return plain
                self._exact = True
            return _EXACT.decode(text)  # type: ignore[return-value]
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError:
            if not _NOT_JSON.search(text):
                return None
            text = _NOT_JSON.sub(b"null", text)
        one = _LENIENT_EXACT if self._exact else _LENIENT
        events: list[_Event] = []
        try:
            singles = _SINGLE.decode(text)
        except msgspec.DecodeError:
            return None
        for single in singles:
            try:
                events.append(one.decode(single))  # type: ignore[arg-type]
            except msgspec.DecodeError:
                self._left_out["that are no events of this format"] += 1
        return events

    def _is_no_trace(self) -> UsageError:
        return UsageError(
            f"{self._where} is not a trace: wanted is the JSON of PyTorch's or JAX's profiler "
            '({"traceEvents": [...]}) or an .xplane.pb'
        )

    # -- events to columns ---------------------------------------------------------------------

    def _add(self, events: list[_Event], placing: bool = False) -> None:
        """Add a batch. `placing`: names of processes are known by now, as far as they ever are."""
        rows, places, known = [], [], self._places.get
        for event in events:
            if event.ph != "X":
                self._keep(event)
                continue
            place = known((event.cat, event.name, event.pid, event.tid))
            if place is None:
                place = self._place(event, placing)
            if place:
                rows.append(event)
                places.append(place)
        if rows:
            self._add_rows(rows, places)

    def _keep(self, event: _Event) -> None:
        match event.ph:
            case "M" if event.args is not None:
                if event.name == "process_name":
                    self._processes[event.pid] = str(event.args.name or "")
                elif event.name == "thread_name":
                    self._threads[event.pid, event.tid] = str(event.args.name or "").strip()
            case "B" | "E":
                self._halves.append(event)

    def _place(self, event: _Event, placing: bool) -> tuple[int, int] | tuple[()]:
        """Codes of the lane and the kind; () where it is left out or cannot be told yet."""
        found = self._meaning(event)
        if found is None:
            process = self._processes.get(event.pid)
            thread = self._threads.get((event.pid, event.tid))
            if not placing and (process is None or thread is None):
                self._unplaced.append(event)
                return ()
            found = xla.classify(process or "", thread or "", event.name) or (None, "")
        lane, kind = found
        place = (self._lanes.setdefault(lane, len(self._lanes)), _CODES[kind]) if kind else ()
        self._places[event.cat, event.name, event.pid, event.tid] = place
        return place

    def _meaning(self, event: _Event) -> tuple[Any, str] | None:
        """What stands for the lane until all threads have names, and the kind. None: the category
        says nothing, but the names of process and thread may.
        """
        pid, tid = event.pid, event.tid
        if event.cat:
            on_stream = event.args is not None and event.args.stream is not None
            kind = kineto.kind_of(event.cat, event.name)
            if kind is None:
                kind = "device" if on_stream else "host"
        else:
            # PyTorch's profiler before Kineto gave no categories, but telling names of processes.
            kind = {"CUDA functions": "kernel", "CPU functions": "op"}.get(str(pid))
        if kind is None:
            return None
        on_device = kind in _ON_DEVICE
        if on_device and pid not in self._devices:
            device = event.args.device if event.args else None
            self._devices[pid] = pid if device is None else device
        return (on_device, pid, tid), kind

    def _add_rows(self, rows: list[_Event], places: list[tuple[int, int]]) -> None:
        import numpy as np

        start_ns, end_ns, good = self._times(rows)
        names, details = self._names, self._details
        args = [row.args for row in rows]
        columns = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "lane": np.array([lane for lane, _ in places], np.int32),
            "kind": np.array([kind for _, kind in places], np.int8),
            "name": np.array([names.setdefault(r.name, len(names)) for r in rows], np.int32),
            "nbytes": np.array(
                [
                    NO_BYTES if a is None or a.bytes is None else _whole(a.bytes, NO_BYTES)
                    for a in args
                ],
                np.int64,
            ),
            "link": np.array([NO_LINK if a is None else _link(a) for a in args], np.int64),
            "detail": np.array(
                [0 if a is None else details.setdefault(_detail(a), len(details)) for a in args],
                np.int32,
            ),
        }
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column[good])

    def _times(self, rows: list[_Event]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts and ends in ns since the base, and which of them can be."""
        import numpy as np

        durations = [row.dur for row in rows]
        starts: list[Any] = [row.ts for row in rows]
        if self._exact:
            starts = [_nanoseconds(raw) for raw in starts]
        unit = 1 if self._exact else MICROSECOND_NS
        known = [start for start in starts if start is not None]
        if self._base_us is None and known:
            self._base_us = int(sorted(known)[len(known) // 2]) * unit // MICROSECOND_NS
        base = (self._base_us or 0) * MICROSECOND_NS // unit
        far = FARTHEST_US * MICROSECOND_NS // unit
        near = [start is not None and -far < start - base < far for start in starts]
        dated = np.array(near, dtype=bool)
        timed = np.array([d is not None and 0 <= d < FARTHEST_US for d in durations], dtype=bool)
        good = dated & timed
        self._left_out["without a time that can be"] += int((~dated).sum())
        self._left_out["without a duration that can be"] += int((dated & ~timed).sum())
        since = [start - base if ok else 0 for start, ok in zip(starts, near, strict=True)]
        lasting = [d if ok else 0 for d, ok in zip(durations, timed, strict=True)]
        start_ns = np.rint(np.array(since) * unit).astype(np.int64)
        return start_ns, start_ns + np.rint(np.array(lasting) * 1000.0).astype(np.int64), good

    def _paired(self) -> list[_Event]:
        """Begin and end events as whole ones; what was never ended is left out."""
        halves, self._halves = self._halves, []
        open_: dict[tuple[Id, Id], list[_Event]] = {}
        whole = []
        for event in halves:
            stack = open_.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                stack.append(event)
            elif stack:
                begun = stack.pop()
                begun.ph, begun.dur = "X", _microseconds(begun.ts, event.ts)
                whole.append(begun)
            else:
                self._left_out["that end without a beginning"] += 1
        self._left_out["that never end"] += sum(map(len, open_.values()))
        return whole

    # -- the result ----------------------------------------------------------------------------

    def columns(self) -> Columns:
        """All of it. Raises UsageError where no event was found."""
        import numpy as np

        if not self._parts:
            raise UsageError(
                f"{self._where} holds no events: was the profiler on while the work ran?"
            )
        columns = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        lanes = self._named_lanes()
        distinct = {lane: code for code, lane in enumerate(dict.fromkeys(lanes))}
        columns["lane"] = np.array([distinct[lane] for lane in lanes], np.int32)[columns["lane"]]
        return Columns(
            **columns,
            lanes=tuple(distinct),
            names=tuple(self._names),
            details=tuple(self._details),
            source="Chrome JSON",
            origin_ns=self._base_ns + (self._base_us or 0) * MICROSECOND_NS,
            notes=[f"{count(n, 'event')} {why} left out" for why, n in self._left_out.items() if n],
        )

    def _named_lanes(self) -> list[Lane]:
        processes = {key[1] for key in self._lanes if key[0] is False}
        return [
            key if isinstance(key, Lane) else self._named_lane(key, several=len(processes) > 1)
            for key in self._lanes
        ]

    def _named_lane(self, key: tuple[bool, Id, Id], several: bool) -> Lane:
        on_device, pid, tid = key
        thread = self._threads.get((pid, tid), "")
        if on_device:
            device = self._devices[pid]
            word = "" if isinstance(device, str) and not device.isdigit() else "GPU "
            return Lane(f"{word}{device}", f"stream {tid}")
        name = (
            thread if str(tid) in thread else f"thread {tid}" + (f" ({thread})" if thread else "")
        )
        return Lane("", f"process {pid}, {name}" if several else name)


_CODES = {kind: code for code, kind in enumerate(KINDS)}
_ON_DEVICE = {*DEVICE_KINDS, "device_mark"}


def _link(args: _Args) -> int:
    given = args.correlation if args.correlation is not None else args.correlation_id
    return NO_LINK if given is None else _whole(given, NO_LINK)


def _whole(value: Id, otherwise: int) -> int:
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < 2**63 else otherwise


def _detail(args: _Args) -> str:
    for value in (args.step_num, args.shapes, args.tf_op, args.name, args.detail):
        if value is not None:
            return str(value)
    return ""


def _nanoseconds(raw: Any) -> int | None:
    """Microseconds as they are written, to the nanosecond: 1712195495519689.047."""
    text = bytes(raw).strip(b'"')
    whole, _, part = text.partition(b".")
    try:
        if b"e" in text or b"E" in text:
            return round(float(text) * 1000)
        value = int(whole) * 1000
        fraction = int(part[:3].ljust(3, b"0")) if part else 0
        return value - fraction if whole[:1] == b"-" else value + fraction
    except (ValueError, OverflowError):
        return None


def _microseconds(begin: Any, end: Any) -> float | None:
    if isinstance(begin, msgspec.Raw):
        begin, end = _nanoseconds(begin), _nanoseconds(end)
        return None if begin is None or end is None else (end - begin) / 1000
    return None if begin is None or end is None else end - begin
