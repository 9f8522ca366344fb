"""Lesson 00: jobs, three machines that might run them, and the lesson's first question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from perfkit import units
from perfkit.lessons import rounds as _rounds  # noqa: F401  it registers exercise 00.2
from perfkit.lessons.checks import Wrong, question
from perfkit.lessons.traces import Table
from perfkit.records.doctor import Diagnosis, Gpu, Processor, Surroundings
from perfkit.records.machine import Limits, Machine
from perfkit.render import grid

__all__ = ["JOBS", "MACHINES", "Job", "cpus", "gpu_bytes", "machines", "memory_bytes", "obstacle"]

GiB = 2**30


class Job(NamedTuple):
    """What a job needs: CPUs at the same time, bytes of memory, bytes on a GPU (0: none)."""

    cpus: int
    memory_bytes: int
    gpu_bytes: int = 0


JOBS = {
    "notes": Job(1, 1 * GiB),
    "loader": Job(4, 1 * GiB),
    "table": Job(1, 8 * GiB),
    "training": Job(2, 8 * GiB, 24 * GiB),
}


def _made_up(processor: Processor, limits: Limits, *gpus: Gpu, **places: Any) -> Diagnosis:
    return Diagnosis.of(
        machine=Machine(
            host="made up",
            system="Linux x86_64",
            processor=processor.model,
            limits=limits,
            python="3.12",
            perfkit="0",
        ),
        limits=limits,
        processor=processor,
        surroundings=Surroundings(**places),
        gpus=gpus,
    )


MACHINES = {
    "laptop": _made_up(
        Processor(model="laptop", cpus=8, memory_bytes=16 * GiB), Limits(affinity_cpus=8, cpus=8)
    ),
    "pod": _made_up(
        Processor(model="server", cpus=64, memory_bytes=256 * GiB),
        Limits(affinity_cpus=64, quota_cpus=1, cpus=1, memory_bytes=2 * GiB),
        container="Kubernetes",
        hub="JupyterHub",
    ),
    "node": _made_up(
        Processor(model="server", cpus=128, memory_bytes=1024 * GiB),
        Limits(affinity_cpus=16, cpus=16, memory_bytes=64 * GiB),
        Gpu(index=0, name="80 GB GPU", memory_bytes=80 * GiB, sharing="MIG 1g.10gb"),
        batch="Slurm",
        cpus_granted=16,
    ),
}
"""As %doctor would see them. The figures are made up, the shapes are common."""


def machines(here: Diagnosis | None = None) -> Table:
    """What `%doctor` says of the three machines, and of this one if it is given, side by side."""
    shown = MACHINES if here is None else {**MACHINES, "yours": here}
    columns = [_figures(machine) for machine in shown.values()]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Table(grid.Grid("machines", ("", *shown), rows))


def _figures(machine: Diagnosis) -> dict[str, str]:
    host, limits, places = machine.processor, machine.limits, machine.surroundings
    gpu = max(machine.gpus, key=_slice_bytes, default=None)
    return {
        "runs in": ", ".join(filter(None, (places.container, places.batch, places.hub))) or "-",
        "CPUs of the host": units.NOT_AVAILABLE if host.cpus is None else str(host.cpus),
        "CPU mask": _limit(limits.affinity_cpus, str),
        "CPU quota": _limit(limits.quota_cpus, "{:g}".format),
        "memory of the host": units.capacity(host.memory_bytes),
        "memory limit": _limit(limits.memory_bytes, units.capacity),
        "GPU": gpu.name if gpu else "none",
        "GPU memory": units.capacity(gpu.memory_bytes) if gpu else "-",
        "GPU sharing": (gpu.sharing if gpu else "") or "-",
    }


def _limit(value: Any, say: Callable[[Any], str]) -> str:
    return "none" if value is None else say(value)


def cpus(machine: Diagnosis) -> float:
    """CPUs that a process may use at the same time; one if nothing tells."""
    places, host = machine.surroundings, machine.processor
    return _least(machine.limits.cpus, places.cpus_granted, host.cpus, otherwise=1)


def memory_bytes(machine: Diagnosis) -> float:
    """Bytes that a process may use; 0 if nothing tells."""
    return _least(machine.limits.memory_bytes, machine.processor.memory_bytes, otherwise=0)


def _least(*given: float | None, otherwise: float) -> float:
    return min((each for each in given if each is not None), default=otherwise)


def gpu_bytes(machine: Diagnosis) -> float:
    """Bytes on the largest GPU, or of the slice of it that is ours; 0 without one."""
    return max(map(_slice_bytes, machine.gpus), default=0)


def _slice_bytes(gpu: Gpu) -> float:
    """A MIG profile such as 1g.10gb names its part of the processors and of the memory."""
    profile = re.search(r"\d+g\.(\d+)gb", gpu.sharing)
    return int(profile[1]) * GiB if profile else gpu.memory_bytes or 0


def obstacle(machine: Diagnosis, job: Job) -> str:
    """Why a job may not run on a machine, with the figure that counts; empty if it may."""
    host = machine.processor
    if cpus(machine) < job.cpus:
        return (
            f"it needs {units.count(job.cpus, 'CPU')} and gets {cpus(machine):g}. The host has "
            f"{host.cpus}, for all who share it: mask and quota say what is yours"
        )
    if memory_bytes(machine) < job.memory_bytes:
        return (
            f"it needs {units.capacity(job.memory_bytes)} and gets "
            f"{units.capacity(memory_bytes(machine))}. The host has "
            f"{units.capacity(host.memory_bytes)}, but beyond the limit a process is killed"
        )
    if gpu_bytes(machine) >= job.gpu_bytes:
        return ""
    need = f"it needs {units.capacity(job.gpu_bytes)} on a GPU"
    if not machine.gpus:
        return f"{need}, and there is none"
    return f"{need} and gets {units.capacity(gpu_bytes(machine))}: look at how the GPU is shared"


@question("00.1")
def judge_machines(may_run: Callable[[], Mapping[str, Iterable[str]]]) -> str:
    """For each job the machines that may run it: exact, and each wrong one is told why."""
    given = {
        job: {names} if isinstance(names, str) else set(names)
        for job, names in dict(may_run()).items()
    }
    if given.keys() != JOBS.keys():
        raise Wrong(f"give a set of machines for each of {', '.join(JOBS)}; set() is nobody")
    for job, names in given.items():
        if unknown := names - MACHINES.keys():
            raise Wrong(f"{job}: {', '.join(map(str, unknown))} is none of {', '.join(MACHINES)}")
        for name, machine in MACHINES.items():
            _compare(job, name, obstacle(machine, JOBS[job]), said_yes=name in names)
    return "All twelve: the quota before the count, the limit before the memory, the slice first"


def _compare(job: str, name: str, why_not: str, *, said_yes: bool) -> None:
    if why_not and said_yes:
        raise Wrong(f"{job} may not run on {name}: {why_not}")
    if not why_not and not said_yes:
        machine = MACHINES[name]
        raise Wrong(
            f"{job} may run on {name}: a process gets {units.count(int(cpus(machine)), 'CPU')} and "
            f"{units.capacity(memory_bytes(machine))} there. A row that says none limits nothing"
        )
