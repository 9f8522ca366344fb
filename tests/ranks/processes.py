"""Asking after processes that may be gone."""

import time

import psutil


def gone(pids):
    """Whether all these processes have ended; a dead one that nobody has waited for counts."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        left = [pid for pid in pids if psutil.pid_exists(pid)]
        if not any(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in left):
            return True
        time.sleep(0.05)
    return False
