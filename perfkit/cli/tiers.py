"""The tier table of this machine: memory, file systems, devices, with proof."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from perfkit.errors import UsageError
from perfkit.render import tiers as view
from perfkit.tiers.plan import plan_tiers
from perfkit.tiers.table import TierSurvey

__all__ = ["HELP", "add_arguments", "run"]

HELP = "measure the memory, the file systems and the devices of this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="folders to measure as well")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--quick", action="store_true", help="some seconds for each (the default)")
    way.add_argument("--full", action="store_true", help="minutes, for figures to keep")
    parser.add_argument("--plan", action="store_true", help="show what would be done, and stop")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds for all of it")
    parser.add_argument("--json", action="store_true", help="one probe a line")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """The plan, then the table; or one JSON record a line."""
    if arguments.further:
        raise UsageError("perfkit tiers takes nothing behind --")
    plan = plan_tiers(arguments.paths, quick=not arguments.full, budget_s=arguments.budget)
    if arguments.plan:
        yield plan.to_json() if arguments.json else view.text(plan)
        return
    if not arguments.json:
        yield view.text(plan).replace("; nothing has been done yet", "")
        yield ""
    table = TierSurvey(plan).run()
    yield table.json_lines() if arguments.json else view.text(table)
