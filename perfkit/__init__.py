"""Honest performance measurement inside notebooks. `%load_ext perfkit` brings the magics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_PUBLIC = {
    "Diagnosis": "perfkit.records.doctor",
    "DeviceError": "perfkit.errors",
    "IncomparableRecords": "perfkit.errors",
    "IoTime": "perfkit.records.tiers",
    "LineProfile": "perfkit.records.lines",
    "Machine": "perfkit.records.machine",
    "MissingDependency": "perfkit.errors",
    "NotSupportedHere": "perfkit.errors",
    "PerfkitError": "perfkit.errors",
    "Quality": "perfkit.records.base",
    "Timing": "perfkit.records.timing",
    "Timeline": "perfkit.timeline.trace",
    "TimelineReport": "perfkit.records.timeline",
    "UsageError": "perfkit.errors",
    "annotate": "perfkit.measure.annotations",
    "check": "perfkit.lessons.checks",
    "diagnose": "perfkit.measure.doctor",
    "last": "perfkit.records.base",
    "machine": "perfkit.system.facts",
    "predict": "perfkit.lessons.predictions",
    "profile_lines": "perfkit.measure.lines.profile",
    "reveal": "perfkit.lessons.predictions",
    "read_timeline": "perfkit.timeline.trace",
    "record_timeline": "perfkit.measure.timeline",
    "step": "perfkit.measure.annotations",
    "TierTable": "perfkit.records.tiers",
    "probe_tiers": "perfkit.tiers.table",
    "time_call": "perfkit.measure.timing",
    "time_io": "perfkit.measure.io",
}
"""Where each public name lives. It is imported when it is first asked for."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'perfkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Bring the magics and the reports into this shell: `%load_ext perfkit`."""
    from perfkit import magics

    magics.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take out all that `load_ipython_extension` brought: `%unload_ext perfkit`."""
    from perfkit import magics

    magics.unload(shell)
