"""A tick each millisecond while a body runs: an alarm signal, or a thread where there is none."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

__all__ = ["INTERVAL_S", "AlarmTicks", "ThreadTicks", "Ticks", "current_frames", "why_no_alarm"]

INTERVAL_S = 1e-3
SWITCH_S = 0.2e-3
"""The interpreter's switch interval while a thread ticks: at the usual 5 ms it comes too late."""

Handler = Callable[[FrameType | None], None]


class Ticks(Protocol):
    """Calls a handler with the frame that runs in the measured thread, again and again."""

    def start(self, handler: Handler) -> None:
        """Begin."""

    def stop(self) -> None:
        """End, and put back what was changed. Does nothing where it has not begun."""

    def is_ours(self) -> bool:
        """Is it still ours, or has the body taken it?"""


def why_no_alarm() -> str:
    """Why the alarm cannot be used here, or nothing if it can."""
    if not hasattr(signal, "setitimer"):
        return "this system has no alarm signal"
    if threading.current_thread() is not threading.main_thread():
        return "signals arrive in the main thread alone, and this is another one"
    if signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        return "the alarm signal is in use"
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        return "the alarm timer is in use"
    return ""


def current_frames() -> dict[int, FrameType]:
    """The frame that each thread runs, by its number.

    CPython holds its list of threads meanwhile, and a garbage collection in there that frees a
    thread-local object waits for that list for ever: none may begin.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


class AlarmTicks:
    """The interval timer. Check `why_no_alarm` first."""

    def start(self, handler: Handler) -> None:
        def on_alarm(number: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            handler(frame)

        self._on_alarm = on_alarm
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        if getattr(self, "_on_alarm", None) is None:
            return
        if self.is_ours():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._on_alarm = None  # type: ignore[assignment]

    def is_ours(self) -> bool:
        return signal.getsignal(signal.SIGALRM) is self._on_alarm


class ThreadTicks:
    """A thread that looks at the thread it was made in."""

    def __init__(self) -> None:
        self._watched = threading.get_ident()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handler: Handler) -> None:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._thread = threading.Thread(
            target=self._run, args=(handler,), name="perfkit-ticks", daemon=True
        )
        self._thread.start()

    def _run(self, handler: Handler) -> None:
        while not self._ended.is_set():
            time.sleep(INTERVAL_S)
            if not self._ended.is_set():
                handler(current_frames().get(self._watched))

    def stop(self) -> None:
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        sys.setswitchinterval(self._switch_s)

    def is_ours(self) -> bool:
        return True
