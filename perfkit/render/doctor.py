"""Views of a Diagnosis: the findings first, then what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from perfkit import units
from perfkit.records.doctor import Diagnosis, Finding, Gpu
from perfkit.render import grid, table
from perfkit.render.grid import Cell, Grid
from perfkit.render.table import Row
from perfkit.render.theme import COLOURS, MASK, STYLE, is_stable

__all__ = ["bundle", "html", "text"]

_COLOUR = {
    "problem": COLOURS["collective"],
    "warning": COLOURS["kernel"],
    "note": COLOURS["host"],
}
_BADGE = "display:inline-block;min-width:62px;padding:0 6px;border-radius:3px;color:#fff"
_CODE = "font-family:monospace;white-space:pre-wrap"


def bundle(seen: Diagnosis) -> dict[str, Any]:
    """All views by MIME type."""
    return {"text/plain": text(seen), "text/html": html(seen)}


def text(seen: Diagnosis) -> str:
    """Aligned text."""
    lines = [_head(seen)]
    for finding in seen.findings:
        lines += ["", f"  {finding.severity}: {finding.title}"]
        lines += [f"    {name:<8} {words}" for name, words in _parts(finding)]
    lines += [f"  {words}" for words in _changes(seen)]
    lines += ["", table.as_text(_rows(seen))]
    for each in _grids(seen):
        lines += ["", grid.as_text(each)]
    lines += [f"  {reason}" for reason in seen.reasons]
    return "\n".join(lines)


def html(seen: Diagnosis) -> str:
    """The same, with the long tables folded away."""
    findings = "".join(_finding(finding) for finding in seen.findings)
    changes = "".join(f"<div>{escape(words)}</div>" for words in _changes(seen))
    folded = "".join(_folded(each) for each in _grids(seen))
    reasons = "".join(
        f'<div style="{STYLE["note"]}">{escape(words)}</div>' for words in seen.reasons
    )
    return (
        f'<div style="{STYLE["box"]};max-width:960px"><div style="{STYLE["head"]}"><strong>'
        f"{escape(_head(seen))}</strong></div>{findings}{changes}"
        f"{table.as_html(_rows(seen))}{folded}{reasons}</div>"
    )


def _head(seen: Diagnosis) -> str:
    if is_stable():
        return f"%doctor: {MASK}"
    kinds = [finding.severity for finding in seen.findings]
    said = [units.count(kinds.count(kind), kind) for kind in _COLOUR if kind in kinds]
    spent = f" (looked for {units.seconds(seen.seconds)})" if seen.seconds else ""
    return f"%doctor: {', '.join(said) or 'nothing to put right'}{spent}"


# -- findings --------------------------------------------------------------------------------------


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    yield "seen", MASK if is_stable() else finding.evidence
    if finding.fix:
        yield "do", finding.fix + ("    (or: %doctor --fix)" if finding.safe else "")
    if finding.gain:
        yield "gain", MASK if is_stable() else finding.gain
    if finding.lesson:
        yield "lesson", finding.lesson


def _finding(finding: Finding) -> str:
    colour = _COLOUR[finding.severity]
    styles = {"do": f"{STYLE['cell']};{_CODE}"}
    parts = "".join(
        f'<tr style="background:none"><td style="{STYLE["cell"]};{STYLE["note"]}">{name}</td>'
        f'<td style="{styles.get(name, STYLE["cell"])}">{escape(words)}</td></tr>'
        for name, words in _parts(finding)
    )
    return (
        f'<div style="border-left:4px solid {colour};padding:1px 0 1px 10px;margin:8px 0">'
        f'<span style="{_BADGE};background:{colour}">{finding.severity}</span> '
        f"<strong>{escape(finding.title)}</strong>"
        f'<table style="{STYLE["table"]};margin:2px 0"><tbody>{parts}</tbody></table></div>'
    )


def _changes(seen: Diagnosis) -> Iterator[str]:
    for change in seen.changes:
        yield f"changed: {change.what} from {change.before} to {change.after}; back: {change.undo}"


# -- what this machine gives -----------------------------------------------------------------------


def _rows(seen: Diagnosis) -> list[Row]:
    limits, machine, weather = seen.limits, seen.processor, seen.weather
    rows = [
        Row("you may use", _cpus(seen), limits.reason),
        Row("the machine", _number(machine.cpus, "CPU"), _layout(seen)),
        Row("", "", _vectors(seen)),
        Row("caches", "", _caches(seen)),
        Row("memory", units.capacity(weather.memory_available_bytes), _memory(seen)),
        Row("runs in", "", _place(seen)),
        Row("just now", "", _weather(seen)),
        Row("denormals", "", _denormals(seen)),
        Row("GPU", "", _gpu(seen)),
    ]
    rows += [Row("", "", reason) for reason in machine.reasons]
    rows = [row for row in rows if row.value or row.note]
    if is_stable():
        rows = [Row(row.name, MASK if row.value else "", MASK) for row in rows if row.name]
    return rows


def _number(value: int | None, noun: str) -> str:
    return units.NOT_AVAILABLE if value is None else units.count(value, noun)


def _cpus(seen: Diagnosis) -> str:
    cpus = seen.limits.cpus
    if cpus is None:
        return units.NOT_AVAILABLE
    return f"{cpus:g} CPUs" if cpus != 1 else "1 CPU"


def _layout(seen: Diagnosis) -> str:
    machine = seen.processor
    said = [machine.model or seen.machine.processor]
    if machine.cores:
        said.append(units.count(machine.cores, "core"))
    if machine.sockets:
        said.append(units.count(machine.sockets, "socket"))
    if machine.threads_per_core:
        said.append("SMT" if machine.threads_per_core > 1 else "no SMT")
    if machine.numa_nodes:
        said.append(units.count(machine.numa_nodes, "NUMA node"))
    return ", ".join(said)


def _vectors(seen: Diagnosis) -> str:
    isa = [name for name in seen.processor.isa if not name.startswith(("sse", "ssse"))]
    return f"vectors: {', '.join(isa)}" if isa else ""


def _caches(seen: Diagnosis) -> str:
    return ", ".join(
        f"L{row.level} {units.capacity(row.size_bytes)}"
        + (f" x {row.instances}" if row.instances > 1 else "")
        + (f" (for {row.shared_by_cpus} CPUs)" if row.shared_by_cpus > 1 else "")
        for row in seen.processor.caches
    )


def _memory(seen: Diagnosis) -> str:
    limit, whole = seen.limits.memory_bytes, seen.processor.memory_bytes
    said = f"free to take; limit {units.capacity(limit)}" if limit else "free to take; no limit"
    return f"{said}, the machine has {units.capacity(whole)}"


def _place(seen: Diagnosis) -> str:
    where = seen.surroundings
    said = [where.container, where.batch, where.hub]
    if where.hypervisor:
        name = "" if where.hypervisor == "yes" else f" ({where.hypervisor})"
        said.append(f"virtual machine{name}")
    return ", ".join(filter(None, said)) or "no container, no virtual machine, no batch job"


def _weather(seen: Diagnosis) -> str:
    weather = seen.weather
    waits = (
        ("CPU", weather.cpu_pressure),
        ("memory", weather.memory_pressure),
        ("storage", weather.io_pressure),
    )
    said = []
    if weather.lost_share is not None:
        said.append(f"a spin lost {units.share(weather.lost_share)} of its time to others")
    said += [f"{name} pressure {units.share(part)}" for name, part in waits if part is not None]
    if weather.throttled_share is not None:
        said.append(f"stopped by the quota in {units.share(weather.throttled_share)} of periods")
    return ", ".join(said)


def _denormals(seen: Diagnosis) -> str:
    factor = seen.denormals_factor
    took = f"; NumPy takes {units.ratio(factor)} as long for them" if factor else ""
    return f"{seen.denormals}{took}" if seen.denormals else ""


def _gpu(seen: Diagnosis) -> str:
    stack = seen.gpu_stack
    if not seen.gpus:
        return f"none: {stack.needs}" if stack.needs else "none"
    return f"driver {stack.driver}, CUDA up to {stack.cuda}"


# -- the long tables -------------------------------------------------------------------------------


def _grids(seen: Diagnosis) -> Iterator[Grid]:
    makers = (_products, _gpus, _libraries, _not_loaded, _switches, _file_systems, _arrays)
    for made in (maker(seen) for maker in makers):
        if made.rows and not (is_stable() and made.title != "Libraries in use"):
            yield made


def _folded(each: Grid) -> str:
    is_open = " open" if each.title.startswith(("Matrix", "GPU", "Libraries")) else ""
    return (
        f'<details style="margin:4px 0"{is_open}><summary style="cursor:pointer;font-weight:600">'
        f"{escape(each.title)}</summary>{grid.as_html(each)}</details>"
    )


def _products(seen: Diagnosis) -> Grid:
    rows = [
        (
            row.library,
            row.dtype,
            units.count(row.threads, "thread"),
            f"{row.flops / 1e9:,.1f}",
            f"{row.peak_flops / 1e9:,.1f}" if row.peak_flops else units.NOT_AVAILABLE,
            Cell(units.share(row.of_peak), share=row.of_peak),
            units.share(row.quality.spread),
            "; ".join(row.quality.reasons),
        )
        for row in sorted(seen.products, key=lambda row: (row.library, row.dtype, row.threads))
    ]
    sizes = {f"{row.n} x {row.n}" for row in seen.products}
    head = ("library", "numbers", "on", " GFLOP/s", " peak", "of the peak", " spread", "")
    notes = (
        "2 n^3 operations over the median time; peak: the most that multiply-adds in registers "
        "reached on as many threads, in turns with the products",
    )
    return Grid(f"Matrix products, {', '.join(sizes)}", head, rows, notes)


def _gpus(seen: Diagnosis) -> Grid:
    rows = [
        (
            str(gpu.index),
            Cell(name=gpu.name),
            gpu.compute_capability,
            f"{units.capacity(gpu.memory_used_bytes)} of {units.capacity(gpu.memory_bytes)}",
            gpu.sharing,
            _condition(gpu),
        )
        for gpu in seen.gpus
    ]
    notes = [
        *seen.gpu_stack.reasons,
        *(f"GPU {g.index}: {r}" for g in seen.gpus for r in g.reasons),
    ]
    return Grid("GPUs", (" no.", "name", "capability", "memory used", "sharing", ""), rows, notes)


def _condition(gpu: Gpu) -> str:
    said = [f"slowed by {name}" for name in gpu.slowed_by]
    if gpu.power_W is not None:
        most = f" of {gpu.power_limit_W:.0f}" if gpu.power_limit_W else ""
        said.append(f"{gpu.power_W:.0f}{most} W")
    if gpu.temperature_C is not None:
        said.append(f"{gpu.temperature_C:.0f} °C")
    if gpu.link_width:
        said.append(f"PCI Express {gpu.link_generation or '?'} x{gpu.link_width}")
    if gpu.ecc is not None:
        errors = f", {units.count(gpu.ecc_errors, 'error')}" if gpu.ecc_errors else ""
        said.append(f"ECC {'on' if gpu.ecc else 'off'}{errors}")
    return ", ".join(said)


def _libraries(seen: Diagnosis) -> Grid:
    rows = [
        (
            row.kind,
            row.name,
            row.version,
            row.of if row.of != row.name else "",
            "" if row.threads is None else str(row.threads),
            "; ".join(filter(None, (row.architecture, row.layer, row.details, row.reason))),
        )
        for row in seen.libraries
        if row.loaded
    ]
    if is_stable():
        rows = [(kind, name, MASK, of, MASK, MASK) for kind, name, _, of, _, _ in rows]
    return Grid("Libraries in use", ("kind", "name", "version", "of", " threads", ""), rows)


def _not_loaded(seen: Diagnosis) -> Grid:
    rows = [
        (row.name, row.version, "; ".join(filter(None, (row.details, row.reason))))
        for row in seen.libraries
        if not row.loaded
    ]
    notes = ("%doctor --import loads them, to ask them more",)
    return Grid("Installed, not loaded", ("name", "version", ""), rows, notes)


def _switches(seen: Diagnosis) -> Grid:
    rows = [(row.of, row.name, row.value, row.means) for row in seen.switches]
    return Grid("Switches", ("of", "name", "value", ""), rows)


def _file_systems(seen: Diagnosis) -> Grid:
    rows = [
        (
            row.use,
            Cell(name=row.path),
            row.fstype,
            "in memory" if row.memory_backed else "network" if row.network else "",
            units.capacity(row.free_bytes),
            units.capacity(row.total_bytes),
            row.reason,
        )
        for row in seen.file_systems
    ]
    return Grid("File systems", ("what for", "path", "type", "", " free", " size", ""), rows)


def _arrays(seen: Diagnosis) -> Grid:
    rows = [
        (Cell(name=row.name), units.capacity(row.nbytes), "yes" if row.exact else "no")
        for row in seen.arrays
    ]
    notes = ("of each array at most 65,536 values are looked at",)
    return Grid("Large arrays of float64", ("name", " size", "exact in float32"), rows, notes)
