"""Traces for the tests: real ones beside the repository, and Chrome JSON made by hand."""

import gzip
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
real = pytest.mark.traces

TRUTH_US = {
    "alexnet-a100": (98, 12920244.0, 66141.0, 10630.0),
    "event-sync-a100": (5, 263.0, 51.0, 49.0),
    "training-v100-ns": (6095, 480029.2, 472454.4, 468153.6),
    "training-a100": (9450, 464594.0, 388587.0, 281336.0),
}
"""Device intervals, span, busy and compute of the real traces, by brute force."""


def path_of(name):
    """The file of a real trace."""
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the real traces are not beside this repository")
    return path


def event(name, start_us, duration_us, cat="kernel", *, pid=0, tid=7, **args):
    """One event as PyTorch's profiler writes it."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def on_host(name, start_us, duration_us, cat="cpu_op", *, tid=1, **args):
    """The same on a thread of the host."""
    return event(name, start_us, duration_us, cat, pid=100, tid=tid, **args)


def thread_names(names):
    """Metadata events: {(pid, tid): name}; a tid of None names the process."""
    return [
        {
            "ph": "M",
            "name": "process_name" if tid is None else "thread_name",
            "pid": pid,
            "tid": tid or 0,
            "args": {"name": name},
        }
        for (pid, tid), name in names.items()
    ]


def text_of(events, **rest):
    """The trace as JSON."""
    return json.dumps({**rest, "traceEvents": events}).encode()


def write(path, events, **rest):
    """The trace as a file, compressed if its name says so."""
    data = text_of(events, **rest)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
