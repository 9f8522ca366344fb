"""What runs on a rank: fetch the task from home, run it, bring home its result or its error.

Home's address comes on standard input: its key is on no command line and in no environment.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import NoReturn

from perfkit.ranks.base import GRACE_S, Member, ToldToEnd, describe, pack
from perfkit.ranks.home import Address

__all__ = ["TcpRank", "main", "serve"]


class TcpRank:
    """A rank whose barrier is served by home: for engines without MPI. Skew: tens of µs."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.host = number, size, socket.gethostname()
        self.meeting = False
        self.line: connection.Connection | None = None

    def leave(self, *, failed: bool) -> None:
        """Nobody waits for it: home hangs up on all."""

    def barrier(self) -> None:
        assert self.line is not None
        self.line.send_bytes(pickle.dumps(("barrier", None)))
        self.line.recv_bytes()


def serve(address: Address, rank: Member, last_resort: Callable[[], object] | None = None) -> bool:
    """Do home's task as `rank`; whether it was done. Errors go home. If home hangs up the task is
    interrupted, and `last_resort` called if it has not ended GRACE_S seconds later.
    """
    try:
        line = _connect(address)
        if isinstance(rank, TcpRank):
            rank.line = line
        line.send_bytes(pickle.dumps((rank.number, rank.host)))
    except (EOFError, OSError):
        # Home is gone: another rank failed before this one had come.
        rank.leave(failed=True)
        return False
    watch = _Watch(line, rank, last_resort)
    try:
        message = _outcome(line.recv_bytes(), rank, watch)
    except (EOFError, OSError):
        message = b""
    watch.through = True
    done = _deliver(line, message)
    rank.leave(failed=not done)
    watch.over = True
    return done


def _deliver(line: connection.Connection, message: bytes) -> bool:
    """Bring home what came of the task, and stay until home has heard from all ranks."""
    try:
        line.send_bytes(message)
        return line.recv_bytes() == b"bye"
    except (EOFError, OSError):
        return False


def _connect(address: Address) -> connection.Connection:
    sock = socket.create_connection((address.host, address.port), timeout=30)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = connection.Connection(sock.detach())
    connection.answer_challenge(line, address.key)
    connection.deliver_challenge(line, address.key)
    return line


def _outcome(task: bytes, rank: Member, watch: _Watch) -> bytes:
    """Run a task; the message that tells home what came of it."""
    try:
        path, caps, call = pickle.loads(task)
        sys.path[:] = path + [entry for entry in sys.path if entry not in path]
        caps.apply()
        fn, args = pickle.loads(call)
        return pack(("done", fn(rank, *args)))
    except ToldToEnd as told:
        return pickle.dumps(("told", str(told)))
    except BaseException as error:
        if watch.hung_up:
            return pickle.dumps(("told", ""))
        return pickle.dumps(("error", describe(error)))


class _Watch:
    """Interrupts the main thread when home hangs up before the task is through."""

    def __init__(
        self,
        line: connection.Connection,
        rank: Member,
        last_resort: Callable[[], object] | None,
    ) -> None:
        self.over = self.through = self.hung_up = False
        self._line, self._rank, self._last_resort = line, rank, last_resort
        self._poll = select.poll()
        self._poll.register(line.fileno(), getattr(select, "POLLRDHUP", 0))
        threading.Thread(target=self._run, name="perfkit-home", daemon=True).start()

    def _run(self) -> None:
        self._poll.poll()
        self.hung_up = True
        if not (self.through or self._rank.meeting):
            # Not interrupt_main: that leaves a main thread that sleeps in the kernel asleep.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(GRACE_S)
        if not self.over and self._last_resort is not None:
            self._last_resort()
        self._line.close()


def _end(*_: object) -> NoReturn:
    raise ToldToEnd


def main(kind: str) -> None:
    """Run as one rank of the wanted kind. Returns if the task was done, else ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end)
    if kind == "mpi":
        from perfkit.ranks.mpi import join

        address, rank = join(sys.stdin.buffer)
    else:
        from perfkit.ranks.local import join

        address, rank = join(sys.stdin.buffer)
    if not serve(address, rank, last_resort=_die):
        sys.stdout.flush()
        sys.stderr.flush()
        _die()


def _die() -> NoReturn:
    """End at once, with what this process started. MPI's own exit waits for ranks that may never
    come.
    """
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
