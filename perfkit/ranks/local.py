"""Processes on this machine."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar

from perfkit.errors import UsageError
from perfkit.ranks.base import GRACE_S, Caps, Member, Ranks, task_for
from perfkit.ranks.home import Address, Home

__all__ = ["LocalRank", "end", "join", "local", "tail"]

T = TypeVar("T")
_SLOT = 64
"""Bytes for each rank in the shared page: a cache line, so that none waits for another's."""


def local(n: int, *, caps: Caps | None = None) -> Ranks:
    """`n` processes on this machine, fresh ones for each run; nothing needs to be installed for
    functions that can be imported. They are no forks: no `if __name__ == "__main__"` is needed,
    and nothing but the function and its arguments comes along. Skew of a barrier: a few µs while
    there are as many free cores.
    """
    if n < 1:
        raise UsageError(f"local({n}): at least one rank is needed")
    return _Local(n, caps or Caps())


class _Local(Ranks):
    leads = True

    def __init__(self, n: int, caps: Caps) -> None:
        self.size, self._caps, self.output = n, caps, ""

    def __exit__(self, *_: object) -> None:
        """Nothing to do: a run leaves no process."""

    def run(self, fn: Callable[..., T], *args: Any, timeout_s: float | None = None) -> list[T]:
        task = task_for(fn, args, self._caps)
        home, processes = Home(self.size), list[subprocess.Popen[bytes]]()

        def fate(number: int | None) -> str:
            if number is None:
                gone = all(process.poll() is not None for process in processes)
                return tail(printed) or "no rank is left" if gone else ""
            return _how(processes[number])

        with tempfile.TemporaryFile() as printed, _shared_page(self.size) as page:
            try:
                for number in range(self.size):
                    process = _start(number, self.size, home.address, page, printed)
                    processes.append(process)
                return home.gather(task, fate, timeout_s)
            finally:
                home.close()
                end(processes)
                self.output = tail(printed)


def _shared_page(size: int) -> IO[bytes]:
    """A file without a name, long enough for one slot a rank."""
    memory = getattr(os, "memfd_create", None)
    page: IO[bytes] = (
        os.fdopen(memory("perfkit"), "w+b") if memory else tempfile.TemporaryFile("w+b")  # noqa: SIM115 - the caller closes it
    )
    page.truncate(size * _SLOT)
    return page


def _start(
    number: int, size: int, address: Address, page: IO[bytes], printed: IO[bytes]
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "perfkit.ranks", "local"],
        stdin=subprocess.PIPE,
        stdout=printed,
        stderr=printed,
        pass_fds=(page.fileno(),),
        # A Ctrl-C in the terminal is for this process, which ends the ranks in order.
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(pickle.dumps((number, size, page.fileno(), tuple(address))))
    return process


def join(stdin: IO[bytes]) -> tuple[Address, Member]:
    """Home's address and this rank, from standard input."""
    number, size, page, address = pickle.load(stdin)
    return Address(*address), LocalRank(number, size, mmap.mmap(page, size * _SLOT))


class LocalRank:
    """A rank whose barrier lives in memory that the ranks share."""

    def __init__(self, number: int, size: int, page: mmap.mmap) -> None:
        self.number, self.size, self.host = number, size, socket.gethostname()
        # One writer a slot, and a slot is one aligned store: no lock is needed.
        self._slots = memoryview(page).cast("Q")[:: _SLOT // 8]
        self._met = 0
        self.meeting = False

    def leave(self, *, failed: bool) -> None:
        """Nobody waits for it: home interrupts all."""

    def barrier(self) -> None:
        # Long waits sleep and leave the cores to those still at work; then, with all awake, a
        # second meeting of a few µs makes them leave together.
        self._meet(time.sleep)
        self._meet(lambda _: os.sched_yield())

    def _meet(self, wait: Callable[[float], object]) -> None:
        self._met += 1
        self._slots[self.number] = self._met
        others, spins = set(range(self.size)) - {self.number}, 0
        while others:
            others = {other for other in others if self._slots[other] < self._met}
            spins += 1
            if spins > 100:
                wait(0.0005)


def _how(process: subprocess.Popen[bytes]) -> str:
    """How a process that hung up ended."""
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout=1)
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"its process left with exit status {code}"
    return ""


def end(processes: list[subprocess.Popen[bytes]], grace_s: float = GRACE_S) -> None:
    """Wait until all processes have ended; kill, with what they started, those that take longer
    than the grace.
    """
    until = time.monotonic() + grace_s + 0.5
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def tail(printed: IO[bytes], most: int = 10_000) -> str:
    """The end of what was printed to a file."""
    # Not seek: the ranks write at the same offset.
    size = os.fstat(printed.fileno()).st_size
    return os.pread(printed.fileno(), most, max(0, size - most)).decode(errors="replace").strip()
