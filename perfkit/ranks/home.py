"""The end of the line at home: ranks connect to it, get their task and bring their results."""

from __future__ import annotations

import pickle
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError, connection
from typing import Any, NamedTuple

from perfkit.ranks.base import RankError, RanksTimeout, RemoteError

__all__ = ["Address", "Home"]

_POLL_S = 0.1
_HELLO_S = 5


class Address(NamedTuple):
    """Where a rank finds home, and the key by which each knows the other."""

    host: str
    port: int
    key: bytes


class _Guest(NamedTuple):
    number: int
    host: str


class Home:
    """A socket on this host for `size` ranks. `host`: the name by which they reach it; the default
    is not reachable from other machines. Close it to interrupt every rank that is still busy.
    """

    def __init__(self, size: int, host: str = "127.0.0.1") -> None:
        bind = host if host == "127.0.0.1" else ""
        self._server = socket.create_server((bind, 0), backlog=max(size, 16))
        self.address = Address(host, self._server.getsockname()[1], secrets.token_bytes(32))
        self.size = size
        self._guests: dict[connection.Connection, _Guest] = {}
        self._results: dict[int, Any] = {}
        self._told: dict[int, str] = {}
        self._waiting: set[connection.Connection] = set()

    def gather(
        self, task: bytes, fate: Callable[[int | None], str], timeout_s: float | None
    ) -> list[Any]:
        """Give every rank the task and return what they bring, in order.

        `fate(number)` says how a rank that went away ended; `fate(None)` why ranks can no longer
        come, or nothing. Raises RankError and RanksTimeout.
        """
        until = time.monotonic() + timeout_s if timeout_s is not None else None
        while len(self._results) < self.size:
            if until is not None and time.monotonic() > until:
                raise RanksTimeout(f"no result within {timeout_s:g} s from {self._missing()}")
            ready = connection.wait([self._server, *self._guests], _POLL_S)
            for source in ready:
                if source is self._server:
                    self._welcome(task)
                else:
                    assert isinstance(source, connection.Connection)
                    self._listen(source, fate)
            if not ready and (why := fate(None)) and len(self._results) < self.size:
                raise RankError(f"the ranks ended early: {why}")
        for guest in self._guests:
            with suppress(OSError):
                guest.send_bytes(b"bye")
        return [self._results[number] for number in range(self.size)]

    def close(self) -> None:
        """Hang up: ranks that are not done are interrupted. Safe to call twice."""
        for guest in self._guests:
            with suppress(OSError):
                guest.close()
        self._guests.clear()
        self._server.close()

    def _welcome(self, task: bytes) -> None:
        """Let a rank in; anything that does not know the key is turned away."""
        accepted, _ = self._server.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _give_up_after(accepted, _HELLO_S)
        guest = connection.Connection(accepted.detach())
        try:
            connection.deliver_challenge(guest, self.address.key)
            connection.answer_challenge(guest, self.address.key)
            self._guests[guest] = _Guest(*pickle.loads(guest.recv_bytes()))
            _let_wait(guest)
            guest.send_bytes(task)
        except (OSError, EOFError, AuthenticationError):
            self._guests.pop(guest, None)
            guest.close()

    def _listen(self, source: connection.Connection, fate: Callable[[int | None], str]) -> None:
        guest = self._guests[source]
        try:
            kind, value = pickle.loads(source.recv_bytes())
        except (EOFError, OSError):
            self._lost(source, guest, fate)
            return
        if kind == "barrier":
            self._meet(source)
        elif kind == "done":
            self._results[guest.number] = value
        elif kind == "told":
            self._told[guest.number] = value
        else:
            assert isinstance(value, RemoteError)
            where = f"rank {guest.number} of {self.size} on {guest.host}"
            raise RankError(
                f"{where}: {value.summary}", rank=guest.number, traceback=value.traceback
            )

    def _lost(
        self, source: connection.Connection, guest: _Guest, fate: Callable[[int | None], str]
    ) -> None:
        """A rank went away: an error, unless it was done, or was told to end since another did."""
        del self._guests[source]
        source.close()
        if guest.number in self._results or (guest.number in self._told and self._guests):
            return
        how = (
            fate(guest.number)
            or self._told.get(guest.number)
            or "it was killed, or its node was lost"
        )
        raise RankError(
            f"rank {guest.number} of {self.size} on {guest.host} ended without a result: {how}",
            rank=guest.number,
        )

    def _meet(self, source: connection.Connection) -> None:
        self._waiting.add(source)
        if len(self._waiting) == self.size:
            for waiting in self._waiting:
                waiting.send_bytes(b"go")
            self._waiting.clear()

    def _missing(self) -> str:
        here = {guest.number: guest.host for guest in self._guests.values()}
        return ", ".join(
            f"rank {number} ({'on ' + here[number] if number in here else 'not started yet'})"
            for number in range(self.size)
            if number not in self._results
        )


def _give_up_after(sock: socket.socket, seconds: int) -> None:
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def _let_wait(guest: connection.Connection) -> None:
    with socket.socket(fileno=guest.fileno()) as sock:
        _give_up_after(sock, 0)
        sock.detach()
