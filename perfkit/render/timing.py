"""Views of a Timing."""

from __future__ import annotations

from html import escape
from statistics import quantiles
from typing import Any

from perfkit import units
from perfkit.records.timing import Part, Timing, Transfer
from perfkit.render import svg, table
from perfkit.render.table import Row
from perfkit.render.theme import MASK, STYLE, is_stable

__all__ = ["MIME", "bundle", "html", "text"]

MIME = "application/vnd.perfkit.timing.v1+json"
_DERIVED = (
    "first_s",
    "naive_s",
    "host_s",
    "wall_s",
    "device_s",
    "device_busy_s",
    "idle_s",
    "verdict",
)
WORTH_A_ROW = 2**20
DIRECTIONS = {"h2d": "to device", "d2h": "to host", "d2d": "on device"}


def bundle(timing: Timing) -> dict[str, Any]:
    """All views by MIME type. The JSON has the derived numbers, not the samples."""
    summary: dict[str, Any] = {"record": "Timing", "backends": list(timing.backends)}
    if not is_stable():
        summary |= {name: getattr(timing, name) for name in _DERIVED}
    return {"text/plain": text(timing), "text/html": html(timing), MIME: summary}


def text(timing: Timing) -> str:
    """Aligned text, one quantity a line."""
    head = f"{timing.label}: {headline(timing)}"
    sentences = [f"  {line}" for line in (verdict_sentence(timing), *_remarks(timing)) if line]
    return "\n".join([head, table.as_text(_rows(timing)), *sentences])


def html(timing: Timing) -> str:
    """The same with a picture of the last run where a device worked."""
    number, _, rest = headline(timing).partition(" on a stopwatch ")
    shown = escape(number)
    if rest:
        shown = f"<s>{shown}</s> on a stopwatch {escape(rest)}"
    verdict, colon, why = verdict_sentence(timing).partition(":")
    picture = ""
    if len({span.lane for span in timing.spans}) > 1 and not is_stable():
        picture = svg.lanes(timing.spans, "What host and device did in the last run")
    remarks = "".join(f"<div>{escape(line)}</div>" for line in _remarks(timing))
    return (
        f'<div style="{STYLE["box"]}"><div style="{STYLE["head"]}">{escape(timing.label)}: '
        f"<strong>{shown}</strong></div>"
        f"<div><strong>{escape(verdict)}</strong>{escape(colon + why)}</div>"
        f"{table.as_html(_rows(timing))}{picture}{remarks}</div>"
    )


def headline(timing: Timing) -> str:
    """The one number, and how it was taken."""
    if not timing.samples:
        return f"no complete run: {timing.stopped}"
    if not timing.synchronized:
        return f"{_seconds(timing.naive_s)} on a stopwatch that waits for nobody"
    if timing.repeat == 1:
        return f"{_seconds(timing.wall_s)} wall time, first call"
    return f"{_seconds(timing.wall_s)} wall time, median of {_samples(timing)}"


def _samples(timing: Timing) -> str:
    if is_stable():
        return f"{MASK} samples"
    each = f" of {units.count(timing.number, 'run')} each" if timing.number > 1 else ""
    return f"{units.count(len(timing.used), 'sample')}{each}"


def _seconds(value_s: float | None) -> str:
    return MASK if is_stable() and value_s is not None else units.seconds(value_s)


def _rows(timing: Timing) -> list[Row]:
    if not timing.samples:
        until = "until it ended" if "first call" in timing.stopped else "complete"
        return [Row("first call", _seconds(timing.first_s), until)]
    if not timing.synchronized:
        return [Row("naive", _seconds(timing.naive_s), "the time to hand the work over")]
    rows = [Row("wall", _seconds(timing.wall_s), _spread(timing))]
    if timing.repeat != 1:
        rows.append(Row("first call", _seconds(timing.first_s), "kept apart, in no average"))
    if timing.compile_s:
        rows.append(Row("compile", _seconds(timing.compile_s), "part of the first call"))
    if timing.backends == ("host",):
        rows.append(Row("device", units.NOT_AVAILABLE, "nothing was given to a device"))
    else:
        rows += _device_rows(timing)
    return [*rows, *_memory_rows(timing)]


def _spread(timing: Timing) -> str:
    meaning = "from the start of the body until the device was empty"
    values = [sample.wall_s for sample in timing.used if sample.wall_s is not None]
    if timing.backends == ("host",):
        meaning = "from the start to the end of the body"
    if len(values) < 4 or is_stable():
        return meaning
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (
        f"quartiles {units.seconds(low)} to {units.seconds(high)}, "
        f"fastest {units.seconds(min(values))}"
    )


def _device_rows(timing: Timing) -> list[Row]:
    rows = [
        Row("naive", _seconds(timing.naive_s), "what a stopwatch around the body says"),
        Row("host", _seconds(timing.host_s), _host_note(timing)),
    ]
    if len(timing.parts) > 1:
        rows += [_part_row(part) for part in timing.parts]
    if timing.device_s is None:
        who = "one of them" if len(timing.parts) > 1 else "this runtime"
        unknown = f"{who} does not tell when its work starts and ends"
        device = Row("device", units.NOT_AVAILABLE, unknown)
        return [*rows, device, *_replay_row(timing), *_transfer_rows(timing)]
    return [
        *rows,
        Row("device", _seconds(timing.device_s), "first start to last end of its work"),
        Row("busy", _seconds(timing.device_busy_s), f"{_busy(timing)} of the wall time"),
        Row("idle", _seconds(timing.idle_s), "device waits between pieces of work"),
        *_replay_row(timing),
        *_transfer_rows(timing),
    ]


