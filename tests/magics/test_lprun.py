"""`%lprun` and `%%lprun` in real kernels: what people know of line_profiler, and what it lacks."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from bs4 import BeautifulSoup

F = "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total"
MODULE = """\
def top(n):
    s = 0
    for i in range(n):
        s += low(i)
    return s


def low(i):
    return i + 1


class K:
    def m(self):
        return low(2)
"""
TARGETS = """
lam = lambda k: k
def gen():
    yield 1
made = gen()
exec("def execd():\\n    return 1")
"""
"""What is no target for `-f`."""
STATE = """
import builtins, signal, sys, threading
def state():
    alarm = [str(signal.getsignal(signal.SIGALRM)), signal.getitimer(signal.ITIMER_REAL)[0]]
    threads = sorted(t.name for t in threading.enumerate())
    streams = [id(sys.stdout), id(sys.stderr), sys.getswitchinterval()]
    tracing = [str(sys.gettrace()), str(sys.getprofile()), hasattr(builtins, "profile")]
    begins = str(threading.Thread._bootstrap_inner)
    return [alarm, threads, streams, tracing, begins]
"""
REPAIR = """
import builtins, os, signal, sys
sys.settrace(None)
sys.setprofile(None)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
vars(builtins).pop("profile", None)
shell = get_ipython()
for name in "_", "__", "___":
    shell.user_ns[name] = shell.user_ns_hidden[name] = getattr(shell.displayhook, name)
del name, shell
os.environ.pop("PERFKIT_OUTPUT", None)
"""
"""What one test leaves behind must not fail the next."""


@pytest.fixture
def user(kernel):
    """A kernel with the user's function `f`, and the user's module `usermod` imported."""
    (kernel.folder / "usermod.py").write_text(MODULE)
    made = kernel.run(f"{F}\n{REPAIR}import usermod, time, math, perfkit\n{TARGETS}")
    assert made.status == "ok", made.traceback
    return kernel


def _rows(kernel, name="p"):
    return kernel.value(f"[[s.function, s.line, s.hits] for s in {name}.statements]")


def _of_f(n, calls=1):
    return [["f", 2, calls], ["f", 3, n + calls], ["f", 4, n], ["f", 5, calls]]


def _message(cell):
    """The one line of a cell that a tool in our way, or a wrong target, has failed."""
    assert cell.reports == []
    return cell.usage_error


# -- line_profiler's habits ------------------------------------------------------------------------

FUNCTIONS = {
    "-f f": ["f"],
    "-f f -f usermod.low": ["f", "low"],
    "-f usermod.K.m": ["K.m"],
    "-f k.m": ["K.m"],
    "-f usermod.K": ["K.m"],
    "-f usermod.top -f usermod.top": ["top"],
    "--function f --function=usermod.K": ["K.m", "f"],
    "-m usermod": ["K.m", "low", "top"],
    "-m usermod -f f": ["K.m", "f", "low", "top"],
}


@pytest.mark.parametrize("options", FUNCTIONS)
def test_functions_of_the_line_form(user, options):
    """The line form profiles exactly the functions that `-f` and `-m` name."""
    user.run("k = usermod.K()\ndef work():\n    return f(3) + usermod.top(2) + k.m()")
    cell = user.run(f"%lprun --exact -o p {options} work()")
    assert (cell.status, cell.stderr, len(cell.reports)) == ("ok", "", 1)
    assert sorted({function for function, _, _ in _rows(user)}) == FUNCTIONS[options]


def test_line_form_finds_functions(user):
    """Without `-f` the line form profiles the user's functions that the code names."""
    user.run("%lprun --exact -o p f(4)")
    assert _rows(user) == _of_f(4)
    assert user.value("p.label") == "%lprun"


def test_hits_of_several_functions(user):
    """Hits are counted by function: all calls, each turn of a loop and its end."""
    user.run("%lprun --exact -o p -m usermod usermod.top(3)")
    assert [row for row in _rows(user) if row[2]] == [
        *(["top", 2, 1], ["top", 3, 4], ["top", 4, 3], ["top", 5, 1], ["low", 9, 3])
    ]


def test_return_of_the_line_form(user):
    """`r = %lprun -r ...` makes the record the line's value, which has the report too."""
    cell = user.run("r = %lprun --exact -r -f f f(5)")
    assert (cell.status, len(cell.reports)) == ("ok", 1)
    assert user.value("[type(r).__name__, r is perfkit.last()]") == ["LineProfile", True]
    assert _rows(user, "r") == _of_f(5)


def test_line_form_without_return(user):
    """Without `-r` the line form has no value, as line_profiler's."""
    assert user.run("r = %lprun -f f f(5)").results == []
    assert user.value("r") is None


def test_return_of_the_cell_form(user):
    """With `-r` the record is `_` in the next cell, and `_` goes on as usual after it."""
    user.run("%%lprun -r\nf(5);")
    assert user.run("type(_).__name__").results == ["'LineProfile'"]
    user.run("41 + 1")
    assert user.run("_ + 1").results == ["43"]


