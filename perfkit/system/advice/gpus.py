"""GPUs: is the one that is paid for in use, whole, and at full speed?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.records.doctor import Diagnosis, Finding, Gpu, Library
from perfkit.units import capacity, count

__all__ = ["RULES"]

_CUDA = re.compile(r"CUDA (\d+)\.(\d+)")


def _packages(seen: Diagnosis) -> dict[str, Library]:
    return {row.name: row for row in seen.libraries if row.kind == "package"}


def cpu_build(seen: Diagnosis) -> Iterator[Finding]:
    """A framework that was built without the GPU that is there."""
    if not seen.gpus:
        return
    fixes = {"torch": "pip install --force-reinstall torch", "jax": "pip install 'jax[cuda13]'"}
    for name, row in _packages(seen).items():
        if name in fixes and row.details.startswith("CPU"):
            yield Finding(
                id=f"{name}-without-gpu",
                severity="problem",
                title=f"{name} cannot use the GPU",
                evidence=f"{name} {row.version}: {row.details}; {seen.gpus[0].name} is there",
                fix=fixes[name],
                gain="the GPU",
                lesson="31",
            )


def old_driver(seen: Diagnosis) -> Iterator[Finding]:
    """A library for a newer CUDA than the driver serves. Within one major version it may run."""
    served = _CUDA.search(f"CUDA {seen.gpu_stack.cuda}")
    for row in _packages(seen).values():
        built = _CUDA.search(row.details)
        if not served or not built or _version(built) <= _version(served):
            continue
        other = built[1] != served[1]
        yield Finding(
            id=f"{row.name}-newer-than-driver",
            severity="problem" if other else "warning",
            title=f"{row.name} is built for a newer CUDA than the driver serves",
            evidence=f"{row.name}: CUDA {built[1]}.{built[2]}; driver {seen.gpu_stack.driver}: "
            f"up to CUDA {served[1]}.{served[2]}",
            fix=f"update the driver, or install a {row.name} for CUDA {served[1]}",
            gain="it starts at all" if other else "no missing functions, no slow first start",
            lesson="21",
        )


def _version(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1]), int(found[2])


def not_alone(seen: Diagnosis) -> Iterator[Finding]:
    """Others compute on the same GPU."""
    for gpu in seen.gpus:
        if gpu.others:
            used = f", {capacity(gpu.others_bytes)}" if gpu.others_bytes else ""
            yield Finding(
                id="gpu-shared",
                severity="warning",
                title="You are not alone on the GPU",
                evidence=f"{_name(gpu)}: {count(gpu.others, 'other process')}{used}",
                fix="nvidia-smi",
                gain="timings hold only for as long as the others do what they do now",
                lesson="31",
            )


def slowed(seen: Diagnosis) -> Iterator[Finding]:
    """The clock is held down."""
    for gpu in seen.gpus:
        if gpu.slowed_by:
            yield Finding(
                id="gpu-slowed",
                severity="warning",
                title="The GPU's clock is held down",
                evidence=f"{_name(gpu)}: {', '.join(gpu.slowed_by)}",
                fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
                gain="the clock that the data sheet names",
                lesson="31",
            )


def narrow_link(seen: Diagnosis) -> Iterator[Finding]:
    """A card in a slot, or behind a cable, of fewer lanes."""
    for gpu in seen.gpus:
        if gpu.link_width and gpu.link_width_max and gpu.link_width < gpu.link_width_max:
            yield Finding(
                id="gpu-narrow-link",
                severity="warning",
                title="The GPU's link is narrower than it could be",
                evidence=f"{_name(gpu)}: PCI Express x{gpu.link_width} of x{gpu.link_width_max}",
                fix="perfkit tiers --quick",
                gain=f"copies up to {gpu.link_width_max / gpu.link_width:.0f} x as fast",
                lesson="10",
            )


def memory_errors(seen: Diagnosis) -> Iterator[Finding]:
    """Errors that could not be put right."""
    for gpu in seen.gpus:
        if gpu.ecc_errors:
            yield Finding(
                id="gpu-memory-errors",
                severity="problem",
                title="The GPU's memory has errors",
                evidence=f"{_name(gpu)}: {count(gpu.ecc_errors, 'uncorrected error')}",
                fix="nvidia-smi -q -d ECC,ROW_REMAPPER",
                gain="tell whoever runs the machine: results may be wrong",
            )


def mixed_precision(seen: Diagnosis) -> Iterator[Finding]:
    """PyTorch's old and new switches for TF32, set both, contradict each other."""
    rows = [row for row in seen.switches if row.of == "torch" and "mixed" in row.value]
    if rows:
        yield Finding(
            id="tf32-mixed",
            severity="warning",
            title="TF32 is set in the old and in the new way",
            evidence="; ".join(f"{row.name}: {row.value}" for row in rows),
            fix='torch.backends.cuda.matmul.fp32_precision = "ieee"',
            gain="one answer to which precision a product has",
            lesson="21",
        )


def preallocation(seen: Diagnosis) -> Iterator[Finding]:
    """JAX takes three quarters of a card at its start."""
    jax = _packages(seen).get("jax")
    told = any("PREALLOCATE" in row.name or "MEM_FRACTION" in row.name for row in seen.switches)
    if seen.gpus and jax and jax.loaded and not told:
        yield Finding(
            id="jax-preallocation",
            severity="note",
            title="JAX takes three quarters of the GPU's memory at its start",
            evidence="XLA_PYTHON_CLIENT_PREALLOCATE is not set",
            fix="%env XLA_PYTHON_CLIENT_PREALLOCATE=false",
            gain="memory left for others, before JAX is imported",
            lesson="21",
        )


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} {gpu.name}"


RULES = (
    cpu_build,
    old_driver,
    not_alone,
    slowed,
    narrow_link,
    memory_errors,
    mixed_precision,
    preallocation,
)
