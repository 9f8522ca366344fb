"""Chrome's trace JSON, as PyTorch's profiler, JAX and many others write it.

The file is read in pieces and each piece is decoded by itself, so that a trace of gigabytes needs
memory for its columns alone. A piece ends between two events; that it does is proven by its
decoding, since a cut anywhere else leaves a bracket or a quote open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from perfkit.errors import UsageError
from perfkit.timeline import kineto, xla
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, NO_LINK, Columns, Lane
from perfkit.timeline.tidy import tidied
from perfkit.units import count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["read_chrome"]

MOST_PENDING = 256 * 2**20
"""An event, or what stands around the events, may be as long as this."""
WINDOWS, TRIES = (2**12, 2**18, 2**28), 3
"""Where the border between two events is looked for: so many bytes from the end, and how often."""
EXACT_US = 2.0**42
"""Above it a float of microseconds cannot hold nanoseconds: such times are read digit by digit."""
FARTHEST_US = 10 * 365 * 86400 * 1_000_000
"""Times farther than this from the middle of the trace are no times of this trace."""
MICROSECOND_NS = 1000
LARGEST = 2**62
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_HALF_LETTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
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
    tf_op: Id = None
    hlo_op: Id = None
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
        pending = reading.take(pending)
        pending += piece
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
        self._in_vain = 0
        self._exact = self._is_xla = False
        self._base_ns = 0
        self._base_us: int | None = None
        self._parts: dict[str, list[np.ndarray]] = {}
        self._names: dict[str, int] = {}
        self._details: dict[str, int] = {"": 0}
        self._lanes: dict[Any, int] = {}
        self._places: dict[tuple[Any, ...], int] = {}
        self._meanings: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._processes: dict[Id, str] = {}
        self._threads: dict[tuple[Id, Id], str] = {}
        self._devices: dict[Id, Id] = {}
        self._unplaced: list[_Event] = []
        self._halves: list[_Event] = []
        self._left_out: Counter[str] = Counter()

    # -- text to events ------------------------------------------------------------------------

    def begin(self, source: Iterable[bytes]) -> bytearray:
        """Read up to the first event; the list of events as far as it came with that piece."""
        text = b""
        for piece in source:
            text = (text + piece).lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] == b"[":
                self._is_list = True
                return bytearray(text)
            if text[:1] not in (b"", b"{") or len(text) > MOST_PENDING:
                break
            if found := _HEAD.search(text):
                self._take_rest(text[: found.start()] + b'"traceEvents":[]}')
                return bytearray(b"[" + text[found.end() :])
        if not text:
            raise UsageError(f"{self._where} is empty: record the trace again")
        raise self._is_no_trace()

    def take(self, text: bytearray) -> bytearray:
        """Decode the events of a list that is not closed, but the last, which may go on; the list
        that is left.
        """
        if len(text) < 2 * self._in_vain:
            return text
        for window in WINDOWS:
            begin = max(0, len(text) - window)
            borders = [match.start() for match in _BETWEEN.finditer(text, begin)][-TRIES:]
            for border in reversed(borders):
                comma = text.index(b",", border)
                text[comma : comma + 1] = b"]"
                events = self._events(memoryview(text)[: comma + 1])
                if events is not None:
                    self._add(events)
                    self._in_vain = 0
                    return bytearray(b"[") + text[comma + 1 :]
                text[comma : comma + 1] = b","
        # One long event: it is tried again when there is twice as much of it.
        self._in_vain = len(text)
        return text

    def end(self, text: bytearray) -> None:
        """Decode what is left, with what stands behind the events."""
        if self._is_list:
            # The format allows a list that is not closed, so that a program may end at any time.
            body = text.rstrip().rstrip(b",")
            closed = body.endswith(b"]") and body != b"["
            events = self._events(body if closed else body + b"]")
        else:
            events = self._take_rest(b'{"traceEvents":' + text)
        if events is None:
            is_whole = text.rstrip().endswith((b"}", b"]"))
            how = "is damaged, its JSON is not valid" if is_whole else "ends in the middle"
            raise UsageError(
                f"{self._where} {how}: something went wrong when it was written or copied; copy or "
                "record it again"
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
            cleaned = _cleaned(text)
            return None if cleaned == text else self._take_rest(cleaned)
        self._base_ns = int(document.baseTimeNanoseconds or 0) or self._base_ns
        return self._events(bytes(document.traceEvents))

    def _events(self, text: bytes | bytearray | memoryview) -> list[_Event] | None:
        """The events of a JSON list; None if it is none. Events that cannot be are left out."""
        try:
            if not self._exact:
                plain = _PLAIN.decode(text)
                if float not in set(map(type, map(_TIME, plain))) or not _is_late(plain):
                    return plain
                self._exact = True
            return _EXACT.decode(text)  # type: ignore[return-value]
        except msgspec.ValidationError:
            pass
        except msgspec.DecodeError:
            text = _cleaned(text)
        one = _LENIENT_EXACT if self._exact else _LENIENT
        events: list[_Event] = []
        try:
            singles = _SINGLE.decode(text)
        except msgspec.DecodeError:
            return None
        for single in singles:
            try:
                events.append(one.decode(single))
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
        phases = list(map(_PHASE, events))
        if not {"M", "B", "E"}.isdisjoint(phases):
            for event in events:
                self._keep(event)
        whole = list(compress(events, map("X".__eq__, phases)))
        places = list(map(self._places.get, map(_KEY, whole)))
        if None in places:
            places = [
                self._place(event, placing) if place is None else place
                for place, event in zip(places, whole, strict=True)
            ]
        rows = [event for event, place in zip(whole, places, strict=True) if place]
        if rows:
            self._add_rows(rows, [place for place in places if place])

    def _keep(self, event: _Event) -> None:
        match event.ph:
            case "M" if event.args is not None:
                if event.name == "process_name":
                    self._processes[event.pid] = str(event.args.name or "")
                elif event.name == "thread_name":
                    self._threads[event.pid, event.tid] = str(event.args.name or "").strip()
            case "B" | "E":
                self._halves.append(event)

    def _place(self, event: _Event, placing: bool) -> int:
        """The code of what the event's category, name and thread mean; 0 where it is left out, or
        cannot be told yet.
        """
        key = _KEY(event)
        if key in self._places:
            return self._places[key]
        found = self._meaning(event)
        if found is None:
            process = self._processes.get(event.pid)
            thread = self._threads.get((event.pid, event.tid))
            if not placing and (process is None or thread is None):
                self._unplaced.append(event)
                return 0
            found = self._meaning_in_xla(event, process or "", thread or "")
        lane, kind = found
        place = 0
        if kind:
            name = event.name if event.cat else xla.shown(event.name)
            place = len(self._meanings)
            lane_code = self._lanes.setdefault(lane, len(self._lanes))
            name_code = self._names.setdefault(name, len(self._names))
            self._meanings.append((lane_code, _CODES[kind], name_code))
        self._places[key] = place
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

    def _meaning_in_xla(self, event: _Event, process: str, thread: str) -> tuple[Any, str]:
        args = event.args or _NO_ARGS
        found = xla.classify(process, thread, event.name, str(args.hlo_op or ""))
        if found is None:
            return None, ""
        self._is_xla = True
        lane, kind = found
        if kind == "annotation" and args.step_num is not None:
            kind = "step"
        return (lane if lane.device else (False, event.pid, event.tid)), kind

    def _add_rows(self, rows: list[_Event], places: list[int]) -> None:
        import numpy as np

        start_ns, end_ns, good = self._times(rows)
        args = [row.args or _NO_ARGS for row in rows]
        columns = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "place": np.array(places, np.int32),
            "nbytes": _whole_numbers([a.bytes for a in args], NO_BYTES),
            "link": _whole_numbers(
                [a.correlation_id if a.correlation is None else a.correlation for a in args],
                NO_LINK,
            ),
            "detail": self._coded(args),
        }
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column[good])

    def _coded(self, args: list[_Args]) -> np.ndarray:
        import numpy as np

        if not any(any(map(get, args)) for get in _DETAILS):
            return np.zeros(len(args), np.int32)
        told = ([get(each) for get in _DETAILS] for each in args)
        words = [next((str(one) for one in each if one not in (None, "")), "") for each in told]
        codes = self._details
        return np.array([codes.setdefault(word, len(codes)) for word in words], np.int32)

    def _times(self, rows: list[_Event]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts and ends in ns since the base, and which of them can be."""
        import numpy as np

        written: list[Any] = [row.ts for row in rows]
        unit = 1 if self._exact else MICROSECOND_NS
        starts, dated = _numbers([_nanoseconds(t) for t in written] if self._exact else written)
        lasting, timed = _numbers([row.dur for row in rows])
        if self._base_us is None and dated.any():
            self._base_us = int(np.median(starts[dated])) * unit // MICROSECOND_NS
        since = starts - (self._base_us or 0) * MICROSECOND_NS // unit
        dated &= np.abs(since) < FARTHEST_US * MICROSECOND_NS // unit
        timed &= (lasting >= 0) & (lasting < FARTHEST_US)
        good: np.ndarray = dated & timed
        self._left_out["without a time that can be"] += int((~dated).sum())
        self._left_out["without a duration that can be"] += int((dated & ~timed).sum())
        since[~good] = lasting[~good] = 0
        start_ns = _whole_ns(since, unit)
        return start_ns, start_ns + _whole_ns(lasting, MICROSECOND_NS), good

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
        lane, kind, name = np.array(self._meanings, np.int32)[columns.pop("place")].T
        lanes = self._named_lanes()
        distinct = {lane: code for code, lane in enumerate(dict.fromkeys(lanes))}
        found = Columns(
            **columns,
            lane=np.array([distinct[own] for own in lanes], np.int32)[lane],
            kind=kind.astype(np.int8),
            name=name,
            lanes=tuple(distinct),
            names=tuple(self._names),
            details=tuple(self._details),
            source="Chrome JSON",
            origin_ns=self._base_ns + (self._base_us or 0) * MICROSECOND_NS,
            notes=[f"{count(n, 'event')} {why} left out" for why, n in self._left_out.items() if n],
        )
        return tidied(found) if self._is_xla else found

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
            own_name = isinstance(tid, str) and not tid.isdigit()
            return Lane(f"{word}{device}", str(tid) if own_name else f"stream {tid}")
        name = (
            thread if str(tid) in thread else f"thread {tid}" + (f" ({thread})" if thread else "")
        )
        return Lane("", f"process {pid}, {name}" if several else name)


