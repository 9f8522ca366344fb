"""What this machine really gives, which numeric libraries are in use, and what to put right."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from perfkit.errors import UsageError
from perfkit.measure.doctor import diagnose
from perfkit.render import doctor as view

__all__ = ["HELP", "add_arguments", "run"]

HELP = "examine the machine, its limits and its numeric libraries"
_FIRST = ("machine", "limits", "libraries", "gpus", "findings")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--bench", action="store_true", help="measure matrix products, some 6 s")
    parser.add_argument(
        "--no-import", action="store_true", help="do not import the packages that are installed"
    )
    parser.add_argument("--json", action="store_true", help="one object, for a support ticket")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """The report, or one JSON object with the most important keys first."""
    if arguments.further:
        raise UsageError("perfkit doctor takes nothing behind --")
    seen = diagnose(bench=arguments.bench, import_all=not arguments.no_import)
    if arguments.json:
        facts = msgspec.to_builtins(seen)
        ordered = {key: facts[key] for key in _FIRST} | facts
        yield msgspec.json.format(msgspec.json.encode(ordered)).decode()
    else:
        yield view.text(seen).replace("%doctor", "perfkit doctor")
