"""ipyparallel engines: those that are there, or a cluster of our own."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from perfkit.errors import UsageError
from perfkit.optional import require
from perfkit.ranks.base import GRACE_S, Caps, Member, RankError, Ranks, task_for
from perfkit.ranks.home import Address, Home
from perfkit.ranks.mpi import find_mpiexec, mpi_environment
from perfkit.ranks.worker import TcpRank, serve
from perfkit.ranks.world import MpiRank, world_size

__all__ = ["engines"]

T = TypeVar("T")


def engines(where: Any = None, *, n: int | None = None, launcher: str = "local") -> Ranks:
    """Engines of ipyparallel as ranks.

    `where`: a Client or a started Cluster, whose engines are used and left running; or None: a
    cluster of `n` engines is started by `launcher` ("local" or "mpi"; about 10 s) and stopped at
    the end. Engines in one MPI world meet at MPI's barrier; others at one that this process serves
    (skew: tens of µs). Engines that do not obey a time-out in 2 s are left to their owner, or
    stopped if they are our own.
    """
    if (where is None) == (n is None):
        raise UsageError("engines(client or cluster), or engines(n=4, launcher='mpi')")
    if where is None and launcher not in ("local", "mpi"):
        raise UsageError(f"launcher={launcher!r}: local or mpi; for a batch system see site_config")
    return _Engines(where, n, launcher)


class _Engines(Ranks):
    leads = True
    output = ""

    def __init__(self, where: Any, n: int | None, launcher: str) -> None:
        self._where, self._n, self._launcher = where, n, launcher
        self._own: _OwnCluster | None = None
        self._client: Any = None
        self.size = n or 0

    def __enter__(self) -> _Engines:
        if self._where is None:
            self._own = _OwnCluster(self._n or 1, self._launcher)
            self._client = self._own.client
        elif hasattr(self._where, "connect_client_sync"):
            self._client = self._where.connect_client_sync()
        else:
            self._client = self._where
        self._client.wait_for_engines(self._n or 1, timeout=60)
        self._ids = list(self._client.ids)
        self.size = len(self._ids)
        self._hosts = set(self._client[self._ids].apply_sync(socket.gethostname))
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.stop()
        elif self._client is not self._where:
            self._client.close()

    def run(self, fn: Callable[..., T], *args: Any, timeout_s: float | None = None) -> list[T]:
        if self._client is None:
            raise UsageError("engines: use them in a `with` block")
        here = socket.gethostname()
        home = Home(self.size, "127.0.0.1" if self._hosts == {here} else here)
        # Engines keep their own path: they may be on machines with other folders.
        task = task_for(fn, args, Caps(), path=[])
        calls = [
            self._client[engine].apply_async(_enter, tuple(home.address), number, self.size)
            for number, engine in enumerate(self._ids)
        ]

        def fate(number: int | None) -> str:
            if number is not None:
                return ""
            failed = [call for call in calls if call.ready() and not call.successful()]
            return str(failed[0].exception()).splitlines()[0] if failed else ""

        try:
            return home.gather(task, fate, timeout_s)
        finally:
            home.close()
            self._settle(calls)

    def _settle(self, calls: list[Any]) -> None:
        """Wait until no engine is busy with our task; stop engines of our own that stay so."""
        until = time.monotonic() + GRACE_S + 1
        for call in calls:
            call.wait(max(0.01, until - time.monotonic()))
        if not all(call.ready() for call in calls) and self._own is not None:
            self._own.stop()
            self._client = None


def _enter(address: tuple[str, int, bytes], number: int, size: int) -> None:
    """On an engine: serve home as the rank that this engine is."""
    serve(Address(*address), _rank(number, size))


def _rank(number: int, size: int) -> Member:
    if world_size() == size > 1:
        comm = require("mpi4py.MPI", "An engine under mpiexec").COMM_WORLD
        if comm.size == size:
            return MpiRank(comm)
    return TcpRank(number, size)


class _OwnCluster:
    """A cluster with a profile of its own in a temporary folder, which goes with it."""

    def __init__(self, n: int, launcher: str) -> None:
        ipyparallel = require("ipyparallel", "engines()")
        config = require("traitlets.config", "engines()").Config()
        if launcher == "mpi":
            config.MPIEngineSetLauncher.mpi_cmd = [find_mpiexec()]
            ours = mpi_environment(n).items() - os.environ.items()
            config.MPIEngineSetLauncher.environment = dict(ours)
        self._psutil = require("psutil", "engines()")
        self._folder = tempfile.mkdtemp(prefix="perfkit-engines-")
        self._cluster = ipyparallel.Cluster(
            n=n, engines=launcher, profile_dir=self._folder, config=config, load_profile=False
        )
        self.client: Any = None
        self._family: set[Any] = set()
        try:
            self.client = self._cluster.start_and_connect_sync(activate=False)
        except BaseException as error:
            self.stop()
            if isinstance(error, Exception):
                raise RankError(f"the engines could not be started: {error}") from error
            raise
        self._meet_family()

    def _meet_family(self) -> None:
        """Note what the cluster has started: those told of our folder, and what they started."""
        for child in self._psutil.Process().children():
            with suppress(self._psutil.Error):
                if self._folder in child.environ().values():
                    self._family |= {child, *child.children(recursive=True)}

    def stop(self) -> None:
        """End the engines and the controller, and remove the folder. Safe to call twice."""
        self._meet_family()
        try:
            if self.client is not None:
                self.client.close()
            self._cluster.stop_cluster_sync()
            # Each engine has a nanny, which would go on for seconds to tell the controller.
            _, left = self._psutil.wait_procs(self._family, timeout=0.5)
            for process in left:
                process.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
