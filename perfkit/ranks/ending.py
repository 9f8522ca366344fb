"""Clean up when a launcher ends a process that waits for others and hears no signal."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["removed_on_sigterm"]


@contextmanager
def removed_on_sigterm(folder: Path) -> Iterator[None]:
    """While this is open SIGTERM removes `folder` and ends the process (exit status 143).

    mpiexec sends it to all ranks when one died. By then most wait in MPI for that one, where no
    Python handler runs; the byte that the kernel's handler writes reaches a thread all the same.
    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_wait, args=(reader, folder), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGTERM, handler)
        os.close(writer)
        thread.join()
        os.close(reader)


def _wait(reader: int, folder: Path) -> None:
    while told := os.read(reader, 1):
        if told[0] == signal.SIGTERM:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(128 + signal.SIGTERM)