def test_dump(user, tmp_path):
    """`-D` writes what `python -m line_profiler` prints with the same hits."""
    file = tmp_path / "p.lprof"
    assert user.run(f"%%lprun --exact -D {file}\nusermod.top(3)\nf(2)").status == "ok"
    command = [sys.executable, "-m", "line_profiler", str(file)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (top,) = [part for part in printed.split("Total time") if "Function: top" in part]
    seen = re.findall(r"^ +(\d+) +(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +(\S+)", top, re.M)
    assert seen == [("2", "1", "s"), ("3", "4", "for"), ("4", "3", "s"), ("5", "1", "return")]
    assert re.search(r"^ +4 +2 +[\d.]+ +[\d.]+ +[\d.]+ *$", printed, re.M)


def test_dump_is_read_by_line_profiler(user, tmp_path):
    """A dump is line_profiler's own LineStats, with times in seconds that the record has."""
    file = tmp_path / "p.lprof"
    user.run(f"%lprun -q --exact -o p -D '{file}' -f f f(3)")
    user.run(f"import line_profiler\nstats = line_profiler.load_stats({str(file)!r})")
    assert user.value("[[k[2], [list(r[:2]) for r in v]] for k, v in stats.timings.items()]") == [
        ["f", [[2, 1], [3, 4], [4, 3], [5, 1]]]
    ]
    total = "sum(r[2] for v in stats.timings.values() for r in v) * stats.unit"
    assert user.value(f"abs({total} - sum(s.time_s for s in p.statements)) < 1e-6") is True


@pytest.mark.parametrize("form", ["%%lprun {}\nf(3)", "%lprun {} f(3)"])
def test_text(user, tmp_path, form):
    """`-T` writes the report's text, also when nothing is shown."""
    file, quiet = tmp_path / "p.txt", tmp_path / "q.txt"
    cell = user.run(form.format(f"-T {file}"))
    assert file.read_text() == cell.report["text/plain"] + "\n"
    assert user.run(form.format(f"-q -T {quiet}")).displays == []
    assert "total += i" in quiet.read_text()


def test_files_of_a_failed_cell(user, tmp_path):
    """A cell that fails writes its partial report and statistics all the same."""
    text, dump = tmp_path / "p.txt", tmp_path / "p.lprof"
    cell = user.run(f"%%lprun -T {text} -D {dump}\nf(3)\n1 / 0")
    assert (cell.error, dump.stat().st_size > 0) == ("ZeroDivisionError", True)
    assert text.read_text() == cell.report["text/plain"] + "\n"


@pytest.mark.parametrize("option", ["-T", "-D"])
def test_file_that_cannot_be_written(user, option):
    """A file that cannot be written fails the cell in one line, behind report and record."""
    cell = user.run(f"%%lprun -o p {option} /dev/full\nf(3)")
    assert (cell.status, len(cell.reports)) == ("error", 1)
    shown = (cell.traceback + cell.stderr).strip()
    assert len(shown.splitlines()) == 1 and "/dev/full" in shown
    assert _rows(user)[1:] == _of_f(3)
    assert len(user.run("%%lprun\nf(3)").reports) == 1


@pytest.mark.parametrize("unit", ["1e-3", "1e-06", "1"])
def test_unit(user, unit):
    """`-u` shows times as plain numbers in that unit, and the report names it."""
    cell = user.run(f"%%lprun --exact -u {unit} -o p\ntime.sleep(0.02)")
    text = cell.report["text/plain"]
    (row,) = [line for line in text.splitlines() if line.endswith("time.sleep(0.02)")]
    shown = float(row.split()[1].replace(",", ""))
    assert user.value(f"abs({shown} * {unit} / p.statements[0].time_s - 1) < 1e-3") is True
    assert f"units of {float(unit):g} s" in text
    assert f"units of {float(unit):g} s" in cell.report["text/html"]


@pytest.mark.parametrize("option", ["-z", "-s", "--strip-zero"])
def test_strip_zero(user, option):
    """`-z` and `-s` leave out what did not run; without them it is there."""
    user.run("def g(n):\n    if n:\n        return 'ran'\n    return 'idle'")
    body = "\nif not f:\n    never = 1\ng(1)"
    full, short = user.run("%%lprun" + body).report, user.run(f"%%lprun {option}" + body).report
    for kind in ("text/plain", "text/html"):
        words = BeautifulSoup(short[kind], "html.parser").get_text()
        assert "never" in full[kind] and "never" not in short[kind]
        assert "'ran'" in words and "'idle'" not in words


def test_profile_decorator(user):
    """`@profile` in a cell marks a function and leaves it as it is, a method or class too."""
    user.run(
        "%%lprun --exact -o p\n@profile\ndef g(n):\n    return n + 1\n@profile\nclass C:\n"
        "    def m(self):\n        return g(1)\n\n    @staticmethod\n    @profile\n"
        "    def s():\n        return 2\nkept = [g(1), C().m(), C.s(), g.__name__]"
    )
    assert user.value("kept") == [2, 2, 2, "g"]
    inside = [row for row in _rows(user) if row[0] != "<cell>"]
    assert sorted(inside) == [["C.m", 8, 1], ["C.s", 13, 1], ["g", 4, 2]]
    assert user.value("g(1)") == 2


@pytest.mark.parametrize(
    "cell",
    [
        "%%lprun\nkept = profile",
        "%%lprun\nkept = profile\n1 / 0",
        "%%lprun --sync\nkept = profile\n1 / 0",
        "%lprun kept = profile",
        "%%lprun --twice\nkept = profile\nraise SystemExit",
    ],
)
def test_profile_is_bound_during_the_cell(user, cell):
    """The builtin name `profile` is there while the code runs and gone afterwards."""
    user.run(cell)
    assert user.value("[callable(kept), hasattr(__import__('builtins'), 'profile')]") == [
        True,
        False,
    ]


@pytest.mark.parametrize("cell", ["%%lprun\nx = = 1", "%%lprun -f len\n1", "%%lprun -f no\n1"])
def test_profile_is_gone_after_a_refusal(user, cell):
    """A cell that never ran leaves no `profile`."""
    assert user.run(cell).status == "error"
    assert user.value("hasattr(__import__('builtins'), 'profile')") is False


@pytest.mark.parametrize("cell", ["%%lprun\nf(1)", "%lprun -f f f(1)", "%%lprun\n1 / 0"])
def test_profile_of_the_user(user, cell):
    """A user's own `builtins.profile` is the same object afterwards."""
    user.run("import builtins\nbuiltins.profile = mine = lambda fn: fn")
    user.run(cell)
    assert user.value("builtins.profile is mine") is True


# -- the report ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["%%lprun\nf(3)", "%lprun f(3)", "%%lprun --exact -z\nf(3)"])
def test_report_is_an_ordinary_output(user, cell):
    """The report is a display_data with text, HTML and JSON: no pager, nothing on a stream."""
    done = user.run(cell)
    assert (done.status, done.pages, done.stdout, done.stderr) == ("ok", [], "", "")
    assert set(done.report) == {
        *("text/plain", "text/html", "application/vnd.perfkit.lines.v1+json")
    }
    for row in ("total = 0", "for i in range(n):", "total += i", "return total"):
        assert row in done.report["text/plain"]
        assert row in BeautifulSoup(done.report["text/html"], "html.parser").get_text()


def test_html_in_the_source(user):
    """HTML in the source is escaped in the HTML, stays in the text, and there is no script."""
    evil = "<script>alert('a & b')</script><img src=x onerror=y>"
    report = user.run(f'%%lprun\nx = "{evil}"\ny = x  # </td></table>').report
    page = BeautifulSoup(report["text/html"], "html.parser")
    assert page.find_all(["script", "img", "iframe", "link", "a"]) == []
    assert evil in report["text/plain"] and evil in page.get_text()
    attributes = {name for tag in page.find_all(True) for name in tag.attrs}
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")]


def test_nbclient(user):
    """A notebook run by nbclient has the report as an output, of a failing cell too."""
    notebook = user.run_notebook(
        "%load_ext perfkit\nimport ipywidgets\nipywidgets.IntSlider()",
        "%%lprun --widget\nsum(range(99))",
        "%%lprun\nx = 1\n1 / 0",
        "print('late')",
    )
    assert "ZeroDivisionError" in notebook.metadata["failure"]
    assert "sum(range(99))" in notebook.cells[1].outputs[0].data["text/plain"]
    report, error = notebook.cells[2].outputs
    assert "<table" in report.data["text/html"] and error.ename == "ZeroDivisionError"
    assert notebook.cells[3].outputs == []


def test_quiet_and_output(user):
    """`-q` shows nothing but what the body shows; `-o p` binds the record."""
    cell = user.run("%%lprun -q -o p\nprint('out')\nf(3)")
    assert (cell.displays, cell.stdout, cell.results) == ([], "out\n", ["3"])
    assert user.value("[perfkit.last() is p, p.label, type(p).__name__]") == [
        *(True, "%%lprun", "LineProfile")
    ]
    assert user.run("display(p)").displays == [user.run("display(perfkit.last())").report]


@pytest.mark.parametrize(
    "cell", ["%%lprun --name 'a b' -o p\nf(3)", "%lprun -q --name 'a b' -o p f(3)"]
)
def test_name(user, cell):
    """`--name` adds the record to the ledger, and without it nothing is written."""
    user.ledger.unlink(missing_ok=True)
    user.run("%%lprun\nf(3)")
    assert not user.ledger.exists()
    assert user.run(cell).status == "ok"
    (line,) = map(json.loads, user.ledger.read_text().splitlines())
    assert (line["name"], line["record"]["record"]) == ("a b", "LineProfile")
    assert line["record"] == json.loads(user.value("p.to_json()"))


STABLE = {
    "loop": "%%lprun\nfor i in range(3):\n    time.sleep({s})",
    "function": "%%lprun\ndef w(s):\n    for i in range(4):\n        time.sleep(s)\nw({s})\nw({s})",
    "error": "%%lprun\ntime.sleep({s})\n1 / 0",
    "exact": "%%lprun --exact\ntime.sleep({s})\nf(10)",
    "twice": "%%lprun --twice\ntime.sleep({s})\nf(10)",
    "memory": "%%lprun --memory\ntime.sleep({s})\nf(10)",
    "strip": "%%lprun -z -u 1e-3\nif {s} > 9:\n    x = 1\ntime.sleep({s})",
    "line": "%lprun [f(3), time.sleep({s})]",
}


@pytest.mark.parametrize("cell", STABLE.values(), ids=STABLE.keys())
def test_stable_output(user, cell):
    """With PERFKIT_OUTPUT=stable two runs that took different times show the same report."""
    user.run("import os\nos.environ['PERFKIT_OUTPUT'] = 'stable'")
    texts = []
    for s in (0.0002, 0.02):
        user.run("globals().pop('w', None);")
        report = user.run(cell.format(s=s)).report
        texts.append([report[k].replace(str(s), "S") for k in ("text/plain", "text/html")])
        assert not re.search(r"\d (s|ms|µs|ns|B|KiB)\b", texts[-1][0].replace("0.001 s", ""))
    user.run("del os.environ['PERFKIT_OUTPUT']")
    assert texts[0][0] == texts[1][0]
    assert texts[0] == texts[1]


# -- the same as without the magic -----------------------------------------------------------------

SAME = {
    "value": "x = 3\nx + 1",
    "semicolon": "x = 3\nx;  # not shown",
    "prints": "import sys\nprint('out')\ndisplay('shown')\nprint('bad', file=sys.stderr)\n3",
    "magics": "!echo shell\nlines = !echo captured\np = %pwd\nlines, len(p) > 0",
    "await": "import asyncio\nawait asyncio.sleep(0.002)\nx = await asyncio.sleep(0, 'up')\nx",
    "gather": "import asyncio\nasync def g(n):\n    await asyncio.sleep(0.001)\n    return n\n"
    "await asyncio.gather(g(1), g(2))",
    "async for": "async def count():\n    for i in range(3):\n        yield i\n"
    "async for i in count():\n    pass\n[i, [j async for j in count()]]",
    "async with": "from contextlib import asynccontextmanager\n@asynccontextmanager\n"
    "async def room():\n    yield 7\nasync with room() as seven:\n    x = seven\nx",
    "future": "from __future__ import annotations\ndef g(a: no): pass\ng.__annotations__",
    "getsource": "import inspect\ndef g():\n    return 17\n\ninspect.getsource(g), g.__module__",
    "generators": "def g():\n    x = yield 1\n    yield from [x, 3]\n    return 4\n"
    "it = g()\n[next(it), it.send(2), next(it), next(it, 'end')]",
    "recursion": "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(7)",
    "scopes": "n = 3\ng = lambda k: [n * k for _ in range(2)]\ng(2), (y := 5), {q for q in g(1)}",
    "class": "class C:\n    a = [i for i in range(3)]\n    @property\n    def p(self):\n"
    "        return __class__.a\nC().p",
    "control": "for i in range(9):\n    if i < 2:\n        continue\n    break\nelse:\n    i = -1\n"
    "while True:\n    break\ndel i",
    "match": "match {'a': [1, 2]}:\n    case {'a': [x, *y]} if x:\n        c = y\nc",
    "caught": "try:\n    1 / 0\nexcept Exception as e:\n    x = str(e)\nfinally:\n    y = 2\nx",
    "suppressed": "import contextlib\nwith contextlib.suppress(KeyError):\n    {}['a']\n'on'",
    "thread": "import threading\nout = []\nt = threading.Thread(target=lambda: out.append(1))\n"
    "t.start()\nt.join()\nout",
    "exec": "exec('made = 1\\ndef g():\\n    return made')\ng()",
    "windows line ends": "x = 1\r\nx + 1\r\n",
    "locals": "def g(a):\n    b = 2\n    return sorted(locals())\ng(1), 'x' in locals()",
    "frame": "import sys\ndef g():\n    return sys._getframe().f_back.f_lineno\ng()",
    "error": "x = 1\nx / 0\nx = 2",
    "error in a function": "def g(n):\n    return 1 / n\n\ng(1)\ng(0)\nx = 1",
    "error over lines": "x = [\n    1,\n    int('no'),\n]",
    "error in finally": "try:\n    1 / 0\nfinally:\n    x = 1",
    "error from error": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError(3) from e",
    "error after await": "import asyncio\nawait asyncio.sleep(0)\n1 / 0",
    "error in a generator": "def g():\n    yield 1\n    raise ValueError('late')\nlist(g())",
    "deep recursion": "def g(n):\n    return g(n + 1)\ntry:\n    g(0)\nexcept RecursionError:\n"
    "    x = 'deep'\nx",
    "exit": "import sys\nprint('before')\nsys.exit(3)",
    "syntax error": "x = 1\nx = = 2",
    "return": "if True:\n    return 3",
    "indentation error": "x = 1\n  y = 2",
    "open bracket": "x = (1,\n",
}


def _without_first_line(traceback):
    """Line 1 and the cell's number are all in which the two cells may differ."""
    kept = [line for line in traceback.splitlines() if not re.match(r" +1 ", line)]
    return re.sub(r"In\[\d+\]", "In[n]", "\n".join(kept))


@pytest.mark.parametrize("options", ["", " --sync"])
@pytest.mark.parametrize("body", SAME.values(), ids=SAME.keys())
def test_same_as_plain_cell(kernel, body, options):
    """A profiled cell gives the output, value, names, error and status of the plain cell."""
    names = "sorted(n for n in globals() if n[0] != '_')"
    kernel.run(REPAIR + "import warnings\nwarnings.filterwarnings('ignore', 'To exit')")
    kernel.clear()
    plain = kernel.run("# plain\n" + body)
    made = kernel.value(names)
    kernel.clear()
    done = kernel.run(f"%%lprun{options}\n{body}")
    assert (done.status, done.error, done.shown) == (plain.status, plain.error, plain.shown)
    assert _without_first_line(done.traceback) == _without_first_line(plain.traceback)
    assert kernel.value(names) == made
    assert len(done.reports) == ("SyntaxError" not in done.error and "Indent" not in done.error)
    assert kernel.value("[__import__('sys').gettrace(), __import__('sys').getprofile()]") == [
        *(None, None)
    ]


def test_value_is_shown_once(user):
    """The last expression is shown once, after the report, and is `_` and the cell's Out."""
    cell = user.run("%%lprun\nf(5)")
    kinds = [m["msg_type"] for m in cell.messages if m["msg_type"] != "execute_input"]
    assert kinds == ["status", "display_data", "execute_result"]
    count = cell.reply["execution_count"]
    assert user.run(f"_, Out[{count}]").results == ["(10, 10)"]
    assert user.value("[n for n in get_ipython().user_ns if 'perfkit_' in n]") == []


# -- errors and interrupts -------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", " --exact", " --sync", " --memory", " --twice"])
@pytest.mark.parametrize("last", ["bad()", "raise SystemExit"])
def test_failed_cell(user, options, last):
    """A failing cell shows its partial report, then its error; nothing of ours stays on."""
    user.run(STATE + "def bad():\n    a = 1\n    raise KeyError(a)")
    before = user.value("state()")
    cell = user.run(f"%%lprun -o p{options}\nf(3)\n{last}\nnever = 1")
    kinds = [m["msg_type"] for m in cell.messages if m["msg_type"] in ("display_data", "error")]
    assert (cell.status, kinds) == ("error", ["display_data", "error"])
    assert "Exception ignored" not in cell.stderr
    assert "stopped by" in cell.report["text/plain"] and "never" in cell.report["text/plain"]
    assert (user.value("state()"), user.value("bool(p.stopped)")) == (before, True)
    assert user.run("%%lprun\nf(3)").results == ["3"]


@pytest.mark.parametrize("options", ["", " --exact", " --sync"])
@pytest.mark.parametrize("last", ["1 / 0", "bad()"])
def test_hits_of_a_failed_cell(user, options, last):
    """What ran has its hits, the statement that failed too; what did not run has none."""
    user.run("def bad():\n    a = 1\n    raise KeyError(a)\n    return a")
    user.run(f"%%lprun -o p{options}\nf(3)\nx = 1\n{last}\nnever = 1")
    own = [row[1:] for row in _rows(user) if row[0] == "<cell>"]
    assert own == [[2, 1], [3, 1], [4, 1], [5, 0]]
    inside = [row[1:] for row in _rows(user) if row[0] == "bad" and row[2]]
    assert inside == ([[2, 1], [3, 1]] if last == "bad()" else [])


def test_short_statements_of_a_failed_cell(user):
    """Short statements between long ones have run too: their hits are never an exact 0."""
    user.run("%%lprun -o p\ntime.sleep(0.06)\nx = 1\ny = 2\ntime.sleep(0.06)\nz = 3\n1 / 0")
    exact_zero = "[s.line for s in p.statements if s.hits_exact and not s.hits]"
    assert user.value(exact_zero) == []
    assert user.value("[s.line for s in p.statements]") == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("options", ["", " --exact", " --sync", " --twice"])
def test_interrupt(user, tmp_path, options):
    """SIGINT ends the cell with its report and error; alarm and trace function are as before."""
    user.run(STATE)
    before, marker = user.value("state()"), tmp_path / "now"
    request = user.start(
        f"%%lprun -o p{options}\nf(3)\nopen({str(marker)!r}, 'w').close()\n"
        "while True:\n    f(9)\nnever = 1"
    )
    user.interrupt_when(marker)
    cell = user.collect(request)
    assert (cell.status, cell.error, cell.stderr) == ("error", "KeyboardInterrupt", "")
    assert "interrupt" in cell.report["text/plain"]
    # An interrupt that meets a tick, or the tracer of --sync, has that as its last frame.
    met = "--sync" in options or "raise KeyboardInterrupt" in cell.traceback
    assert met or "/perfkit/" not in cell.traceback
    assert user.value("state()") == before
    assert user.value("['f' in {s.function for s in p.statements}, 'never' in globals()]") == [
        *(True, False)
    ]
    assert user.run("%%lprun\nf(3)").results == ["3"]


def test_interrupt_of_await(user, tmp_path):
    """SIGINT while a profiled cell awaits ends it with its report; the next cell works."""
    user.run(STATE)
    before, marker = user.value("state()"), tmp_path / "waits"
    request = user.start(
        f"%%lprun\nimport asyncio\nopen({str(marker)!r}, 'w').close()\n"
        "for _ in range(6000):\n    await asyncio.sleep(0.01)"
    )
    user.interrupt_when(marker)
    cell = user.collect(request)
    assert cell.status == "error" and "stopped by" in cell.report["text/plain"]
    assert user.value("state()") == before
    assert user.run("%%lprun\nf(3)").results == ["3"]


@pytest.mark.parametrize(("text", "line"), [("x = = 1", 3), ("break", 3), ("return 3", 3)])
def test_stray_statement(user, text, line):
    """A SyntaxError in the body is a plain one at its line; nothing has run, nothing is shown."""
    cell = user.run(f"%%lprun --exact\nearly = 1\n{text}")
    assert (cell.status, cell.error, cell.displays) == ("error", "SyntaxError", [])
    assert f"line {line}\n" in cell.traceback and "/perfkit/" not in cell.traceback
    assert user.value("'early' in globals()") is False


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", " --exact", " --sync", " --memory", " --twice"])
def test_rows_of_a_cell(user, options):
    """A short cell has its own lines, and the user's functions that it calls, with right hits."""
    user.run(
        "class C:\n    def m(self):\n        return f(2)\n    @staticmethod\n    def s():\n"
        "        return 1"
    )
    cell = (
        f"%%lprun -o p{options}\n\n# a comment\ndef g(n):\n    return n * 2\n\n"
        "for i in range(2):\n    g(i)\nC().m()\nC.s()\nusermod.low(1)\nx = [\n    1,\n    2,\n]"
    )
    assert user.run(cell).status == "ok"
    own = [[4, 1], [7, 3], [8, 2], [9, 1], [10, 1], [11, 1], [12, 1]]
    others = [["g", 5, 2], ["C.m", 3, 1], ["C.s", 6, 1], ["low", 9, 1], *_of_f(2)]
    expected = sorted([*(["<cell>", *row] for row in own), *others])
    assert sorted(_rows(user)) == expected
    assert user.run(cell).status == "ok"
    assert sorted(_rows(user)) == expected


def test_statement_over_lines(user):
    """A call over four lines is one row with one hit, its source as typed."""
    user.run("%%lprun --exact -o p\nf(\n    len(\n        [1, 2]\n    )\n)")
    source = "f(\n    len(\n        [1, 2]\n    )\n)"
    assert _rows(user) == [["<cell>", 2, 1], *_of_f(2)]
    assert user.value("[p.statements[0].source, p.statements[0].end_line]") == [source, 6]


def test_edited_cell(user):
    """A cell that is edited and run again has its functions' hits and no word of the old ones."""
    user.run("%%lprun --exact -o p\ndef g(n):\n    return n * 2\ng(1)")
    for source in ("n * 2", "n * 3", "n"):
        user.run(f"%%lprun --exact -o p\ndef g(n):\n    return {source}\ng(1)\ng(2)")
        assert [row for row in _rows(user) if row[0] == "g"] == [["g", 3, 2]]
        (shown,) = user.value("[s.source for s in p.statements if s.function == 'g']")
        assert shown.strip() == f"return {source}"
        assert user.value("list(p.notes)") == []


def test_redefined_function(user):
    """Of a function that a later cell has redefined the new lines are shown, the old ones not."""
    user.run("def g(n):\n    return 'old'")
    user.run("def g(n):\n    a = n\n    return a")
    user.run("%%lprun --exact -o p\ng(1)\ng(2)")
    assert _rows(user)[2:] == [["g", 2, 2], ["g", 3, 2]]
    assert user.value("[s.source.strip() for s in p.statements][2:]") == ["a = n", "return a"]


def test_source_that_is_gone(user):
    """Functions whose file is gone run as ever without rows; `-f` with one is refused."""
    file = user.folder / "gone.py"
    file.write_text(MODULE)
    assert user.run("import gone").status == "ok"
    file.unlink()
    cell = user.run("%%lprun --exact -o p\ngone.top(3)\nf(2)")
    assert (cell.status, cell.results) == ("ok", ["1"])
    assert _rows(user) == [["<cell>", 2, 1], ["<cell>", 3, 1], *_of_f(2)]
    assert "source" in _message(user.run("%%lprun -f gone.top\nx = 1"))


def test_old_function_under_another_name(user):
    """A redefined function that lives on under another name is shown with its own lines."""
    user.run("def g(n):\n    return n, 'old'")
    user.run("old = g\ndef g(n):\n    return n, 'new', f")
    user.run("%%lprun --exact -o p\ng(1)\nold(2)\nold(3)")
    found = "sorted([s.source.strip(), s.hits] for s in p.statements if s.function == 'g')"
    assert user.value(found) == [["return n, 'new', f", 1], ["return n, 'old'", 2]]


def test_child_process(user):
    """A cell that forks has a report, once, and a word that the child's lines are not in it."""
    cell = user.run(
        "%%lprun -o p\nimport os\npid = os.fork()\nif not pid:\n    os._exit(3)\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert (cell.status, cell.results, len(cell.reports)) == ("ok", ["3"], 1)
    assert "process" in cell.report["text/plain"]


def test_twin_functions(user):
    """Two functions with the same body on the same lines of two cells are told apart, or noted."""
    user.run("def a(n):\n    return n * 2")
    user.run("def b(n):\n    return n * 2")
    cell = user.run("%%lprun --exact -o p\na(1)\nb(2)\nb(3)")
    assert [row[2] for row in _rows(user) if row[0] == "<cell>"] == [1, 1, 1]
    inside = [row for row in _rows(user) if row[0] != "<cell>"]
    told_apart = inside == [["a", 2, 1], ["b", 2, 2]]
    assert told_apart or "same bytecode" in cell.report["text/plain"]


def test_libraries_are_not_entered(user):
    """Neither Python's modules nor IPython's have rows, however long they take."""
    user.run("%%lprun -o p\nimport json\njson.dumps([[1] * 9] * 9000, indent=1);\n!sleep 0.05")
    assert {row[0] for row in _rows(user)} == {"<cell>"}


def test_wrapped_functions(user):
    """Functions behind lru_cache, wraps, property and `__call__` are found by name."""
    user.run(
        "import functools\n@functools.lru_cache\ndef cached(n):\n    return n\n"
        "def deco(fn):\n    @functools.wraps(fn)\n    def inner(*a):\n        return fn(*a)\n"
        "    return inner\n@deco\ndef wrapped(n):\n    return n\nclass P:\n    @property\n"
        "    def p(self):\n        return 1\n    def __call__(self):\n        return 2\nobj = P()"
    )
    user.run("%%lprun --exact -o p\ncached(1), cached(1), wrapped(2), obj.p, obj()")
    inside = {row[0]: row[2] for row in _rows(user) if row[0] != "<cell>"}
    assert inside == {
        "cached": 1,
        "deco.<locals>.inner": 1,
        "wrapped": 1,
        "P.p": 1,
        "P.__call__": 1,
    }


def test_source_as_typed(user):
    """Magics and shell lines are shown as they were typed, inside functions too."""
    body = "def g():\n    %who_ls\n    x = !echo a\n    return x\n%pwd\ng()"
    report = user.run(f"%%lprun --exact\n{body}").report
    for kind in ("text/plain", "text/html"):
        words = BeautifulSoup(report[kind], "html.parser").get_text()
        assert "get_ipython" not in words
        assert all(typed in words for typed in ("%pwd", "%who_ls", "x = !echo a"))


@pytest.mark.parametrize("inner", ["%%capture kept", "%%time"])
def test_body_of_another_cell_magic(user, inner):
    """A body that starts with another cell magic runs once, and its row is the text as typed."""
    user.run("n = 0")
    cell = user.run(f"%%lprun --exact -o p\n{inner}\nn += 1\nf(3)")
    assert (cell.status, user.value("n"), len(cell.reports)) == ("ok", 1, 1)
    assert inner in cell.report["text/plain"]
    assert "run_cell_magic" not in cell.report["text/plain"]


@pytest.mark.parametrize(
    "body", ["%%capture kept\nf(3)", "%%time\nf(3)", "%time f(3)", "x = %time f(3)"]
)
def test_functions_inside_a_magic(user, body):
    """The user's functions that a magic in the body runs are found and counted."""
    user.run(f"%%lprun --exact -o p\n{body}")
    assert [row for row in _rows(user) if row[0] == "f"] == _of_f(3)


@pytest.mark.parametrize("inner", ["%%capture kept", "%%time"])
def test_named_function_inside_a_magic(user, inner):
    """Below another cell magic `-f` still counts what it names."""
    user.run(f"%%lprun --exact -f f -o p\n{inner}\nf(3)")
    assert [row for row in _rows(user) if row[0] == "f"] == _of_f(3)


def test_capture_around(user):
    """`%%capture` around a profiled cell catches its output, its report and its value."""
    cell = user.run("%%capture kept\n%%lprun\nprint('out')\nf(3)")
    assert (cell.status, cell.messages[2:], cell.stdout) == ("ok", [], "")
    assert user.value("[kept.stdout, len(kept.outputs)]") == ["out\n", 2]
    assert user.value("'total += i' in kept.outputs[0].data['text/plain']") is True


def test_future_import_has_run(user):
    """`from __future__` runs once: a row for it does not say that it never ran."""
    user.run("%%lprun --exact -o p\nfrom __future__ import annotations\nx = 1")
    assert [row for row in _rows(user) if row[1] == 2] in ([], [["<cell>", 2, 1]])


def test_line_form_in_a_function(user):
    """In a function the line form sees local names, `-f` too."""
    user.run(
        "def h():\n    n = 3\n    def loc(k):\n        return k\n"
        "    %lprun --exact -q -o p loc(n)\n    %lprun --exact -q -o q -f loc loc(n)"
    )
    assert (user.run("h()").status, _rows(user)) == ("ok", [["h.<locals>.loc", 4, 1]])
    assert _rows(user, "q") == [["h.<locals>.loc", 4, 1]]


def test_line_form_with_braces(user):
    """Text in the line form is code as it stands: nothing in it is expanded."""
    cell = user.run("%lprun --exact -o p f({'$f': 3}['$f'])")
    assert (cell.status, _rows(user)) == ("ok", _of_f(3))


def test_empty_report_explains_itself(user):
    """A line that calls no function of the user's says so, and names `-f`."""
    text = user.run("%lprun len([1])").report["text/plain"]
    assert "no statement was profiled" in text and "-f" in text


# -- what the figures promise ----------------------------------------------------------------------

TINY = {
    "functions": "f(10)\nf(20)\nlen('a')\n{'a': f(3)}",
    "one call": "f(3)",
    "plain": "x = 1\ny = x + 1",
}


@pytest.mark.parametrize("options", ["", " --exact", " --twice"])
@pytest.mark.parametrize("body", TINY.values(), ids=TINY.keys())
def test_shares_of_a_tiny_cell(user, options, body):
    """However short a cell is, its statements add up to it, within their own uncertainty."""
    for _ in range(4):
        assert user.run(f"%%lprun -q -o p{options}\n{body}").status == "ok"
        own = "[s for s in p.statements if s.function == '<cell>']"
        total = user.value(f"sum(s.share for s in {own})")
        doubt = user.value(f"sum(s.uncertainty for s in {own})")
        assert user.value("p.wall_s > 0 and p.overhead is not None") is True
        assert 0.9 - doubt <= total <= 1.1 + doubt
        assert user.value("max(s.time_s for s in p.statements) <= 1.01 * p.wall_s") is True


def test_no_advice_that_was_followed(user):
    """A cell that was not run with `--exact` is not told to leave it out."""
    for _ in range(4):
        assert "without --exact" not in user.run("%%lprun\nx = 0\nf(1000)").report["text/plain"]


def test_names_in_notes(user):
    """Notes name the cell as the rest of the report does, and never as `<cell>`."""
    report = user.run("%%lprun --exact\nx = 0\nfor i in range(3000):\n    x += i").report
    assert "<cell>" not in report["text/plain"] and "&lt;cell&gt;" not in report["text/html"]


def test_long_cell_with_widgets(user):
    """With widgets alive a cell of three seconds has ticks enough and is little slowed."""
    user.run("import ipywidgets as w\nslider = w.IntSlider(layout=w.Layout(width='90px'))\nslider")
    cell = user.run(
        "%%lprun -o p\nend = time.perf_counter() + 3\nwhile time.perf_counter() < end:\n"
        "    f(2000)\n    slider.value = (slider.value + 1) % 100\nslider.value >= 0"
    )
    assert (cell.status, cell.results, cell.stderr) == ("ok", ["True"], "")
    assert user.value("[p.ticks > 1000, 1 <= p.overhead < 2.5, p.mode]") == [True, True, "bursts"]
    assert user.value("p.quality.status") != "refused"
    assert user.value("p.at(4, '<cell>').share + p.at(5, '<cell>').share > 0.9") is True


# -- the other ways --------------------------------------------------------------------------------


def test_exact(user):
    """`--exact` counts every hit of a hot loop, and says how it was done."""
    user.run("%%lprun --exact -o p\nf(30000)")
    assert _rows(user) == [["<cell>", 2, 1], *_of_f(30000)]
    assert user.value("[p.mode, all(s.hits_exact for s in p.statements)]") == ["exact", True]
    assert user.value("all(s.raw_s is not None for s in p.statements)") is True


def test_bursts(user):
    """Without options hits of a hot loop are lower limits that the report marks."""
    cell = user.run("%%lprun -o p\nf(1000000)")
    assert user.value("[s.hits_exact for s in p.statements][0]") is True
    assert user.value("0 < p.at(4, 'f').hits < 1000000 and not p.at(4, 'f').hits_exact") is True
    assert ">= " in cell.report["text/plain"] and "&gt;= " in cell.report["text/html"]
    assert user.value("p.at(4, 'f').raw_s") is None


def test_twice(user):
    """`--twice` runs the body twice, shows its output once, and counts the hits of one run."""
    user.run("n = 0")
    cell = user.run(
        "%%lprun --twice -o p\nn += 1\nprint('out')\ndisplay('shown')\n!echo sh\nf(4)\nn"
    )
    assert (user.value("n"), cell.stdout.split(), cell.results) == (2, ["out", "sh"], ["2"])
    assert [d["text/plain"] for d in cell.displays if d not in cell.reports] == ["'shown'"]
    assert [row for row in _rows(user) if row[0] == "f"] == _of_f(4)
    assert user.value("[p.mode, p.plain_s > 0]") == ["twice", True]
    assert user.run("print('heard')\ndisplay('seen')").stdout == "heard\n"


def test_twice_that_fails_the_second_time(user):
    """When the second run fails there is a report, and output goes on afterwards."""
    user.run("n = 0")
    cell = user.run("%%lprun --twice\nn += 1\nf(3)\n1 / (2 - n)")
    assert (cell.error, len(cell.reports), user.value("n")) == ("ZeroDivisionError", 1, 2)
    assert user.run("print('heard')\n3").results == ["3"]


def test_sync(user):
    """`--sync` charges work to the line that launched it: host and device side by side."""
    user.run("from perfkit.devices.thread import Stream\ns = Stream('side')")
    cell = user.run("%%lprun --sync -o p\ns.launch(time.sleep, 0.05)\nx = 1\ns.synchronize()")
    user.run("s.close()")
    assert [row[2] for row in _rows(user)] == [1, 1, 1]
    assert (
        user.value("[p.synchronized, p.at(2).device_s > 0.04, p.at(2).share > 0.8]") == [True] * 3
    )
    assert user.value("p.at(2).host_s < 0.04 and p.at(4).share < 0.2") is True
    assert {"host", "device"} <= set(cell.report["text/plain"].split())
    assert "do not overlap" in cell.report["text/plain"]


def test_memory(user):
    """`--memory` shows what each statement kept and how far it grew, and says what it costs."""
    cell = user.run(
        "%%lprun --memory -o p\nkept = bytearray(8_000_000)\nlen(bytes(6_000_000))\nx = 1"
    )
    assert user.value("[s.host_bytes > 7e6 for s in p.statements]") == [True, False, False]
    assert user.value("[s.host_peak_bytes > 5e6 for s in p.statements]") == [True, True, False]
    for word in ("allocated", "peak", "slower"):
        assert word in cell.report["text/plain"] and word in cell.report["text/html"]
    assert user.value("__import__('tracemalloc').is_tracing()") is False


def test_widget(user):
    """`--widget` adds the slider below the report and breaks nothing where nobody shows it."""
    cell = user.run("%%lprun --widget -o p\nf(30)")
    assert (cell.status, cell.stderr, len(cell.reports), cell.results) == ("ok", "", 1, ["435"])
    views = [d for d in cell.displays if "application/vnd.jupyter.widget-view+json" in d]
    assert len(views) == 1
    assert len(user.run("%%lprun --widget -q\nf(30)").displays) == 0


# -- wrong input -----------------------------------------------------------------------------------

WRONG = {
    "%%lprun -f nosuch\nx = 1": "nosuch",
    "%%lprun -f f.nosuch\nx = 1": "nosuch",
    "%%lprun -f f(\nx = 1": "f(",
    "%%lprun -f 1/0\nx = 1": "1/0",
    "%%lprun -f len\nx = 1": "written in C",
    "%%lprun -f math.sin\nx = 1": "math.sin",
    "%%lprun -f lam\nx = 1": "lambda",
    "%%lprun -f made\nx = 1": "generator",
    "%%lprun -f math\nx = 1": "-m math",
    "%%lprun -f 3\nx = 1": "-f 3",
    "%%lprun -f execd\nx = 1": "source",
    "%%lprun -f\nx = 1": "-f needs a value",
    "%%lprun --exakt\nx = 1": "did you mean --exact?",
    "%%lprun -x\nx = 1": "-f",
    "%%lprun -m no.such\nx = 1": "no.such",
    "%%lprun -m math\nx = 1": "math",
    "%%lprun -m\nx = 1": "-m needs a value",
    "%%lprun -D /no/such/x.lprof\nx = 1": "folder that exists",
    "%%lprun -T /no/such/x.txt\nx = 1": "folder that exists",
    "%%lprun -D /tmp\nx = 1": "give a file",
    "%%lprun -u 0\nx = 1": "seconds above 0",
    "%%lprun -u x\nx = 1": "seconds above 0",
    "%%lprun -u nan\nx = 1": "seconds above 0",
    "%%lprun -o 1x\nx = 1": "a Python name",
    "%%lprun --exact --twice\nx = 1": "give one of them",
    "%%lprun --exact --sync\nx = 1": "--exact",
    "%%lprun --twice --memory\nx = 1": "--twice",
    "%%lprun --backend nosuch\nx = 1": "nosuch",
    "%%lprun --sync --backend nosuch\nx = 1": "nosuch",
    "%%lprun --sync --backend opencl\nx = 1": "import pyopencl first",
    "%%lprun": "below the first line",
    "%%lprun -f f\n": "below the first line",
    "%%lprun\n\n# only\n  # comments": "below the first line",
    "%%lprun x = 1\nf(1)": "below the first line",
    "%%lprun f(3)\n": "below the first line",
    "%lprun": "behind the options",
    "%lprun -f f": "behind the options",
    "%lprun -f nosuch x = 1": "nosuch",
    "%lprun -f len x = 1": "written in C",
    "%lprun x = = 1": "x = = 1",
    "%lprun return 3": "return",
    "%%lprun\n%%lprun\nx = 1": "one measurement at a time",
    "%%lprun\n%%gpu_time\nx = 1": "one measurement at a time",
    "%%gpu_time\n%%lprun\nx = 1": "one measurement at a time",
}


@pytest.mark.parametrize("cell", WRONG)
def test_usage_error(user, cell):
    """Wrong input gives one line that says what is wrong; nothing has run, and then all works."""
    message = _message(user.run(cell))
    assert WRONG[cell] in message
    assert user.value("'x' in globals()") is False
    if found := re.match(r"%+lprun -f (\S+)[ \n]\w", cell):
        assert found[1] in message
    assert user.run("%%lprun\nf(3)").results == ["3"]


@pytest.mark.parametrize("inner", ["%lprun f(1)", "%gpu_time f(1)"])
def test_measurement_inside_another(user, inner):
    """A measurement inside a profiled cell gives one line, and the outer one still reports."""
    cell = user.run(f"%%lprun\n{inner}")
    assert (cell.status, cell.reply["ename"], len(cell.reports)) == ("error", "UsageError", 1)
    assert len(cell.stderr.splitlines()) == 1
    assert "inside %%lprun: one measurement at a time" in cell.stderr
    assert len(user.run("%%lprun\nf(3)").reports) == 1


# -- beside other tools ----------------------------------------------------------------------------

TOOLS = {
    "tracer": ("sys.settrace", "sys.gettrace"),
    "profiler": ("sys.setprofile", "sys.getprofile"),
}


@pytest.mark.parametrize("options", ["", " --exact", " --sync", " --twice"])
@pytest.mark.parametrize("kind", TOOLS)
def test_foreign_tracer(user, kind, options):
    """Under a debugger, coverage or a profiler there is one line, and theirs stays untouched."""
    put, get = TOOLS[kind]
    user.run(f"import sys\ndef theirs(*_):\n    return None\n{put}(theirs)")
    message = _message(user.run(f"%%lprun{options}\nx = 1"))
    kept = user.value(f"[{get}() is theirs, 'x' in globals()]")
    user.run(f"{put}(None)")
    assert "another tool" in message and kept == [True, False]
    assert len(user.run("%%lprun\nf(3)").reports) == 1


def test_tracer_set_by_the_body(user):
    """A trace function that the body sets stays, and the report owns up to what it did not see."""
    user.run("import sys\ndef theirs(*_):\n    return None")
    cell = user.run("%%lprun -o p\nf(3)\nsys.settrace(theirs)\nx = 1\nf(4)")
    kept = user.value("sys.gettrace() is theirs")
    user.run("sys.settrace(None)")
    assert (cell.results, kept) == (["6"], True)
    assert "took the trace function" in cell.report["text/plain"]
    assert user.value("[s.line for s in p.statements if s.hits_exact and not s.hits]") == []


@pytest.mark.parametrize(
    "taken",
    ["signal.signal(signal.SIGALRM, theirs)", "signal.setitimer(signal.ITIMER_REAL, 900)"],
)
def test_alarm_of_the_user(user, taken):
    """Where the alarm is in use the report says so, and the alarm stays as it was."""
    user.run(f"import signal\ndef theirs(*_):\n    pass\n{taken}")
    kept = "[str(signal.getsignal(signal.SIGALRM)), signal.getitimer(signal.ITIMER_REAL)[0] > 0]"
    before = user.value(kept)
    cell = user.run("%%lprun -o p\nf(3)")
    assert user.value(kept) == before
    assert "alarm" in cell.report["text/plain"] and user.value("p.mode") == "exact"
    assert _rows(user)[1:] == _of_f(3)


def test_prun_inside(user):
    """`%prun` in a profiled cell works, and the report is there."""
    cell = user.run("%%lprun\n%prun -q f(10)")
    assert len(cell.reports) == 1 and cell.errors == []
    assert user.value("__import__('sys').getprofile()") is None
    assert user.run("%%lprun\nf(3)").results == ["3"]


OWNERS = """
[kinds.get("lprun") and kinds["lprun"].__module__.split(".")[0]
 for kinds in map(get_ipython().magics_manager.magics.get, ("line", "cell"))]
"""
LEAVE = f"""{REPAIR}
%unload_ext perfkit
for kind in "line", "cell":
    for name in "lprun", "lprun_all":
        get_ipython().magics_manager.magics[kind].pop(name, None)
get_ipython().extension_manager.loaded.discard("line_profiler")
"""


@pytest.fixture
def bare(fresh_kernel):
    """A kernel without extensions, and with `f`; afterwards line_profiler's is gone again."""
    fresh_kernel.clear()
    fresh_kernel.run(LEAVE)
    fresh_kernel.run(F)
    yield fresh_kernel
    fresh_kernel.run(LEAVE)


def _owners(kernel):
    return kernel.value(OWNERS.strip().replace("\n", ""))


def test_line_profiler_loaded_first(bare):
    """line_profiler's `%lprun` stays its own, with one warning that names it; the cell is ours."""
    bare.run("%load_ext line_profiler")
    warned = bare.run("%load_ext perfkit").stderr
    assert warned.count("%lprun belongs to another extension") == 1
    assert warned.count("UserWarning") == 1 and "%%lprun" not in warned
    assert _owners(bare) == ["line_profiler", "perfkit"]
    theirs, ours = bare.run("%lprun -f f f(3)"), bare.run("%%lprun\nf(3)")
    assert (len(theirs.pages), theirs.reports, len(ours.reports)) == (1, [], 1)
    bare.run("%unload_ext perfkit")
    assert _owners(bare) == ["line_profiler", None]


def test_line_profiler_loaded_second(bare):
    """line_profiler loaded later takes its line form; the cell form works, and unload spares it."""
    bare.run("%load_ext perfkit")
    assert _owners(bare) == ["perfkit", "perfkit"]
    bare.run("%load_ext line_profiler")
    assert _owners(bare) == ["line_profiler", "perfkit"]
    assert (len(bare.run("%lprun -f f f(3)").pages), len(bare.run("%%lprun\nf(3)").reports)) == (
        1,
        1,
    )
    bare.run("%unload_ext perfkit")
    assert _owners(bare) == ["line_profiler", None]


def test_unload(bare):
    """The unload takes both forms away, and a reload leaves exactly one of each."""
    bare.run("%load_ext perfkit\n%reload_ext perfkit")
    cell = bare.run("%%lprun\nf(3)")
    assert (_owners(bare), cell.results, len(cell.reports)) == (["perfkit"] * 2, ["3"], 1)
    bare.run("%unload_ext perfkit")
    assert _owners(bare) == [None, None]
    assert "not found" in bare.run("%%lprun\nf(3)").stderr
    offered = bare.value("get_ipython().complete('--', '%%lprun --', 10)[1]")
    assert "--exact" not in offered


def test_line_profiler_enabled(user):
    """A LineProfiler that is enabled gives one line; one that the cell runs itself still counts."""
    user.run("import line_profiler\nprof = line_profiler.LineProfiler(f)\nprof.enable()")
    message = _message(user.run("%%lprun\nx = 1"))
    user.run("prof.disable()")
    assert "line_profiler" in message
    cell = user.run("%%lprun -o p\nprof.runcall(f, 3)\nf(4)\nx = 1")
    (timings,) = user.value("[[r[:2] for r in v] for v in prof.get_stats().timings.values()]")
    assert (cell.status, timings) == ("ok", [[2, 1], [3, 4], [4, 3], [5, 1]])
    ours = [row for row in _rows(user) if row[0] == "f"]
    exact = user.value("all(s.hits_exact for s in p.statements if s.function == 'f')")
    assert ours == _of_f(7, calls=2) or not exact or user.value("list(p.notes)")


# -- help ------------------------------------------------------------------------------------------

FLAGS = {
    *("-f", "--function", "-m", "--module", "-u", "--unit", "-z", "--strip-zero", "-s"),
    *("-D", "--dump", "-T", "--text", "-r", "--return", "--exact", "--twice", "--sync"),
    *("--memory", "--widget", "-o", "--output", "-q", "--quiet", "--name", "--backend"),
}


@pytest.mark.parametrize("sign", ["%", "%%"])
def test_help_and_completion(user, sign):
    """`?` shows every option, and completion behind `--` offers the long ones."""
    (page,) = user.run(f"{sign}lprun?").pages
    assert set(re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", page)) >= FLAGS
    line = f"{sign}lprun --"
    offered = user.value(f"get_ipython().complete('--', {line!r}, {len(line)})[1]")
    assert set(offered) == {flag for flag in FLAGS if flag.startswith("--")}
    assert "--twice" in user.ask("complete", line + "tw", len(line) + 2)["matches"]
