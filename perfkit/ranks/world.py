"""The ranks of a program that runs under mpiexec already, and the rank itself."""

from __future__ import annotations

import array
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from perfkit.errors import PerfkitError
from perfkit.optional import require
from perfkit.ranks.base import (
    GRACE_S,
    RankError,
    Ranks,
    RanksTimeout,
    RemoteError,
    ToldToEnd,
    describe,
    pack,
)

__all__ = ["MpiRank", "World", "world_size"]

T = TypeVar("T")


def world_size() -> int:
    """How many MPI ranks this program has, as its launcher told it; 1 outside mpiexec."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    if "PMIX_RANK" in os.environ:
        names.append("SLURM_STEP_NUM_TASKS")
    told = (os.environ.get(name, "") for name in names)
    return max((int(size) for size in told if size.isdigit()), default=1)


class MpiRank:
    """A rank whose barrier is MPI's. Skew: a few µs while each rank has a core."""

    def __init__(self, comm: Any) -> None:
        self.number, self.size, self.host = comm.rank, comm.size, socket.gethostname()
        self.meeting = self._alone = False
        self._comm = comm

    def barrier(self) -> None:
        failed, left = self._meet()
        if failed or left:
            self._alone = True
            raise ToldToEnd(f"{failed} ranks failed and {left} were through before this barrier")
        # All are awake now: this second meeting is short, and they leave it together.
        self._comm.Barrier()

    def leave(self, *, failed: bool) -> None:
        """Count at the meeting that the others are at, or wait until they are through as well."""
        if not self._alone:
            self._meet(failed=failed, left=True)

    def _meet(self, *, failed: bool = False, left: bool = False) -> tuple[int, int]:
        """Wait until each rank is at a barrier or through; how many failed and how many left."""
        mine, total = array.array("i", [failed, left]), array.array("i", [0, 0])
        self.meeting = True
        self._comm.Allreduce(mine, total)
        self.meeting = False
        return total[0], total[1]


class World(Ranks):
    """The ranks of COMM_WORLD. Every rank calls `run`, with rank 0's arguments; an error is raised
    on all of them. A rank that a time-out cannot interrupt in 2 s aborts the whole program.
    """

    output = ""

    def __init__(self) -> None:
        self._comm = require("mpi4py.MPI", "mpi()").COMM_WORLD
        self.size, self.leads = self._comm.size, self._comm.rank == 0

    def __enter__(self) -> World:
        # Apart from the program's own messages.
        self._comm = self._comm.Dup()
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        """The ranks are the program's own, and end with it. An error that is not known to all of
        them would leave the others waiting for ever: it aborts the program.
        """
        if error is not None and not isinstance(error, RankError) and self.size > 1:
            lines = traceback.format_exception(error)
            if isinstance(error, PerfkitError):
                lines = [f"{type(error).__name__}: {error}\n"]
            sys.stderr.writelines(lines)
            sys.stderr.flush()
            self._comm.Abort(1)

    def run(self, fn: Callable[..., T], *args: Any, timeout_s: float | None = None) -> list[T]:
        args = self._comm.bcast(args)
        rank = MpiRank(self._comm)
        watch = _Deadline(rank, timeout_s)
        kind, value = _attempt(fn, rank, args, watch)
        rank.leave(failed=kind != "done")
        watch.cancel()
        told = self._comm.gather((kind, value, rank.host))
        wrong = self._comm.bcast(_first_error(told) if self.leads else None)
        if wrong is not None:
            raise wrong
        return [pickle.loads(value) for _, value, _ in told] if self.leads else []


def _attempt(
    fn: Callable[..., Any], rank: MpiRank, args: tuple[Any, ...], watch: _Deadline
) -> tuple[str, Any]:
    try:
        return "done", pack(fn(rank, *args))
    except ToldToEnd as alone:
        return "alone", RemoteError(str(alone))
    except BaseException as error:
        if watch.late:
            return "late", RemoteError(f"no result within {watch.seconds:g} s")
        return "error", describe(error)
    finally:
        watch.through = True


def _first_error(told: list[tuple[str, Any, str]]) -> RankError | None:
    """The error that explains the others, or None. A rank left alone explains nothing itself."""
    for wanted, error in (("error", RankError), ("late", RanksTimeout), ("alone", RankError)):
        for number, (kind, value, host) in enumerate(told):
            if kind == wanted:
                where = f"rank {number} of {len(told)} on {host}"
                return error(f"{where}: {value.summary}", rank=number, traceback=value.traceback)
    return None


class _Deadline:
    """Interrupts the main thread after some seconds; aborts the program if that does not help."""

    def __init__(self, rank: MpiRank, seconds: float | None) -> None:
        self.late = self.through = False
        self.seconds, self._rank = seconds, rank
        self._over = threading.Event()
        if seconds is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def cancel(self) -> None:
        self._over.set()

    def _run(self) -> None:
        if self._over.wait(self.seconds):
            return
        # One that waits for the others is not the one that is late.
        if not (self._rank.meeting or self.through):
            self.late = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not self._over.wait(GRACE_S + self._rank.size * 0.01):
            sys.stderr.write(f"perfkit: no result within {self.seconds:g} s; MPI_Abort\n")
            sys.stderr.flush()
            require("mpi4py.MPI", "mpi()").COMM_WORLD.Abort(1)
