"""`%gpu_time` and `%%gpu_time`: what a line or a cell costs on the host and on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from perfkit.errors import UsageError
from perfkit.magics import options
from perfkit.magics.cell import Body, compile_text
from perfkit.magics.muted import Muted
from perfkit.magics.options import Option
from perfkit.magics.show import deliver

if TYPE_CHECKING:
    from perfkit.measure.timing import Runs
    from perfkit.records.timing import Timing

__all__ = ["NAME", "OPTIONS", "begin", "split"]

NAME = "gpu_time"
NO_SYNC = Option(("--no-sync",), "wait for nothing: the stopwatch that lies, on purpose")
OPTIONS = (
    options.REPEAT,
    options.WARMUP,
    options.BUDGET,
    options.OUTPUT,
    options.QUIET,
    options.NAME,
    options.BACKEND,
    options.COLD,
    options.TRACE,
    options.GRAPH,
    NO_SYNC,
)


def split(line: str) -> tuple[str, str]:
    """The options at the front of a line, and the code behind them."""
    _, code = options.parse("%gpu_time", OPTIONS, line)
    return line[: len(line.rstrip()) - len(code)] if code else line, code


def begin(shell: InteractiveShell, line: str, end: Callable[[], None], body: Body) -> Runs:
    """The runs of one cell. Code behind the options is set-up: run once, outside the time."""
    __tracebackhide__ = True
    # At first use, not when the extension is loaded: the magics of a notebook are many.
    from perfkit.devices.detect import devices_in_use
    from perfkit.measure.clock import HostClock
    from perfkit.measure.plan import Plan
    from perfkit.measure.timing import Measurement

    asked, setup = options.parse(body.label, OPTIONS, line)
    plan = Plan(
        repeat=asked["repeat"],
        warmup=asked["warmup"],
        budget_s=asked["budget"],
        backends=asked["backend"],
        cold=asked["cold"],
        synchronize=not asked["no_sync"],
        trace=asked["trace"],
        graph=asked["graph"],
    ).checked()
    devices_in_use(plan.backends)
    if setup:
        _run_setup(shell, setup)
    muted, clock = Muted(shell), HostClock()

    def done(timing: Timing | None) -> None:
        muted.stop()
        clock.close()
        end()
        if timing is not None:
            deliver(shell, timing, asked)

    measurement = Measurement(
        plan, clock, label=body.label, between=muted.start, done=done, names=shell.user_ns
    )
    return measurement.runs()


def _run_setup(shell: InteractiveShell, setup: str) -> None:
    __tracebackhide__ = True
    try:
        code = compile_text(shell, setup)
    except SyntaxError as error:
        raise UsageError(
            f"%%gpu_time: {setup!r} is neither an option nor set-up code ({error.msg}): "
            "write the code to time below the first line"
        ) from None
    exec(code, shell.user_ns)
