"""Small text files of the kernel, which may be absent, unreadable or strange."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read"]


def read(path: Path) -> str:
    """The stripped text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
