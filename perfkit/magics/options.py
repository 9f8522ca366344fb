"""Options of the magics and of the command line: declared once, parsed here, completed here."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perfkit.errors import UsageError

__all__ = [
    "BACKEND",
    "BUDGET",
    "COLD",
    "GRAPH",
    "NAME",
    "OUTPUT",
    "QUIET",
    "REPEAT",
    "TRACE",
    "WARMUP",
    "Option",
    "flags_of",
    "help_of",
    "parse",
    "port",
    "seconds",
    "text",
]


class Option(NamedTuple):
    """One option. `convert` makes its value from text and raises UsageError with what is wanted;
    without `convert` it is a switch. `many`: it may stand several times, and gives a tuple.
    """

    flags: tuple[str, ...]
    help: str
    convert: Callable[[str], Any] | None = None
    metavar: str = ""
    default: Any = None
    many: bool = False

    @property
    def name(self) -> str:
        """The key in what `parse` returns: the long flag as an identifier."""
        return self.flags[-1].lstrip("-").replace("-", "_")


_TOKEN = re.compile(r"\s*(?P<flag>--?[A-Za-z][\w-]*)(?P<given>=(?:\"[^\"]*\"|'[^']*'|\S*))?")
_WORD = re.compile(r"\s*(\"[^\"]*\"|'[^']*'|\S+)")


def parse(magic: str, options: Sequence[Option], line: str) -> tuple[dict[str, Any], str]:
    """Options at the front of `line`, and the text behind them as it stands.

    Raises UsageError in one line for an option that is not known or a value that is not right.
    """
    values: dict[str, Any] = {
        option.name: option.default if option.convert else False for option in options
    }
    by_flag = {flag: option for option in options for flag in option.flags}
    rest = line
    while token := _TOKEN.match(rest):
        flag, given, rest = token["flag"], token["given"], rest[token.end() :]
        if flag not in by_flag and not flag.startswith("--") and flag[:2] in by_flag:
            # One-letter options may be glued to their value, as in timeit's -r5.
            flag, given = flag[:2], "=" + flag[2:]
        option = by_flag.get(flag)
        if option is None:
            raise UsageError(f"{magic}: {_unknown(flag, by_flag)}")
        if option.convert is None:
            if given:
                raise UsageError(f"{magic}: {flag} takes no value: write {flag} alone")
            values[option.name] = True
            continue
        if given is None:
            word = _WORD.match(rest)
            if word is None:
                raise UsageError(f"{magic}: {flag} needs a value: {flag} {option.metavar}")
            given, rest = "=" + word[1], rest[word.end() :]
        try:
            value = option.convert(_unquoted(given[1:]))
        except UsageError as error:
            raise UsageError(f"{magic}: {flag} {given[1:]}: {error}") from None
        values[option.name] = (*(values[option.name] or ()), value) if option.many else value
    rest = rest.strip()
    if rest == "--" or rest.startswith("-- "):
        rest = rest[2:].lstrip()
    return values, "" if rest.startswith("#") else rest


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _unknown(flag: str, by_flag: dict[str, Option]) -> str:
    alike = [known for known in by_flag if known.startswith("--") == flag.startswith("--")]
    close = difflib.get_close_matches(flag, alike, n=1)
    known = ", ".join(sorted(by_flag, key=lambda f: f.lstrip("-")))
    return f"option {flag} is not known: " + (
        f"did you mean {close[0]}?" if close else f"there are {known}"
    )


def flags_of(options: Sequence[Option]) -> list[str]:
    """All flags, for completion."""
    return [flag for option in options for flag in option.flags]


def help_of(options: Sequence[Option]) -> str:
    """The options as an indented list, for a magic's docstring."""
    heads = [f"{', '.join(o.flags)} {o.metavar}".strip() for o in options]
    width = max(map(len, heads))
    return "\n".join(
        f"  {head:<{width}}  {option.help}" for head, option in zip(heads, options, strict=True)
    )


def _whole(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise UsageError(f"give a whole number from {least}")
        return int(text)

    return convert


def _repeat(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return _whole(1)(text)
    except UsageError:
        raise UsageError("give a whole number from 1, or auto") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError("give seconds above 0")
    return value


def seconds(text: str) -> float:
    """Seconds above 0, for options of single magics."""
    return _seconds(text)


def text(value: str) -> str:
    """Text that is not empty, for options of single magics."""
    return _text(value)


def port(text: str) -> int:
    """The number of a port, for options of single magics."""
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 2**16:
        raise UsageError("give a port from 1 to 65535")
    return int(text)


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise UsageError("give a Python name, such as t1")
    return text


def _text(text: str) -> str:
    if not text.strip():
        raise UsageError("give a name that is not empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise UsageError("give names with commas between, such as opencl,thread")
    return names


REPEAT = Option(
    ("-r", "--repeat"), "samples to take, or auto (default 1: run once)", _repeat, "N|auto", 1
)
WARMUP = Option(("-w", "--warmup"), "runs before sampling (default: by time)", _whole(0), "N")
BUDGET = Option(
    ("-b", "--budget"), "seconds that sampling may take (default 2)", _seconds, "S", 2.0
)
OUTPUT = Option(("-o", "--output"), "bind the record to this name", _identifier, "NAME")
QUIET = Option(("-q", "--quiet"), "show no report")
NAME = Option(("--name",), "keep the record in the ledger under this name", _text, "NAME")
BACKEND = Option(("--backend",), "watch only these runtimes", _names, "A,B")
TRACE = Option(
    ("--trace",), "one run more, under the runtime's profiler (JAX; CUDA where torch is loaded)"
)
GRAPH = Option(("--graph",), "capture the work as a graph and time its replay (CUDA)")
COLD = Option(("--cold",), "displace the caches before every sample")
