"""Threads against the CPUs that this process may use."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.records.doctor import Diagnosis, Finding, Library
from perfkit.units import count, ratio

__all__ = ["RULES", "threads_wanted", "too_many"]

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cpus(seen: Diagnosis) -> float | None:
    """The least of quota, mask and what the batch system granted; else the machine's CPUs."""
    known = [cpus for cpus in (seen.limits.cpus, seen.surroundings.cpus_granted) if cpus]
    return min(known, default=seen.processor.cpus)


def threads_wanted(seen: Diagnosis) -> int | None:
    """Whole threads that fit: at least one."""
    cpus = usable_cpus(seen)
    return None if cpus is None else max(1, int(cpus))


def too_many(seen: Diagnosis) -> list[Library]:
    """Libraries that use more threads than fit."""
    wanted = threads_wanted(seen)
    return [row for row in seen.libraries if wanted and row.threads and row.threads > wanted]


def _limit(seen: Diagnosis) -> str:
    granted = seen.surroundings.cpus_granted
    said = [f"{count(granted, 'CPU')} granted by the batch system"] if granted else []
    return ", ".join([seen.limits.reason, *said])


def over_limit(seen: Diagnosis) -> Iterator[Finding]:
    """Threads that take turns on too few CPUs, and wait for each other."""
    wanted, rows = threads_wanted(seen), too_many(seen)
    if not rows or wanted is None:
        return
    named = ", ".join(f"{row.name} of {row.of or 'the system'} {row.threads}" for row in rows)
    gained = seen.thread_gain
    in_bursts = gained is not None and gained < 1.1
    if gained is None:
        gain = "2 x to 90 x on small products"
    elif in_bursts:
        gain = f"no stops; in a burst shorter than the quota's period it is {ratio(gained)} as fast"
    else:
        gain = f"measured here: a product of 200 x 200 is {ratio(gained)} as fast"
    yield Finding(
        id="threads-over-limit",
        severity="warning" if in_bursts else "problem",
        title="More threads than CPUs",
        evidence=f"threads: {named}; {_limit(seen)}",
        fix=f"import threadpoolctl; threadpoolctl.threadpool_limits({wanted})",
        gain=gain,
        lesson="13",
        safe=True,
    )


def new_processes(seen: Diagnosis) -> Iterator[Finding]:
    """A quota is in no mask: every new process begins with as many threads as the mask has CPUs."""
    wanted, limits = threads_wanted(seen), seen.limits
    mask = limits.affinity_cpus or seen.processor.cpus
    given = {row.name: row.value for row in seen.switches if row.name in _VARIABLES}
    capped = [int(text) for text in given.values() if text.isdigit()]
    if not wanted or not mask or wanted >= mask or min(capped, default=mask) <= wanted:
        return
    values = " ".join(f"{name}={wanted}" for name in _VARIABLES)
    yield Finding(
        id="threads-of-new-processes",
        severity="warning",
        title="New processes will start too many threads",
        evidence=f"{_limit(seen)}; {_VARIABLES[0]} is {given.get(_VARIABLES[0]) or 'not set'}",
        fix=f"export {values}",
        gain=f"{wanted} instead of {mask} threads in each process, before it has done anything",
        lesson="13",
    )


def count_lies(seen: Diagnosis) -> Iterator[Finding]:
    """What os.cpu_count() and n_jobs=-1 take for given."""
    cpus, machine = usable_cpus(seen), seen.processor.cpus
    if not cpus or not machine or machine <= cpus:
        return
    yield Finding(
        id="cpu-count",
        severity="note",
        title="The CPU count is not yours",
        evidence=f"the machine has {count(machine, 'CPU')}, you may use {cpus:g}: {_limit(seen)}",
        fix="workers = max(1, int(perfkit.machine().limits.cpus))",
        gain="pools, loaders and n_jobs that fit",
        lesson="13",
    )


def grant(seen: Diagnosis) -> Iterator[Finding]:
    """A job that is bound to fewer CPUs than it was granted."""
    granted, mask = seen.surroundings.cpus_granted, seen.limits.affinity_cpus
    if not granted or not mask or granted <= mask:
        return
    yield Finding(
        id="grant-not-used",
        severity="warning",
        title="The job was granted more CPUs than it may use",
        evidence=f"{seen.surroundings.batch}: {granted} granted, affinity mask {mask}",
        fix=f"srun --cpus-per-task={granted} --cpu-bind=none python ..."
        if seen.surroundings.batch.startswith("Slurm")
        else "",
        gain=f"up to {granted / mask:.0f} x on work that runs in parallel",
        lesson="13",
    )


def two_runtimes(seen: Diagnosis) -> Iterator[Finding]:
    """Each OpenMP runtime has its own threads; Intel's and LLVM's together may even hang."""
    rows = [row for row in seen.libraries if row.kind == "OpenMP"]
    if len({row.path for row in rows}) < 2:
        return
    names = {row.name for row in rows}
    bad = {"Intel OpenMP", "LLVM OpenMP"} <= names
    yield Finding(
        id="two-openmp-runtimes",
        severity="warning" if bad or len(names) > 1 else "note",
        title="More than one OpenMP runtime",
        evidence=", ".join(f"{row.name} of {row.of or 'the system'}" for row in rows),
        fix="install the packages from one source (all by pip, or all from one conda channel)",
        gain="no hang, no wrong result"
        if bad
        else "half the threads, where both are busy at the same time",
        lesson="21",
    )


RULES = (over_limit, new_processes, count_lies, grant, two_runtimes)
