"""Views of an IoTime."""

from __future__ import annotations

from html import escape
from typing import Any

from perfkit import units
from perfkit.records.tiers import IoTime
from perfkit.render import table
from perfkit.render.table import Row
from perfkit.render.theme import MASK, STYLE, is_stable

__all__ = ["MIME", "bundle", "html", "sentence", "text"]

MIME = "application/vnd.perfkit.io.v1+json"


def bundle(record: IoTime) -> dict[str, Any]:
    """All views by MIME type."""
    summary: dict[str, Any] = {"record": "IoTime", "state": record.state}
    if not is_stable():
        summary |= {
            "read_requested_bytes": record.read_requested_bytes,
            "read_device_bytes": record.read_device_bytes,
            "wall_s": record.wall_s,
        }
    return {"text/plain": text(record), "text/html": html(record), MIME: summary}


def text(record: IoTime) -> str:
    """Aligned text, one quantity a line."""
    head = f"{record.label}: {sentence(record)}"
    return "\n".join([head, table.as_text(_rows(record)), *(f"  {r}" for r in _remarks(record))])


def html(record: IoTime) -> str:
    """The same as a table."""
    remarks = "".join(f"<div>{escape(line)}</div>" for line in _remarks(record))
    return (
        f'<div style="{STYLE["box"]}"><div style="{STYLE["head"]}">{escape(record.label)}: '
        f"<strong>{escape(sentence(record))}</strong></div>"
        f"{table.as_html(_rows(record))}{remarks}</div>"
    )


def sentence(record: IoTime) -> str:
    """Where the bytes came from, in plain words."""
    if is_stable():
        return MASK
    if record.quality.status == "refused":
        return "what it read and wrote cannot be told here"
    cached = record.cached_share
    match record.state:
        case "none":
            return _written(record) or "it read and wrote next to nothing"
        case "page cache" if cached is not None:
            return f"{units.share(cached)} of these bytes came from memory: this is not your disk"
        case "mixed" if cached is not None:
            return (
                f"{units.share(cached)} of these bytes came from memory, the rest from a device: "
                "this speed is neither's"
            )
        case "device":
            return "these bytes came from a device"
    return "where these bytes came from is not known"


def _written(record: IoTime) -> str:
    if (record.write_requested_bytes or 0) < 2**16:
        return ""
    return "it wrote, and read next to nothing"


def _rows(record: IoTime) -> list[Row]:
    size = _masked(units.capacity)
    calls, writes = (
        "asked for" + ("" if count is None else f", in {units.count(count, 'call')}")
        for count in (record.read_calls, record.write_calls)
    )
    rows = [
        Row("wall", _masked(units.seconds)(record.wall_s), "from the start to the end of the body"),
        Row("read", size(record.read_requested_bytes), _note(calls)),
        Row("from device", size(record.read_device_bytes), "what the block layer read for it"),
        Row(
            "read rate", _masked(units.bandwidth)(record.read_Bps), "asked for, over the wall time"
        ),
    ]
    if is_stable() or (record.write_requested_bytes or 0) >= 2**16:
        note = "handed to the page cache to be written"
        rows += [
            Row("written", size(record.write_requested_bytes), _note(writes)),
            Row("to device", size(record.write_device_bytes), note),
        ]
    if record.mapped_read_bytes and not is_stable():
        note = "read ahead, or through memory maps"
        rows.insert(3, Row("beyond that", size(record.mapped_read_bytes), note))
    if record.major_faults and not is_stable():
        note = _note(units.count(record.major_faults, "page") + " read when they were touched")
        rows.append(Row("major faults", MASK if is_stable() else f"{record.major_faults:,}", note))
    return rows


def _masked(say: Any) -> Any:
    return (lambda value: units.NOT_AVAILABLE if value is None else MASK) if is_stable() else say


def _note(words: str) -> str:
    return MASK if is_stable() else words


def _remarks(record: IoTime) -> list[str]:
    if is_stable():
        return []
    remarks = [f"note: {note}" for note in record.notes]
    if (record.write_device_bytes or 0) >= 2**16:
        remarks.append(
            "written bytes are on the device for certain only after os.fsync: time that as well"
        )
    return [*remarks, *(f"{record.quality.status}, {why}" for why in record.quality.reasons)]
