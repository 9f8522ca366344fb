"""Views of a Machine."""

from __future__ import annotations

from typing import Any

from perfkit import units
from perfkit.records.machine import Machine
from perfkit.render import table
from perfkit.render.table import Row
from perfkit.render.theme import STYLE

__all__ = ["bundle"]


def bundle(machine: Machine) -> dict[str, Any]:
    """All views by MIME type."""
    limits = machine.limits
    cpus = units.NOT_AVAILABLE if limits.cpus is None else f"{limits.cpus:g}"
    rows = [
        Row("processor", machine.processor, machine.system),
        Row("CPUs", cpus, limits.reason),
        Row("memory limit", units.capacity(limits.memory_bytes), "of the control groups"),
        Row("last cache", units.capacity(machine.last_level_cache_bytes)),
        Row("Python", machine.python, f"perfkit {machine.perfkit}"),
    ]
    return {
        "text/plain": table.as_text(rows, indent=""),
        "text/html": f'<div style="{STYLE["box"]}">{table.as_html(rows)}</div>',
    }
