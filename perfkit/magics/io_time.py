"""`%io_time` and `%%io_time`: what a cell read and wrote, and how much the page cache gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from perfkit.errors import UsageError
from perfkit.magics import options
from perfkit.magics.cell import Body
from perfkit.magics.show import deliver

if TYPE_CHECKING:
    from perfkit.measure.io import Runs
    from perfkit.records.tiers import IoTime

__all__ = ["NAME", "OPTIONS", "begin", "split"]

NAME = "io_time"
OPTIONS = (options.OUTPUT, options.QUIET, options.NAME)


def split(line: str) -> tuple[str, str]:
    """The options at the front of a line, and the code behind them."""
    _, code = options.parse("%io_time", OPTIONS, line)
    return line[: len(line.rstrip()) - len(code)] if code else line, code


def begin(shell: InteractiveShell, line: str, end: Callable[[], None], body: Body) -> Runs:
    """The one run of a cell."""
    __tracebackhide__ = True
    from perfkit.measure.io import IoMeasurement

    asked, rest = options.parse(body.label, OPTIONS, line)
    if rest:
        raise UsageError(
            f"{body.label}: {rest!r} is no option: write the code to measure below the first line"
        )

    def done(record: IoTime | None) -> None:
        end()
        if record is not None:
            deliver(shell, record, asked)

    return IoMeasurement(label=body.label, done=done).runs()
