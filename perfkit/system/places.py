"""The file systems behind the paths that matter here."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from perfkit.records.doctor import FileSystem
from perfkit.system.mounts import target_of

__all__ = ["read_file_systems"]

PATIENCE_S = 0.5
"""A dead network mount answers never."""


def read_file_systems() -> tuple[FileSystem, ...]:
    """One row a path; uses that share a path share its row. Waits half a second for each."""
    uses: dict[str, list[str]] = {}
    for use, path in _paths():
        uses.setdefault(path, []).append(use)
    return tuple(_within(PATIENCE_S, ", ".join(names), path) for path, names in uses.items())


def _paths() -> Iterator[tuple[str, str]]:
    yield "here", str(Path.cwd())
    yield "home", str(Path.home())
    yield "temporary files", tempfile.gettempdir()
    yield "Python", sys.prefix
    if Path("/dev/shm").is_dir():
        yield "shared memory", "/dev/shm"
    for key in ("SCRATCH", "SLURM_TMPDIR", "SGE_LOCALDIR", "HF_HOME", "TORCH_HOME"):
        if path := os.environ.get(key):
            yield key, path


def _within(seconds: float, use: str, path: str) -> FileSystem:
    found: list[FileSystem] = []
    asking = threading.Thread(target=lambda: found.append(_row(use, path)), daemon=True)
    asking.start()
    asking.join(seconds)
    late = FileSystem(use=use, path=path, reason=f"it did not answer within {seconds:g} s")
    return found[0] if found else late


def _row(use: str, path: str) -> FileSystem:
    try:
        target = target_of(path)
    except OSError as error:
        return FileSystem(use=use, path=path, reason=error.strerror or str(error))
    return FileSystem(
        use=use,
        path=path,
        fstype=target.fstype,
        network=bool(target.network),
        memory_backed=bool(target.memory_backed),
        free_bytes=target.free_bytes,
        total_bytes=target.total_bytes,
    )
