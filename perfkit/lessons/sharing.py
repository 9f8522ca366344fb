"""Lesson 21: copy or view, and where an array begins in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.lessons.checks import Wrong, question

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PAIRS", "Pair", "address", "array_at", "look"]


class Pair(NamedTuple):
    """What is made of an array `x`, and why it is a view or a copy."""

    make: Callable[[Any], Any]
    why: str


PAIRS = {
    "x[1:]": Pair(lambda x: x[1:], "a slice is a start and a step: the bytes stay where they are"),
    "x[[1, 2]]": Pair(
        lambda x: x[[1, 2]], "a list of places has no single step, so NumPy copies, even here"
    ),
    "x.T": Pair(lambda x: x.T, "only the two strides change places"),
    "x.T.reshape(12)": Pair(
        lambda x: x.T.reshape(12), "no single stride walks the columns one after the other"
    ),
    "x.reshape(12)": Pair(lambda x: x.reshape(12), "the rows lie one after the other already"),
    "x.astype(x.dtype)": Pair(
        lambda x: x.astype(x.dtype), "astype copies, even to the same type, unless copy=False"
    ),
}
"""With x = np.arange(12.0).reshape(3, 4)."""


def address(array: Any) -> int:
    """Where the first element lies, in bytes: of NumPy, torch and JAX."""
    for ask in ("data_ptr", "unsafe_buffer_pointer"):
        if hasattr(array, ask):
            return int(getattr(array, ask)())
    return int(array.__array_interface__["data"][0])


def array_at(boundary: int, n: int = 1000) -> np.ndarray:
    """`n` float32 zeros whose address is a multiple of `boundary` and of no larger power of two.

    Raises ValueError if `boundary` is no power of two, or below 4.
    """
    import numpy as np

    if boundary < 4 or boundary & (boundary - 1):
        raise ValueError(f"{boundary} is no power of two from 4 on")
    room = np.zeros(4 * n + 4 * boundary, np.uint8)
    start = -address(room) % (2 * boundary) + boundary
    return room[start : start + 4 * n].view(np.float32)


def look(one: Any, other: Any) -> str:
    """Do both begin at the same address?"""
    return "shared" if address(one) == address(other) else "copied"


@question("21.2")
def judge_views(views: Callable[[], Mapping[str, str]]) -> str:
    """Each pair by np.shares_memory."""
    import numpy as np

    given = dict(views())
    if given.keys() != PAIRS.keys():
        raise Wrong(f'say "view" or "copy" for each of {", ".join(PAIRS)}')
    for name, pair in PAIRS.items():
        x = np.arange(12.0).reshape(3, 4)
        truth = "view" if np.shares_memory(x, pair.make(x)) else "copy"
        if given[name] not in ("view", "copy"):
            raise Wrong(f'{name}: {given[name]!r} is neither "view" nor "copy"')
        if given[name] != truth:
            raise Wrong(f"{name} is a {truth}: {pair.why}")
    return "All six. A view costs nothing, and whoever writes through it writes to both"
