"""Numbers that last: one line of JSON for each named record, prediction and answer.

The file is `perfkit-results.jsonl` in the folder of the notebook, or where PERFKIT_RESULTS says.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from perfkit.errors import PerfkitError
from perfkit.records.base import Record

__all__ = ["Entry", "add", "entries", "path"]

FILE_NAME = "perfkit-results.jsonl"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `record` is the record's own JSON; its `record` key names the type."""

    name: str
    at: str
    record: msgspec.Raw


def path() -> Path:
    """Where the ledger lies."""
    return Path(os.environ.get("PERFKIT_RESULTS") or FILE_NAME).absolute()


def add(record: Record, name: str) -> None:
    """Append `record` under `name`. Raises PerfkitError in one line if it cannot be written."""
    entry = Entry(
        name=name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        record=msgspec.Raw(record.to_json().encode()),
    )
    line = msgspec.json.encode(entry) + b"\n"
    target = path()
    try:
        _append(target, line)
    except OSError as error:
        raise PerfkitError(
            f"{name!r} was not kept: {target} cannot be written ({error.strerror}); "
            "set PERFKIT_RESULTS to a file that can"
        ) from error


def _append(target: Path, line: bytes) -> None:
    # One write to a file opened for appending: two kernels cannot tear each other's lines.
    file = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            # A kernel died while it wrote: its half line must not swallow ours.
            line = b"\n" + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def entries(name: str | None = None) -> Iterator[Entry]:
    """The lines of the ledger, oldest first; lines that are no entries are passed over."""
    try:
        text = path().read_bytes()
    except OSError:
        return
    for line in text.splitlines():
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except msgspec.DecodeError:
            continue
        if name is None or entry.name == name:
            yield entry
