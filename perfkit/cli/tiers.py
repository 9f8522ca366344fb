"""The tier table of this machine: memory, file systems, devices, with proof."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from perfkit.errors import UsageError
from perfkit.ranks import local
from perfkit.ranks.world import world_size
from perfkit.render import tiers as view
from perfkit.tiers.cluster import main_rank, probe_together
from perfkit.tiers.plan import plan_tiers
from perfkit.tiers.table import TierSurvey
from perfkit.tiers.together import sentence_of

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
    parser.add_argument(
        "--together",
        type=int,
        metavar="N",
        help="read each PATH with N processes at once, alone before; under mpiexec, with its ranks",
    )
    parser.add_argument("--json", action="store_true", help="one probe a line")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """The plan, then the table; or one JSON record a line."""
    if arguments.further:
        raise UsageError("perfkit tiers takes nothing behind --")
    many = arguments.together is not None or world_size() > 1
    if many and not arguments.plan:
        yield from _together(arguments)
        return
    plan = plan_tiers(arguments.paths, quick=not arguments.full, budget_s=arguments.budget)
    if arguments.plan:
        yield plan.to_json() if arguments.json else view.text(plan)
        return
    if not arguments.json:
        yield view.text(plan).replace("; nothing has been done yet", "")
        yield ""
    table = TierSurvey(plan).run()
    yield table.json_lines() if arguments.json else view.text(table)


def _together(arguments: argparse.Namespace) -> Iterator[str]:
    """The same probe on many processes at once; under mpiexec only rank 0 prints."""
    if not arguments.paths:
        raise UsageError("perfkit tiers --together reads a PATH with many processes: name one")
    if arguments.together is not None and arguments.together < 2 and world_size() < 2:
        raise UsageError(f"--together {arguments.together}: give a whole number from 2")
    for path in arguments.paths:
        quick = not arguments.full
        if world_size() > 1:
            probes = main_rank(path, quick=quick)
        else:
            with local(arguments.together) as ranks:
                probes = probe_together(path, ranks, quick=quick)
        if probes is None:
            continue
        if arguments.json:
            yield from (probe.to_json() for probe in probes)
        else:
            yield sentence_of(path, probes)
