"""Lesson 00: how many tries does a minute hold? Functions take turns until each had its time."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit import units
from perfkit.optional import require

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Race", "Runner", "run"]

ACROSS, MOST = 80, 2400
SMALL = 512
"""Points of the first call, which is not timed."""


@dataclass
class Runner:
    """A function in the race: tries that ended, seconds that they took, and the last answer."""

    fit: Callable[..., np.ndarray]
    tries: int = 0
    seconds: float = 0.0
    answer: np.ndarray | None = None

    @property
    def per_minute(self) -> float:
        """Tries that fit in a minute."""
        return 60 * self.tries / self.seconds

    def take_turn(self, x: np.ndarray, z: np.ndarray) -> None:
        """Try once more, and time it."""
        start = time.perf_counter()
        self.answer = self.fit(x, z)
        self.seconds += time.perf_counter() - start
        self.tries += 1


class Race(dict[str, Runner]):
    """Runners by name, shown as a minute of each: a square is a try."""

    def __repr__(self) -> str:
        return "\n\n".join(_picture(name, runner) for name, runner in self.items())


def _picture(name: str, runner: Runner) -> str:
    count = int(runner.per_minute)
    head = (
        f"{name}: {units.seconds(runner.seconds / runner.tries)} a try, {count:,} tries in a minute"
    )
    squares = textwrap.wrap("■" * min(count, MOST), ACROSS)
    more = [f"and {count - MOST:,} more"] if count > MOST else []
    return "\n".join([head, *squares, *more])


def run(
    fits: Mapping[str, Callable[..., np.ndarray]],
    x: np.ndarray,
    z: np.ndarray,
    seconds: float = 3.0,
) -> Race:
    """Let each function fit `x` from `z` again and again until it had so many seconds: one try at
    least, and each try ends. They take turns, and NumPy keeps to one thread.
    """
    race = Race({name: Runner(fit) for name, fit in fits.items()})
    with require("threadpoolctl", "lesson 00").threadpool_limits(1):
        for runner in race.values():
            runner.fit(x[:SMALL], z[:SMALL], 1)
        while running := [r for r in race.values() if not r.tries or r.seconds < seconds]:
            for runner in running:
                runner.take_turn(x, z)
    return race