_PHASE, _TIME = attrgetter("ph"), attrgetter("ts")
_KEY = attrgetter("cat", "name", "pid", "tid")
_NO_ARGS = _Args()
_DETAILS = tuple(map(attrgetter, ("step_num", "tf_op", "name", "detail")))


def _cleaned(text: bytes | bytearray | memoryview) -> bytes:
    """What writers put into JSON that JSON does not allow, made into what it does: NaN, and letters
    that are cut in the middle.
    """
    letters = bytes(text).decode(errors="replace").encode()
    return _HALF_LETTER.sub(rb"\\ufffd", _NOT_JSON.sub(b"null", letters))


def _is_late(events: list[_Event]) -> bool:
    return any(type(event.ts) is float and event.ts > EXACT_US for event in events)


_CODES = {kind: code for code, kind in enumerate(KINDS)}
_ON_DEVICE = {*DEVICE_KINDS, "device_mark"}


def _numbers(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as an array, and which of them are any; the others are 0."""
    import numpy as np

    array = np.array(values)
    if array.dtype.kind not in "if":
        array = np.array(
            [v if isinstance(v, int | float) and abs(v) < LARGEST else 0 for v in values]
        )
        return array, np.array([isinstance(v, int | float) and abs(v) < LARGEST for v in values])
    return array, np.isfinite(array)


def _whole_ns(values: np.ndarray, unit: int) -> np.ndarray:
    import numpy as np

    if values.dtype.kind == "i":
        return values.astype(np.int64) * unit
    rounded: np.ndarray = np.rint(values * unit).astype(np.int64)
    return rounded


def _whole_numbers(values: list[Id], otherwise: int) -> np.ndarray:
    """Whole numbers, also those written as text; `otherwise` for all else."""
    import numpy as np

    if set(map(type, values)) <= {int, type(None)}:
        known = [otherwise if value is None else value for value in values]
        if all(-LARGEST < value < LARGEST for value in (min(known), max(known))):  # type: ignore
            return np.array(known, np.int64)
    return np.array([_whole(value, otherwise) for value in values], np.int64)


def _whole(value: Id, otherwise: int) -> int:
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < LARGEST else otherwise


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
