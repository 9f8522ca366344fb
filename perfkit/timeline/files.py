"""The text of a trace file, plain or compressed, in pieces."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from perfkit.errors import UsageError

__all__ = ["find_trace", "is_xplane", "pieces", "whole"]

PIECE = 2**20
"""Larger ones fall out of the cache between reading, decoding and taking apart."""
MOST_TEXT = 8 * 2**30
MOST_XPLANE = 2 * 2**30
_GZIP = b"\x1f\x8b"
_TRACES = ("*.xplane.pb", "*.pt.trace.json*", "*.trace.json*", "*.json", "*.json.gz")


def find_trace(path: str | Path) -> Path:
    """The file that `path` means: itself, or the newest trace in the folder that it is.

    Raises UsageError.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        for pattern in _TRACES:
            found = sorted(path.rglob(pattern), key=lambda file: file.stat().st_mtime)
            if found:
                return found[-1]
        raise UsageError(f"{path} holds no trace: wanted is a .json, .json.gz or .xplane.pb")
    if not path.exists():
        raise UsageError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise UsageError(f"{path} is no file: give a trace (.json, .json.gz or .xplane.pb)")
    return path


def is_xplane(path: Path) -> bool:
    """Is it XLA's binary form? Told by its name, then by its first bytes: JSON begins otherwise."""
    if path.name.endswith((".xplane.pb", ".xplane.pb.gz", ".pb")):
        return True
    head = next(pieces(path), b"")[:64]
    # The tag of the first field is a line feed; in JSON behind one there is a bracket or a blank.
    return head[:1] == b"\n" and head.lstrip()[:1] not in (b"{", b"[", b"")


def whole(path: Path) -> bytes:
    """All of a file. Raises UsageError if it is larger than 2 GiB."""
    parts, total = [], 0
    for piece in pieces(path):
        total += len(piece)
        if total > MOST_XPLANE:
            raise UsageError(f"{path} holds more than 2 GiB: record fewer steps")
        parts.append(piece)
    return b"".join(parts)


def pieces(path: Path) -> Iterator[bytes]:
    """The text of a file, a MiB at a time; gzip is told by its first bytes.

    Raises UsageError if it cannot be read, is cut off, or holds more than 8 GiB.
    """
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            total = 0
            source = _unpacked(iter(lambda: file.read(PIECE // 8), b""), path)
            for piece in source if head == _GZIP else iter(lambda: file.read(PIECE), b""):
                total += len(piece)
                if total > MOST_TEXT:
                    raise UsageError(
                        f"{path} holds more than {MOST_TEXT >> 30} GiB of text: record fewer steps"
                    )
                yield piece
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _unpacked(source: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The text of one or more gzip members, never more than a piece at once."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        for packed in source:
            while packed:
                if unpack.eof:
                    if not packed.startswith(_GZIP):
                        return  # what stands behind the last member is padding
                    unpack = zlib.decompressobj(wbits=31)
                text = unpack.decompress(packed, PIECE)
                packed = unpack.unconsumed_tail or unpack.unused_data
                if text:
                    yield text
    except zlib.error as error:
        raise UsageError(f"{path} is damaged ({error}): copy or record it again") from error
    if not unpack.eof:
        raise UsageError(
            f"{path} ends in the middle of its gzip data: it was cut off when it was written or "
            "copied; copy or record it again"
        )
