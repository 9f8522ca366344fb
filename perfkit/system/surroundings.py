"""Where this process runs: container, virtual machine, batch job, hub. Names of nobody are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from perfkit.records.doctor import Surroundings
from perfkit.system.files import read

__all__ = ["read_surroundings"]


def read_surroundings(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> Surroundings:
    """What files below `root` and the environment tell; another `root` has no environment unless
    one is given.
    """
    if environ is None:
        environ = os.environ if root == Path("/") else {}
    batch, granted = _batch(environ)
    return Surroundings(
        container=_container(root, environ),
        hypervisor=_hypervisor(root),
        batch=batch,
        hub=next((hub for hub, keys in _HUBS.items() if any(map(environ.get, keys))), ""),
        cpus_granted=granted,
    )


# -- containers ------------------------------------------------------------------------------------

_GROUPS = re.compile(r"(kubepods|docker|libpod|lxc|garden|ecs|buildkit)")
_BY_GROUP = {
    "kubepods": "Kubernetes pod", "docker": "Docker", "libpod": "Podman", "lxc": "LXC",
    "garden": "Garden", "ecs": "Amazon ECS", "buildkit": "BuildKit",
}  # fmt: skip


def _container(root: Path, environ: Mapping[str, str]) -> str:
    signs: tuple[tuple[str, Callable[[], object]], ...] = (
        ("Kubernetes pod", lambda: environ.get("KUBERNETES_SERVICE_HOST")),
        ("Apptainer", lambda: environ.get("APPTAINER_CONTAINER")),
        ("Singularity", lambda: environ.get("SINGULARITY_CONTAINER")),
        ("Apptainer or Singularity", lambda: (root / ".singularity.d").is_dir()),
        ("Podman", lambda: (root / "run/.containerenv").exists()),
        ("Docker", lambda: (root / ".dockerenv").exists()),
    )
    for name, sign in signs:
        if sign():
            return name
    named = re.search(r"(?:^|\0)container=([\w.-]+)", read(root / "proc/1/environ"))
    if named:
        return named[1]
    group = _GROUPS.search(read(root / "proc/self/cgroup") + read(root / "proc/1/cgroup"))
    return _BY_GROUP[group[1]] if group else ""


# -- virtual machines ------------------------------------------------------------------------------


def _hypervisor(root: Path) -> str:
    """The hypervisor's or the cloud's name; "yes" where only the processor's flag tells."""
    if "microsoft" in read(root / "proc/sys/kernel/osrelease").lower():
        return "WSL"
    cpuinfo = read(root / "proc/cpuinfo")
    if not re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE):
        return read(root / "sys/hypervisor/type")
    board = root / "sys/class/dmi/id"
    names = (read(board / "sys_vendor"), read(board / "product_name"))
    return " ".join(filter(None, names)) or read(root / "sys/hypervisor/type") or "yes"


# -- batch systems and hubs ------------------------------------------------------------------------


class _Batch(NamedTuple):
    """A batch system: the variable that holds the job, and those that hold its CPUs here."""

    name: str
    job: str
    cpus: tuple[str, ...]
    also: str = ""


_BATCHES = (
    _Batch("Slurm", "SLURM_JOB_ID", ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")),
    _Batch("PBS", "PBS_JOBID", ("NCPUS", "PBS_NUM_PPN")),
    _Batch("LSF", "LSB_JOBID", ("LSB_DJOB_NUMPROC",)),
    _Batch("Flux", "FLUX_JOB_ID", ()),
    # SGE's JOB_ID is a name that others use too.
    _Batch("SGE", "JOB_ID", ("NSLOTS",), also="SGE_TASK_ID"),
)
_HUBS = {
    "Binder": ("BINDER_SERVICE_HOST", "BINDER_LAUNCH_HOST", "BINDER_REF_URL"),
    "Google Colab": ("COLAB_RELEASE_TAG",),
    "Kaggle": ("KAGGLE_KERNEL_RUN_TYPE",),
    "JupyterHub": ("JUPYTERHUB_SERVICE_PREFIX", "JUPYTERHUB_API_URL"),
}


def _batch(environ: Mapping[str, str]) -> tuple[str, int | None]:
    for batch in _BATCHES:
        job = environ.get(batch.job)
        if job and (not batch.also or environ.get(batch.also)):
            given = (environ.get(key, "") for key in batch.cpus)
            cpus = next((int(text) for text in given if text.isascii() and text.isdigit()), None)
            return f"{batch.name} job {job}", cpus
    return "", None
