"""What every kind of ranks promises, how functions travel, and what an error says."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from perfkit.errors import PerfkitError
from perfkit.optional import require

__all__ = [
    "GRACE_S",
    "Caps",
    "Member",
    "Rank",
    "RankError",
    "Ranks",
    "RanksTimeout",
    "RemoteError",
    "ToldToEnd",
    "describe",
    "pack",
    "task_for",
]

T = TypeVar("T")

GRACE_S = 2.0
"""How long a rank that was told to end may take over its `finally` blocks."""


class Rank(Protocol):
    """What a function sees of the rank that it runs on."""

    number: int
    """0 to size - 1."""
    size: int
    host: str

    def barrier(self) -> None:
        """Return on all ranks at nearly the same moment, once all of them have called it."""


class Member(Rank, Protocol):
    """A rank as perfkit runs it. `meeting`: it waits where no signal can reach it."""

    meeting: bool

    def leave(self, *, failed: bool) -> None:
        """It is through: called once, last, so that none waits for it at a barrier."""


class ToldToEnd(BaseException):
    """Another rank failed, or home did: let `finally` blocks run and go."""


class Ranks(AbstractContextManager["Ranks"], Protocol):
    """Processes that run one function together; a context manager.

    `size`: how many there are; known once the context is entered. `leads`: whether this process
    gets the results: true everywhere but on ranks 1 and up of a program under mpiexec. `output`:
    the end of what the ranks printed in the last run, where it was caught.
    """

    size: int
    leads: bool
    output: str

    def run(self, fn: Callable[..., T], *args: Any, timeout_s: float | None = None) -> list[T]:
        """Call `fn(rank, *args)` on every rank at once; the results in the order of the ranks.

        Raises RankError if a rank fails or dies and RanksTimeout after `timeout_s` seconds, start
        of the processes included. By then, and after KeyboardInterrupt, the other ranks were
        interrupted (their `finally` blocks run) and, after a grace of 2 s, killed.
        """


@dataclass(frozen=True)
class Caps:
    """What one rank may use: bytes of address space, seconds of processor time. None: no cap."""

    memory_bytes: int | None = None
    cpu_s: int | None = None

    def apply(self) -> None:
        """Cap this process. Beyond them it sees MemoryError, or dies of SIGXCPU."""
        import resource

        for kind, value in (
            (resource.RLIMIT_AS, self.memory_bytes),
            (resource.RLIMIT_CPU, self.cpu_s),
        ):
            if value is not None:
                hard = resource.getrlimit(kind)[1]
                resource.setrlimit(kind, (value, hard))


@dataclass(frozen=True)
class RemoteError:
    """An error as it travels: as text, since the exception itself may not pickle."""

    summary: str
    traceback: str = ""


class RankError(PerfkitError):
    """A rank failed. The first line says which and how; below it stands that rank's traceback.

    `rank`: its number, or None if the ranks could not be started; `traceback`: as text.
    """

    def __init__(self, message: str, *, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(f"{message}\n\n{traceback.rstrip()}" if traceback.strip() else message)
        self.rank = rank
        self.traceback = traceback


class RanksTimeout(RankError):
    """The ranks did not end in time. The text names those that had not."""


def describe(error: BaseException) -> RemoteError:
    """An error with its traceback, as text; frames of perfkit.ranks are left out."""
    where = error.__traceback__
    while where is not None and "perfkit/ranks" in where.tb_frame.f_code.co_filename:
        where = where.tb_next
    summary = traceback.format_exception_only(error)[-1].strip()
    return RemoteError(
        summary, "".join(traceback.format_exception(type(error), error, where or None))
    )


def pack(thing: Any) -> bytes:
    """Pickle, by value what lives in a notebook or script. Raises MissingDependency, and what
    pickling raises.
    """
    with suppress(Exception):
        plain = pickle.dumps(thing)
        if b"__main__" not in plain:
            return plain
    by_value = require("cloudpickle", "A function or value made in a notebook")
    return bytes(by_value.dumps(thing))


def task_for(
    fn: Callable[..., Any], args: tuple[Any, ...], caps: Caps, path: list[str] | None = None
) -> bytes:
    """What home sends to every rank. `path`: where ranks look for modules first; by default where
    this process does.
    """
    if path is None:
        path = [str(Path(entry).absolute()) for entry in sys.path]
    return pickle.dumps((path, caps, pack((fn, args))))
