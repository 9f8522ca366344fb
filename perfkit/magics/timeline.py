"""`%%timeline`: when a cell kept its device busy, where it waited, and for whom.

`%timeline FILE` does the same for a trace that somebody recorded, and for the name of a record of
%%gpu_time; `%timeline --live SECONDS` for a training that runs in another thread, or with --port
in another process.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Image, display

from perfkit.errors import UsageError
from perfkit.magics import options
from perfkit.magics.cell import Body
from perfkit.magics.options import Option
from perfkit.magics.show import deliver

if TYPE_CHECKING:
    from perfkit.measure.timeline import Runs
    from perfkit.records.timing import Timing
    from perfkit.timeline.trace import Timeline

__all__ = ["NAME", "OPTIONS", "begin", "run"]

NAME = "timeline"


def _steps(text: str) -> tuple[int, int]:
    from perfkit.timeline.steps import parse_range

    return parse_range(text)


AGAINST = Option(("--against",), "another trace: what changed", options.text, "FILE")
STEPS = Option(("--steps",), "look at these steps alone", _steps, "A:B")
LIVE = Option(("--live",), "record what runs now, for so long", options.seconds, "S")
PORT = Option(("--port",), "of the profiler server of another process", options.port, "N")
OPTIONS = (
    options.OUTPUT,
    options.QUIET,
    options.NAME,
    options.BACKEND,
    Option(("--figure",), "draw it as a picture of its own (PNG)"),
    Option(("--widget",), "zoom, search, and click a gap to see its cause"),
    Option(("--save",), "write a trace that Perfetto opens", options.text, "FILE"),
    AGAINST,
    STEPS,
    LIVE,
    PORT,
)
LINE_ONLY = (AGAINST, STEPS, LIVE, PORT)


def begin(shell: InteractiveShell, line: str, end: Callable[[], None], body: Body) -> Runs:
    """The one run of a cell, recorded."""
    __tracebackhide__ = True
    from perfkit.devices.detect import devices_in_use
    from perfkit.measure.timeline import TimelineRecording

    asked, rest = options.parse(body.label, OPTIONS, line)
    wrong = next((option for option in LINE_ONLY if asked[option.name] is not None), None)
    if wrong is not None:
        raise UsageError(f"{body.label}: {wrong.flags[-1]} belongs to a trace file: %timeline FILE")
    if rest:
        raise UsageError(
            f"{body.label}: {rest!r} is no option: write the code to record below the first line"
        )
    devices_in_use(asked["backend"])

    def done(timeline: Timeline | None) -> None:
        end()
        if timeline is not None:
            _deliver(shell, timeline, asked)

    return TimelineRecording(label=body.label, backends=asked["backend"], done=done).runs()


def run(shell: InteractiveShell, line: str) -> None:
    """A trace file, or what runs now."""
    __tracebackhide__ = True
    asked, rest = options.parse("%timeline", OPTIONS, line)
    paths = []
    while rest:
        path, rest = _first_word(rest)
        paths.append(path)
        more, rest = options.parse("%timeline", OPTIONS, rest)
        asked |= {name: value for name, value in more.items() if value not in (None, False)}
    _deliver(shell, _timeline([_source(shell, path) for path in paths], asked), asked)


def _source(shell: InteractiveShell, word: str) -> str | Timing:
    """A path, or the record of a %%gpu_time that has this name."""
    from perfkit.records.timing import Timing

    value = shell.user_ns.get(word)
    return value if isinstance(value, Timing) else word


def _first_word(text: str) -> tuple[str, str]:
    """The first word, quotes taken off, and what stands behind it."""
    stream = io.StringIO(text)
    words = shlex.shlex(stream, posix=True)
    words.whitespace_split, words.commenters = True, ""
    try:
        return words.get_token() or "", stream.read()
    except ValueError as error:
        raise UsageError(f"%timeline: {text!r}: {error}: quote a path with blanks") from None


def _timeline(paths: list[str | Timing], asked: dict[str, Any]) -> Timeline:
    from perfkit.timeline.trace import read_timeline

    if asked["live"] is not None:
        from perfkit.measure.live import record_live

        if paths:
            raise UsageError(f"%timeline: --live records what runs now: leave {paths[0]!r} out")
        return record_live(asked["live"], port=asked["port"])
    if asked["port"] is not None:
        raise UsageError("%timeline: --port goes with --live SECONDS")
    if len(paths) != 1:
        raise UsageError(
            "%timeline: give one trace file (.json, .json.gz, .xplane.pb), or --live SECONDS; a "
            "cell is recorded by %%timeline on its first line"
        )
    return read_timeline(paths[0], against=asked["against"], steps=asked["steps"])


def _deliver(shell: InteractiveShell, timeline: Timeline, asked: dict[str, Any]) -> None:
    report = timeline.report
    if asked["save"]:
        timeline.save(asked["save"])
    deliver(shell, report, asked)
    if asked["output"]:
        shell.user_ns[asked["output"]] = timeline
    if asked["figure"] and not asked["quiet"]:
        from perfkit.render.timeline_picture import png

        display(Image(data=png(report)))
    if asked["widget"] and not asked["quiet"]:
        from perfkit.render.timeline_widget import TimelineWidget

        # The report stands by itself: a front end without a kernel shows no widget.
        display(TimelineWidget(timeline.columns, report, alone=False))
