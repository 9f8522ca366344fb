"""List the ledger: named records, predictions and answers, oldest first."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from perfkit import ledger, units
from perfkit.errors import UsageError
from perfkit.records.base import Record
from perfkit.records.doctor import Diagnosis
from perfkit.records.lesson import Answer, Prediction
from perfkit.records.lines import LineProfile
from perfkit.records.tiers import IoTime, TierAnswer, TierTable
from perfkit.records.timeline import TimelineReport
from perfkit.records.timing import Timing
from perfkit.render.table import Row, as_text

__all__ = ["HELP", "add_arguments", "run"]

HELP = "list the measurements, predictions and answers that were kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="as JSON, with the whole records")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """The ledger of this folder, or of PERFKIT_RESULTS, as a table or as one JSON array."""
    if arguments.further:
        raise UsageError("perfkit results takes nothing behind --")
    entries = list(ledger.entries())
    if arguments.json:
        yield msgspec.json.encode([_plain(entry) for entry in entries]).decode()
    elif entries:
        yield as_text([_row(entry) for entry in entries], indent="")
    else:
        yield (
            f"nothing is kept in {ledger.path()}: go to the folder of your notebooks, "
            "or set PERFKIT_RESULTS"
        )


def _row(entry: ledger.Entry) -> Row:
    note = f"{_local_time(entry.at)}  {_kind(entry)}"
    return Row(*(_one_line(text) for text in (entry.name, _headline(entry), note)))


def _plain(entry: ledger.Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "at": entry.at,
        "kind": _kind(entry),
        "headline": _headline(entry),
        "record": entry.record,
    }


def _kind(entry: ledger.Entry) -> str:
    record = msgspec.json.decode(entry.record)
    return str(record.get("record", "?")) if isinstance(record, dict) else "?"


def _headline(entry: ledger.Entry) -> str:
    """The one number; n/a for a record of a kind or a version that is not known here."""
    kind, say = _HEADLINES.get(_kind(entry), (Record, None))
    if say is None:
        return units.NOT_AVAILABLE
    try:
        return say(kind.from_json(bytes(entry.record)))
    except msgspec.ValidationError:
        return units.NOT_AVAILABLE


def _timing(record: Timing) -> str:
    if record.quality.status == "refused":
        return f"{units.NOT_AVAILABLE} (refused)"
    value = units.seconds(record.first_s if record.wall_s is None else record.wall_s)
    return value if record.quality.status == "valid" else f"{value} (suspect)"


def _lines(record: LineProfile) -> str:
    hottest = max(record.statements, key=lambda row: row.self_s, default=None)
    if hottest is None:
        return units.NOT_AVAILABLE
    return f"{units.share(hottest.share)} in line {hottest.line} of {hottest.function}"


def _tiers(record: TierTable) -> str:
    rates = [tier.read_Bps for tier in record.tiers if tier.read_Bps]
    span = f", {units.bandwidth(min(rates))} to {units.bandwidth(max(rates))}" if rates else ""
    return f"{units.count(len(record.tiers), 'tier')}{span}"


def _timeline(record: TimelineReport) -> str:
    if not record.devices:
        return "no device events"
    return ", ".join(f"{d.name} busy {units.share(d.duty_cycle)}" for d in record.devices)


def _prediction(record: Prediction) -> str:
    numbers = (record.value, record.measured)
    said, seen = (f"{n:.3g} {record.unit}" if n is not None else "" for n in numbers)
    return (said or "no prediction") + (f", measured {seen}" if seen else "")


_HEADLINES: dict[str, tuple[type[Record], Callable[[Any], str]]] = {
    "Answer": (Answer, lambda record: str(record.status)),
    "Prediction": (Prediction, _prediction),
    "Diagnosis": (Diagnosis, lambda record: units.count(len(record.findings), "finding")),
    "LineProfile": (LineProfile, _lines),
    "IoTime": (IoTime, lambda record: f"{units.capacity(record.read_requested_bytes)} read"),
    "TierAnswer": (TierAnswer, lambda record: record.path),
    "TierTable": (TierTable, _tiers),
    "TimelineReport": (TimelineReport, _timeline),
    "Timing": (Timing, _timing),
}
"""How each kind of record is said in a few words. A new kind is one line."""


def _local_time(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return at


def _one_line(text: str) -> str:
    """Names are free text; a terminal must not take orders from them."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
