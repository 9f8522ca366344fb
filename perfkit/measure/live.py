"""Look into a training that runs already: in another process, or on another thread of this one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from perfkit.devices.jax import JaxDevice
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.measure.annotations import annotate
from perfkit.measure.profiler_client import ask, loopback
from perfkit.measure.profilers import ANCHOR, TORCH_FILE, jax_profile, torch_profile
from perfkit.optional import loaded
from perfkit.records.base import keep_last
from perfkit.system.facts import machine
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import Columns
from perfkit.timeline.trace import Timeline
from perfkit.timeline.xplane import read_xplane

__all__ = ["Captured", "capture_live", "record_live"]

LONGEST_S, SLICE_S = 600, 0.1


class Captured(NamedTuple):
    """A trace: what form it has, its bytes, and where it is from."""

    format: Literal["xplane", "kineto"]
    data: bytes
    name: str


def capture_live(
    seconds: float, *, port: int | None = None, host: str = "127.0.0.1"
) -> tuple[Captured, ...]:
    """Record what runs now, for `seconds` (at most 600).

    `port`: where a process of this machine serves its profiler (`jax.profiler.start_server(port)`);
    it gives one trace. Without it: the other threads of this process, one trace for each of JAX and
    PyTorch that is in use. It ends at most 20 s later. Raises UsageError, NotSupportedHere or, for
    want of grpcio, MissingDependency; an interrupt ends the recording.
    """
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"--live takes seconds, more than 0 and at most {LONGEST_S}: --live 5")
    if port is None:
        return _capture_here(seconds)
    if not 0 < port < 65536:
        raise UsageError(f"--port takes a number from 1 to 65535, not {port}")
    return (Captured("xplane", ask(seconds, loopback(host), port), f"port {port}"),)


def record_live(seconds: float, *, port: int | None = None, host: str = "127.0.0.1") -> Timeline:
    """As `capture_live`, read and judged: all traces on one axis."""
    captured = capture_live(seconds, port=port, host=host)
    columns = Columns.merged([_columns(trace) for trace in captured])
    where = "other threads of this process" if port is None else f"port {port}"
    timeline = Timeline(columns, label=f"{where}, {seconds:g} s", machine=machine())
    keep_last(timeline.report)
    return timeline


def _columns(trace: Captured) -> Columns:
    """Columns without the anchor, on a clock that reads 0 at the anchor if there is one."""
    if trace.format == "xplane":
        columns = read_xplane(trace.data, trace.name)
    else:
        columns = read_chrome([trace.data], trace.name)
    anchors = columns.name == (columns.names.index(ANCHOR) if ANCHOR in columns.names else -1)
    if not anchors.any():
        return columns
    columns.origin_ns = -int(columns.start_ns[anchors.argmax()])
    return columns.where(~anchors)


Profile = Callable[[Path], AbstractContextManager[None]]
"""Runs a profiler; its trace lies in the folder when it has ended without an error."""


def _capture_here(seconds: float) -> tuple[Captured, ...]:
    profiles: list[Profile] = []
    # PyTorch's first: its start may take a second, which is in JAX's trace otherwise.
    if hasattr(loaded("torch"), "profiler"):
        profiles.append(partial(torch_profile, every_thread=True))
    if JaxDevice().lanes():
        profiles.append(jax_profile)
    if not profiles:
        raise NotSupportedHere(
            "--live sees what JAX and PyTorch do, and this process uses neither: train on another "
            "thread of it, or give --port N of a process that called jax.profiler.start_server(N)"
        )
    with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
        with ExitStack() as stack:
            for profile in profiles:
                stack.enter_context(profile(Path(folder)))
            with annotate(ANCHOR):
                pass
            _sleep(seconds)
        return tuple(_traces(Path(folder)))


def _traces(folder: Path) -> Iterator[Captured]:
    for file in folder.rglob("*.xplane.pb"):
        yield Captured("xplane", file.read_bytes(), "jax in this process")
    for file in folder.glob(TORCH_FILE):
        yield Captured("kineto", file.read_bytes(), "torch in this process")


def _sleep(seconds: float) -> None:
    """In slices, since not every interrupt ends a sleep."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, SLICE_S))
