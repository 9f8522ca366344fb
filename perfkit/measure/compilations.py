"""Which shapes JAX compiled a program for: its trace has the time, its log the shapes."""

from __future__ import annotations

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from perfkit.timeline.columns import Columns

__all__ = ["compiled_shapes", "with_shapes"]

LOGGER = "jax._src.interpreters.pxla"
_COMPILING = re.compile(
    r"Compiling (?:jit\()?(.+?)\)? with global shapes and types \(?(.*?)\)?\. Arg"
)
_SHAPE = re.compile(r"ShapedArray\((\w+\[[^\]]*\])")

Compiled = list[tuple[str, str]]
"""(function, "float32[17], float32[]"), in the order in which they were compiled."""


@contextmanager
def compiled_shapes() -> Iterator[Compiled]:
    """Listen to JAX's log meanwhile. It is put back as it was; others hear no more than before."""
    logger, told = logging.getLogger(LOGGER), Compiled()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if found := _COMPILING.match(record.getMessage()):
                told.append((found[1], ", ".join(_SHAPE.findall(found[2]))))

    before = logger.level, logger.propagate
    listener = Listener(logging.DEBUG)
    logger.propagate = logger.propagate and logger.isEnabledFor(logging.DEBUG)
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    try:
        yield told
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def with_shapes(columns: Columns, told: Compiled) -> Columns:
    """The same columns; compilations whose shapes were told have them as their detail."""
    import numpy as np

    waiting: dict[str, deque[str]] = defaultdict(deque)
    for function, shapes in told:
        waiting[f"compile {function}"].append(shapes)
    details = {text: code for code, text in enumerate(columns.details)}
    detail = columns.detail.copy()
    for row in np.flatnonzero(columns.of_kind("compile")):
        queue = waiting[columns.names[columns.name[row]]]
        if queue:
            detail[row] = details.setdefault(queue.popleft(), len(details))
    columns.detail, columns.details = detail, tuple(details)
    return columns
