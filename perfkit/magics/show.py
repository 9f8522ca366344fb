"""Reports are ordinary outputs: registered per record type, shown by display."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

if TYPE_CHECKING:
    from perfkit.records.base import Record

__all__ = ["deliver", "register", "show", "unregister"]

_VIEWS = {
    ("perfkit.records.timing", "Timing"): "perfkit.render.timing",
    ("perfkit.records.tiers", "IoTime"): "perfkit.render.io",
    ("perfkit.records.tiers", "TierPlan"): "perfkit.render.tiers",
    ("perfkit.records.tiers", "TierTable"): "perfkit.render.tiers",
    ("perfkit.records.lines", "LineProfile"): "perfkit.render.lines",
    ("perfkit.records.machine", "Machine"): "perfkit.render.machine",
    ("perfkit.records.timeline", "TimelineReport"): "perfkit.render.timeline",
    ("perfkit.timeline.trace", "Timeline"): "perfkit.render.timeline",
    ("perfkit.records.doctor", "Diagnosis"): "perfkit.render.doctor",
    ("perfkit.records.lesson", "Prediction"): "perfkit.render.lesson",
    ("perfkit.records.lesson", "Answer"): "perfkit.render.lesson",
    ("perfkit.records.lesson", "Recorded"): "perfkit.render.lesson",
}
"""Record type, by name so that loading the extension imports neither, and its room in render."""


def show(record: Record) -> None:
    """Display a record as a cell output."""
    display(record)


def deliver(shell: InteractiveShell, record: Record, asked: dict[str, Any]) -> None:
    """Bind, show and keep a record, as the options that all magics share ask for it."""
    if asked["output"]:
        shell.user_ns[asked["output"]] = record
    if not asked["quiet"]:
        show(record)
    if asked["name"]:
        from perfkit import ledger

        ledger.add(record, asked["name"])


def register(shell: InteractiveShell) -> None:
    """Teach the shell how records look."""
    bundles = _bundles(shell)
    for (module, name), room in _VIEWS.items():
        bundles.for_type_by_name(module, name, _bundle_maker(room))


def unregister(shell: InteractiveShell) -> None:
    """Records are shown as plain objects again."""
    bundles = _bundles(shell)
    for module, name in _VIEWS:
        bundles.deferred_printers.pop((module, name), None)
        for kind in [
            k for k in bundles.type_printers if (k.__module__, k.__name__) == (module, name)
        ]:
            bundles.pop(kind)


def _bundles(shell: InteractiveShell) -> Any:
    assert shell.display_formatter is not None
    return shell.display_formatter.mimebundle_formatter


def _bundle_maker(room: str) -> Any:
    def bundle(record: Record, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # A trace in the hand is shown as what it tells.
        seen = getattr(record, "report", record)
        made: dict[str, Any] = importlib.import_module(room).bundle(seen)
        return made

    return bundle
