"""`perfkit SUBJECT ...`: parse, run, print. Errors are one line on stderr and status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from perfkit.cli import doctor, lab, results, tiers, timeline
from perfkit.errors import PerfkitError, UsageError

__all__ = ["SUBJECTS", "main"]

SUBJECTS = {
    "doctor": doctor,
    "lab": lab,
    "results": results,
    "tiers": tiers,
    "timeline": timeline,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 after an error, 130 if interrupted."""
    try:
        for line in _run(sys.argv[1:] if argv is None else argv):
            print(line, flush=True)
    except PerfkitError as error:
        print(f"perfkit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("perfkit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has seen enough, as in `perfkit results | head`: no traceback at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(argv: Sequence[str]) -> Iterator[str]:
    """The lines of one command, as they come. What stands behind `--` is another program's."""
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = _parser().parse_args(argv[:cut] or ["--help"])
    arguments.further = list(argv[cut + 1 :])
    yield from SUBJECTS[arguments.subject].run(arguments)


def _parser() -> _Parser:
    parser = _Parser(
        prog="perfkit",
        description="Honest performance measurement in notebooks.",
        allow_abbrev=False,
    )
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for name, subject in SUBJECTS.items():
        own = subjects.add_parser(
            name, help=subject.HELP, description=subject.__doc__, allow_abbrev=False
        )
        subject.add_arguments(own)
    return parser


if __name__ == "__main__":
    sys.exit(main())
