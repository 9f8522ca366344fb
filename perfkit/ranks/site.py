"""Engines from a site's batch system: the configuration of ipyparallel, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfkit.errors import UsageError

__all__ = ["site_config"]


class _Scheduler(NamedTuple):
    launcher: str
    directive: str
    fixed: tuple[str, ...]
    queue: str
    walltime: str


_SCHEDULERS = {
    "slurm": _Scheduler(
        "SlurmEngineSetLauncher",
        "#SBATCH",
        ("--ntasks={n}", "--job-name=perfkit"),
        "--partition={}",
        "--time={}",
    ),
    "pbs": _Scheduler(
        "PBSEngineSetLauncher", "#PBS", ("-V", "-N perfkit"), "-q {}", "-l walltime={}"
    ),
    "sge": _Scheduler(
        "SGEEngineSetLauncher", "#$", ("-V", "-cwd", "-N perfkit"), "-q {}", "-l h_rt={}"
    ),
}


def site_config(
    scheduler: str,
    *,
    queue: str = "",
    walltime: str = "00:30:00",
    options: Sequence[str] = (),
    setup: Sequence[str] = (),
    mpiexec: str = "mpiexec",
) -> str:
    """Text for `ipcluster_config.py` on a "slurm", "pbs" or "sge" site: engines of one job in one
    MPI world, and a controller that they reach from other nodes.

    `options`: further lines for the scheduler, without their prefix, as "-l select=2:mpiprocs=4"
    (PBS) or "-pe mpi 8" (SGE); `setup`: shell lines before the engines, as "module load openmpi".
    Put it into a profile that all nodes see, then `engines(Cluster(profile=..., n=8))` after
    `start_cluster_sync()`. Raises UsageError for other schedulers.
    """
    if scheduler not in _SCHEDULERS:
        raise UsageError(f"scheduler={scheduler!r}: one of {', '.join(_SCHEDULERS)}")
    kind = _SCHEDULERS[scheduler]
    wanted = [*kind.fixed, kind.walltime.format(walltime)]
    wanted += [kind.queue.format(queue)] if queue else []
    lines = [f"{kind.directive} {line}" for line in (*wanted, *options)]
    # `program_and_args` alone would be one engine, or n of them that do not know one another.
    start = f"exec {mpiexec} -n {{n}} {{program_and_args}} --mpi"
    script = "\n".join(["#!/bin/sh", *lines, *setup, start, ""])
    return (
        "c = get_config()  # noqa\n"
        'c.Cluster.controller_ip = "*"\n'
        f'c.Cluster.engine_launcher_class = "{scheduler}"\n'
        "c.Cluster.engine_timeout = 600\n"
        f"c.{kind.launcher}.batch_template = {script!r}\n"
    )