def _part_row(part: Part) -> Row:
    """One of several runtimes that worked in the same cell."""
    if part.device_s is None:
        return Row(part.backend, units.NOT_AVAILABLE, "worked, and does not tell when")
    busy = "" if part.device_busy_s is None else f", busy {_seconds(part.device_busy_s)}"
    return Row(part.backend, _seconds(part.device_s), f"first start to last end{busy}")


def _replay_row(timing: Timing) -> list[Row]:
    if timing.replay_s is None:
        return []
    return [Row("graph", _seconds(timing.replay_s), "wall time of one replay of the captured work")]


def _memory_rows(timing: Timing) -> list[Row]:
    """Memory of the first call, where it is worth a row: a mebibyte or more."""
    kept = f", by {', '.join(map(_spoken, timing.kept))}" if timing.kept else ""
    found = (
        ("host peak", timing.host_peak_bytes, "the process grew so far in the first call"),
        ("device peak", timing.device_peak_bytes, "the highest use of device memory"),
        ("retained", timing.device_retained_bytes, f"kept on the device{kept}"),
    )
    return [
        Row(name, MASK if is_stable() else units.capacity(nbytes), note)
        for name, nbytes, note in found
        if nbytes is not None and abs(nbytes) >= WORTH_A_ROW
    ]


def _spoken(name: str) -> str:
    return "the cell's value" if name.startswith("__perfkit") else name


def _transfer_rows(timing: Timing) -> list[Row]:
    return [_transfer_row(copy) for copy in timing.transfers]


def _host_note(timing: Timing) -> str:
    if is_stable():
        return "naive less the waiting inside"
    launches = "" if timing.launches is None else f", {units.count(timing.launches, 'launch')}"
    if timing.host_s is None or timing.naive_s is None:
        return f"this runtime does not show where it waits{launches}"
    waited_s = timing.naive_s - timing.host_s
    waiting = (
        f"naive less {units.seconds(waited_s)} of waiting" if waited_s else "no waiting inside"
    )
    return f"{waiting}{launches}"


def _transfer_row(copy: Transfer) -> Row:
    note = MASK
    if not is_stable():
        size = units.capacity(copy.nbytes) if copy.nbytes else "bytes n/a"
        rate = units.bandwidth(copy.bandwidth_Bps)
        memory = f", {copy.memory}" if copy.memory else ""
        note = f"{units.count(copy.count, 'copy')}{memory}, {size}, {rate}"
    return Row(DIRECTIONS[copy.direction], _seconds(copy.seconds), note)


def _busy(timing: Timing) -> str:
    if is_stable():
        return MASK
    return units.share(timing.busy_share)


def _remarks(timing: Timing) -> list[str]:
    """Notes, what makes the figures less sure, and what perfkit itself cost."""
    if is_stable():
        return [f"backends: {', '.join(timing.backends)}"]
    remarks = [f"note: {note}" for note in timing.notes]
    if timing.traced and timing.traced.device_s is not None:
        remarks.append("note: device times come from one run more, under the runtime's profiler")
    if timing.recompiles:
        times = units.count(timing.recompiles, "time")
        remarks.append(f"suspect: compiled {times} while sampling; do shapes or constants change?")
    if timing.synchronized:
        remarks += [f"{timing.quality.status}, {reason}" for reason in timing.quality.reasons]
    if timing.drain_s is not None and timing.wall_s and timing.synchronized:
        cost = units.seconds(timing.drain_s)
        if timing.backends == ("host",):
            remarks.append(f"draining idle runtimes costs {cost}, not counted")
        elif timing.drain_s > 0.05 * timing.wall_s:
            remarks.append(f"of the wall time {cost} is the cost of the drain itself")
    return remarks


def verdict_sentence(timing: Timing) -> str:
    """Who sets the pace, in plain words with the figures that say so."""
    if is_stable():
        return ""
    if not timing.synchronized:
        return _pending_sentence(timing)
    busy = f"the device was busy {_busy(timing)} of the wall time"
    match timing.verdict:
        case "synchronous":
            return (
                "synchronous: the work was done when the body returned; a stopwatch is right here"
            )
        case "launch":
            launches = timing.launches or 1
            each = units.seconds((timing.host_s or 0.0) / launches)
            return f"launch-bound: {launches:,} launches at {each} of host time each; {busy}"
        case "device":
            return f"device-bound: {busy}; the host needed {units.seconds(timing.host_s)}"
        case "transfer":
            return f"transfer-bound: {busy}, and copied for at least half of that"
        case "host":
            return f"host-bound: {busy}; it waited for the host"
    if not timing.samples:
        return ""
    if timing.device_busy_s is None:
        return "no verdict: when the device worked is not known"
    return f"no verdict: {busy}; neither side sets the pace alone"


def _pending_sentence(timing: Timing) -> str:
    if timing.pending:
        left = units.count(timing.pending, "command")
        return f"when this stopwatch stopped, {left} had not ended: run it without --no-sync"
    return "run it without --no-sync for the truth"
