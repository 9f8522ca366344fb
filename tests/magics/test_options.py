"""The options of the magics: the parser alone."""

from __future__ import annotations

import pytest

from perfkit.errors import UsageError
from perfkit.magics.gpu_time import OPTIONS
from perfkit.magics.options import Option, flags_of, help_of, parse

DEFAULTS = {
    "repeat": 1,
    "warmup": None,
    "budget": 2.0,
    "output": None,
    "quiet": False,
    "name": None,
    "backend": None,
    "cold": False,
    "trace": False,
    "graph": False,
    "no_sync": False,
}


@pytest.mark.parametrize("line", ["", "   ", "# why", "  # -r 5", "--", "-- "])
def test_defaults(line):
    """A line without options gives the defaults and no code."""
    assert parse("%%m", OPTIONS, line) == (DEFAULTS, "")


GIVEN = {
    "-r 5": {"repeat": 5},
    "-r5": {"repeat": 5},
    "-r=5": {"repeat": 5},
    "--repeat 5": {"repeat": 5},
    "--repeat=5": {"repeat": 5},
    "-r auto": {"repeat": "auto"},
    "-rauto": {"repeat": "auto"},
    "-r 2 -r 3": {"repeat": 3},
    "-w 0": {"warmup": 0},
    "--warmup 7": {"warmup": 7},
    "-b 0.5": {"budget": 0.5},
    "--budget=1e-3": {"budget": 0.001},
    "-o t1": {"output": "t1"},
    "--output été": {"output": "été"},
    "-q": {"quiet": True},
    "--quiet --cold --no-sync": {"quiet": True, "cold": True, "no_sync": True},
    "--name first": {"name": "first"},
    "--name 'two words'": {"name": "two words"},
    '--name "two words"': {"name": "two words"},
    "--name=first": {"name": "first"},
    "--name='two words'": {"name": "two words"},
    "--backend thread": {"backend": ("thread",)},
    "--backend thread,opencl": {"backend": ("thread", "opencl")},
    "  -q\t-r  5  ": {"quiet": True, "repeat": 5},
}


@pytest.mark.parametrize("line", GIVEN)
def test_values(line):
    """Each way of giving a value is understood, and touches no other option."""
    assert parse("%%m", OPTIONS, line) == (DEFAULTS | GIVEN[line], "")


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "f(x) -r 5",
        "x  =  '  -q  '",
        "-5 + x",
        "-(x)",
        "s = '# kept'",
        "!echo -n x",
        "%time x",
        "*a, b = c",
    ],
)
@pytest.mark.parametrize("front", ["", "-q ", "-r 5 -o t ", "-q -- "])
def test_code_behind(front, code):
    """Text behind the options is left as it stands, options in it too."""
    given, rest = parse("%m", OPTIONS, front + code)
    assert rest == code
    assert given["quiet"] == ("-q" in front) and given["repeat"] == (5 if "5" in front else 1)


def test_two_dashes_end_the_options():
    """Behind `--` nothing is an option, so that code may start with a minus."""
    assert parse("%m", OPTIONS, "-q -- -x") == (DEFAULTS | {"quiet": True}, "-x")


WRONG = {
    "--repeet 3": "option --repeet is not known: did you mean --repeat?",
    "--rep 3": "did you mean --repeat?",
    "--nosync": "did you mean --no-sync?",
    "--sync": "option --sync is not known",
    "-x": "there are -b, --backend",
    "-R 5": "option -R is not known",
    "--zzzzzzzz": "there are -b, --backend",
    "-r": "-r needs a value: -r N|auto",
    "-q --repeat": "--repeat needs a value: --repeat N|auto",
    "-r -q": "-r -q: give a whole number from 1, or auto",
    "-r 0": "give a whole number from 1, or auto",
    "-r -1": "give a whole number from 1, or auto",
    "-r 2.5": "give a whole number from 1, or auto",
    "-r ²": "give a whole number from 1, or auto",
    "-r Auto": "give a whole number from 1, or auto",
    "-w -1": "give a whole number from 0",
    "-w auto": "give a whole number from 0",
    "-b 0": "give seconds above 0",
    "-b -1": "give seconds above 0",
    "-b nan": "give seconds above 0",
    "-b inf": "give seconds above 0",
    "-b 2s": "give seconds above 0",
    "-o 2x": "give a Python name, such as t1",
    "-o a.b": "give a Python name, such as t1",
    "-o class": "give a Python name, such as t1",
    "--backend ,": "give names with commas between",
    "-q=1": "-q",
    "-qr 5": "-q",
    "--quiet=yes": "--quiet",
    "--name=": "--name",
    "--name ''": "--name",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong(line):
    """What is not right is refused in one line that has the magic's name and the right form."""
    with pytest.raises(UsageError) as caught:
        parse("%%m", OPTIONS, line)
    text = str(caught.value)
    assert text.startswith("%%m: ") and WRONG[line] in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_has_each_option(option):
    """The help has one line for each option: flags, what its value looks like, what it does."""
    (line,) = [row for row in help_of(OPTIONS).splitlines() if option.flags[-1] in row.split()]
    assert line.split(option.help)[0].split() == [
        *", ".join(option.flags).split(),
        *option.metavar.split(),
    ]
    assert line.endswith(option.help)


def test_help_is_aligned():
    """The descriptions start in one column."""
    rows = zip(help_of(OPTIONS).splitlines(), OPTIONS, strict=True)
    assert len({row.index(option.help) for row, option in rows}) == 1


def test_flags():
    """All flags are offered, each once, and each names its own option."""
    flags = flags_of(OPTIONS)
    assert len(set(flags)) == len(flags) == sum(len(option.flags) for option in OPTIONS)
    assert {"-r", "--repeat", "--no-sync"} <= set(flags)


def test_name_of_an_option():
    """An option's key is its long flag as an identifier."""
    assert [option.name for option in OPTIONS] == list(DEFAULTS)
    assert Option(("-a", "--as-it-is"), "help").name == "as_it_is"
