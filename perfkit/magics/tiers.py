"""`%tiers [PATH...]`: the tier table of this machine, with proof of where the bytes came from."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from perfkit.errors import UsageError
from perfkit.magics import options
from perfkit.magics.options import Option
from perfkit.magics.show import deliver, show

if TYPE_CHECKING:
    from perfkit.tiers.table import TierSurvey

__all__ = ["NAME", "OPTIONS", "run"]

NAME = "tiers"


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 2 <= int(text) <= 1024:
        raise UsageError("give a whole number from 2")
    return int(text)


OPTIONS = (
    Option(("--plan",), "show what would be measured and written, and do nothing"),
    Option(("--quick",), "some 5 s for memory and 4 s for each file system (the default)"),
    Option(("--full",), "minutes, for figures to keep"),
    Option(("-b", "--budget"), "seconds for all of it", options.seconds, "S"),
    Option(("--ranks",), "read each PATH with so many processes at once as well", _ranks, "N"),
    Option(("--fill",), "PATH:persistent=yes,shared=no: keep an answer", options.text, "ANSWER"),
    Option(("--figure",), "draw bandwidth and latency over capacity"),
    options.OUTPUT,
    options.QUIET,
    options.NAME,
)


def run(shell: InteractiveShell, line: str) -> None:
    """Plan, show the plan, probe with a progress bar, show the table."""
    __tracebackhide__ = True
    from perfkit.tiers import answers
    from perfkit.tiers.plan import plan_tiers
    from perfkit.tiers.table import TierSurvey

    asked, rest = options.parse("%tiers", OPTIONS, line)
    if asked["quick"] and asked["full"]:
        raise UsageError("%tiers: --quick and --full are two ways: give one of them")
    if asked["fill"]:
        answers.keep(answers.parse(asked["fill"]))
        if not rest:
            return
    paths = _paths(rest)
    if asked["ranks"] and not paths:
        raise UsageError("%tiers: --ranks reads a PATH together: name one")
    plan = plan_tiers(paths, quick=not asked["full"], budget_s=asked["budget"])
    if asked["plan"]:
        show(plan)
        return
    with _Bar(quiet=asked["quiet"]) as bar:
        survey = TierSurvey(plan, label="%tiers", tick=bar.tick)
        if asked["ranks"]:
            survey.further += [partial(_together, survey, path, asked["ranks"]) for path in paths]
        try:
            survey.run()
        finally:
            # An interrupt leaves the rows so far.
            bar.close()
            if survey.table is not None:
                deliver(shell, survey.table, asked)
    table = survey.table
    if table is not None and asked["figure"] and not asked["quiet"]:
        from IPython.display import display

        from perfkit.render import tiers as view

        drawing = view.figure(table)
        display(drawing)
        _close(drawing)


def _paths(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"%tiers: {text!r}: {error}: quote a path with blanks") from None


def _together(survey: TierSurvey, path: str, count: int) -> None:
    from perfkit.tiers.together import advice_together

    probes, said = advice_together(path, count, quick=survey.plan.quick)
    survey.add(probes)
    survey.extra.append(said)


def _close(drawing: Any) -> None:
    import matplotlib.pyplot as pyplot

    pyplot.close(drawing)


class _Bar:
    """A progress bar that says what is measured, and is gone afterwards."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __enter__(self) -> _Bar:
        from perfkit.optional import require

        self._bar: Any = require("tqdm.auto", "%tiers").tqdm(
            total=100, leave=False, disable=self._quiet, bar_format="{desc} {bar} {n:.0f} %"
        )
        return self

    def tick(self, words: str, part: float) -> None:
        """Move on."""
        self._bar.set_description_str(words, refresh=False)
        self._bar.n = 100 * part
        # Without tqdm's lock: an interrupt while it draws would keep it, and others wait for it.
        self._bar.refresh(nolock=True)

    def close(self) -> None:
        """Take it away. Safe to call twice."""
        self._bar.close()

    def __exit__(self, *_: object) -> None:
        self.close()
