"""Where a device was busy in a trace, where it waited, and for whom."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from perfkit.errors import UsageError
from perfkit.measure.live import record_live
from perfkit.render import timeline as view
from perfkit.timeline.steps import parse_range
from perfkit.timeline.trace import Timeline, read_timeline

__all__ = ["HELP", "add_arguments", "run"]

HELP = "read a trace of PyTorch's or JAX's profiler, and say where the device waited"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "trace", nargs="?", metavar="FILE", help=".json, .json.gz, .xplane.pb or a folder of them"
    )
    parser.add_argument("--against", metavar="FILE", help="another trace: what changed")
    parser.add_argument("--steps", metavar="A:B", help="look at these steps alone")
    parser.add_argument("--save", metavar="FILE", help="write a trace that Perfetto opens")
    parser.add_argument(
        "--live", type=float, metavar="S", help="record the process behind --port, for so long"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of its profiler server")
    parser.add_argument("--json", action="store_true", help="the whole report as JSON")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """The report as text, or as JSON."""
    if arguments.further:
        raise UsageError("perfkit timeline takes nothing behind --")
    timeline = _timeline(arguments)
    if arguments.save:
        timeline.save(arguments.save)
    yield timeline.to_json() if arguments.json else view.text(timeline.report)


def _timeline(arguments: argparse.Namespace) -> Timeline:
    if arguments.live is not None:
        if arguments.trace:
            raise UsageError(f"--live records what runs now: leave {arguments.trace!r} out")
        if arguments.port is None:
            raise UsageError("--live needs --port N, where a process serves its profiler")
        return record_live(arguments.live, port=arguments.port)
    if arguments.port is not None:
        raise UsageError("--port goes with --live SECONDS")
    if arguments.trace is None:
        raise UsageError("perfkit timeline needs a trace: perfkit timeline FILE")
    steps = None if arguments.steps is None else parse_range(arguments.steps)
    return read_timeline(arguments.trace, against=arguments.against, steps=steps)
