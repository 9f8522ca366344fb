"""The cell engine on real kernels: a timed cell does all that the plain cell does."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

REPEAT = "%%gpu_time -r 3 -w 0\n__import__('time').sleep(0.001)\n"
"""What is put behind it runs four times: the first call and three samples, too slow to batch."""

COUNTED = """
class Big:
    alive = most = 0
    def __init__(self):
        Big.alive += 1
        Big.most = max(Big.most, Big.alive)
    def __del__(self):
        Big.alive -= 1
"""

# -- the same as without the magic -----------------------------------------------------------------

PLAIN = {
    "value": "x = 3\nx + 1",
    "none": "x = None\nx",
    "semicolon": "x = 3\nx;",
    "semicolon and comment": "x = 3\nx;  # not shown",
    "semicolon in a string": "'a;'",
    "assignments": "x = y = 1\n(a, *b), c = [1, 2, 3], 4\nz: int = x + 1\nz += 1",
    "print and value": "print('out')\ndisplay('shown')\n3",
    "stderr": "import sys\nprint('bad', file=sys.stderr)",
    "definitions": "import math as m\ndef f(n=2):\n    return m.pi + n\nclass C:\n    a = f()\nC.a",
    "star import": "from math import *\nfloor(2.5)",
    "control flow": "for i in range(9):\n    if i < 2:\n        continue\n    break\n"
    "else:\n    i = -1\nwhile True:\n    break\ni",
    "return in a function": "def f():\n    yield 1\n    return 2\nlist(f())",
    "scopes": "n = 3\nf = lambda k: [n * k for _ in range(2)]\nf(2), (y := 5), [q for q in f(1)]",
    "global and del": "global g\ng = 1\nk = 2\ndel k\n'k' in globals()",
    "match": "match [1, 2]:\n    case [a, b]:\n        c = a + b\nc",
    "magics": "%sx echo list\n!echo shell\nlines = !echo captured\np = %pwd\nlines, len(p) > 0",
    "percent in a string": 'x = """\n%notamagic\n%%notacellmagic\n!no\n"""\nx',
    "await": "import asyncio\nawait asyncio.sleep(0.001)\nx = await asyncio.sleep(0, 'woken')\nx",
    "async for": "async def count():\n    for i in range(3):\n        yield i\n"
    "async for i in count():\n    pass\n[i, [j async for j in count()]]",
    "async with": "from contextlib import asynccontextmanager\n@asynccontextmanager\n"
    "async def room():\n    yield 7\nasync with room() as seven:\n    x = seven\nx",
    "future import": "from __future__ import annotations\ndef f(a: no): pass\nf.__annotations__",
    "docstring": "'first'\n'last'",
    "blank lines": "\n\nx = 1\n\n\nx\n\n",
    "windows line ends": "x = 1\r\nx + 1\r\n",
    "help": "len?",
    "nested run_cell": "get_ipython().run_cell('inner = 2')\ninner",
    "error": "x = 1\nx / 0\nx = 2",
    "error in the first line": "1 / 0",
    "error in a function": "def f(n):\n    return 1 / n\n\nf(1)\nf(0)\nx = 1",
    "error over lines": "x = [\n    1,\n    int('no'),\n]",
    "error in a loop": "for i in (1, 0):\n    j = 1 / i",
    "error in finally": "try:\n    1 / 0\nfinally:\n    x = 1",
    "error from error": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError(3) from e",
    "error after await": "import asyncio\nawait asyncio.sleep(0)\n1 / 0",
    "error at display": "class Bad:\n    def __repr__(self):\n        raise ValueError('r')\nBad()",
    "assertion": "x = 1\nassert x == 2, 'not two'",
    "exit": "import sys\nprint('before')\nsys.exit(3)",
    "syntax error": "x = 1\nx = = 2",
    "indentation error": "x = 1\n  y = 2",
    "open bracket": "x = (1,\n",
    "no such magic": "x = 1\n%nosuchmagic 3",
}


def _without_first_line(traceback: str) -> str:
    """Line 1 and the cell's number are all in which the two cells may differ."""
    kept = [line for line in traceback.splitlines() if not re.match(r" +1 ", line)]
    return re.sub(r"In\[\d+\]", "In[n]", "\n".join(kept))


@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN.keys())
def test_same_as_plain_cell(kernel, body):
    """A timed cell gives the output, value, names, error and status of the plain cell."""
    kernel.run("import warnings\nwarnings.simplefilter('ignore')\ndel warnings")
    plain = kernel.run("# plain\n" + body)
    names = kernel.value("sorted(n for n in globals() if n[0] != '_')")
    kernel.clear()
    timed = kernel.run("%%gpu_time\n" + body)
    assert timed.status == plain.status
    assert timed.shown == plain.shown
    assert timed.error == plain.error
    assert _without_first_line(timed.traceback) == _without_first_line(plain.traceback)
    assert len(timed.pages) == len(plain.pages)
    assert kernel.value("sorted(n for n in globals() if n[0] != '_')") == names


CELL_MAGICS = {
    "capture": "%%capture kept\nx = 3\nprint('inner')\n5",
    "bash": "%%bash\necho from bash",
    "writefile": "%%writefile -a /dev/null\nx",
    "blank lines before": "\n\n%%bash\necho from bash",
    "bash fails": "%%bash\nexit 3",
    "capture fails": "%%capture kept\n1 / 0",
}


@pytest.mark.parametrize("body", CELL_MAGICS.values(), ids=CELL_MAGICS.keys())
def test_body_of_another_cell_magic(kernel, body):
    """A body that starts with another cell magic does what it does alone, and is timed."""
    plain = kernel.run(body)
    names = kernel.value("sorted(n for n in globals() if n[0] != '_')")
    kernel.clear()
    timed = kernel.run("%%gpu_time\n" + body)
    assert len(timed.reports) == 1
    assert (timed.status, timed.error) == (plain.status, plain.error)
    assert timed.shown == plain.shown
    assert "/perfkit/" not in timed.traceback
    assert kernel.value("sorted(n for n in globals() if n[0] != '_')") == names


# -- values and names ------------------------------------------------------------------------------


def test_value_is_shown_once(kernel):
    """The last expression is shown once, after the report, and is `_` and the cell's Out."""
    cell = kernel.run(REPEAT + "n = globals().get('n', 0) + 1\nn * 10")
    assert cell.results == ["40"]
    kinds = [m["msg_type"] for m in cell.messages if m["msg_type"] != "execute_input"]
    assert kinds == ["status", "display_data", "execute_result"]
    count = cell.reply["execution_count"]
    assert kernel.run(f"_, Out[{count}], _{count}").results == ["(40, 40, 40)"]


def test_semicolon(kernel):
    """A trailing semicolon suppresses the value, which then stays nowhere."""
    kernel.run(COUNTED)
    cell = kernel.run(REPEAT + "Big();")
    assert (cell.results, len(cell.reports)) == ([], 1)
    assert kernel.value("Big.alive") == 0


def test_without_history(kernel):
    """A cell sent without history, as nbval does, still shows its report and its value."""
    cell = kernel.run("%%gpu_time\n3 + 1", store_history=False)
    assert (cell.results, len(cell.reports)) == (["4"], 1)


def test_value_of_the_last_run(kernel):
    """Names hold what the last run gave them."""
    kernel.run("n = 0")
    assert kernel.run(REPEAT + "n += 1\na, b = n, -n").status == "ok"
    assert kernel.value("[n, a, b]") == [4, 4, -4]


def test_one_value_alive(kernel):
    """The value of a run is dropped before the next run makes its own."""
    kernel.run(COUNTED)
    assert kernel.run(REPEAT + "Big()").status == "ok"
    assert kernel.value("[Big.most, Big.alive]") == [1, 1]


def test_values_of_a_failed_cell(kernel):
    """When a run fails, the value of the run before is kept by nobody."""
    kernel.run(COUNTED + "n = 0")
    cell = kernel.run(REPEAT + "n += 1\nif n == 3:\n    Big.before = Big.alive\n    1 / 0\nBig()")
    assert cell.error == "ZeroDivisionError"
    assert kernel.value("[Big.before, Big.alive]") == [0, 0]


@pytest.mark.parametrize(
    "cell",
    [
        "%%gpu_time\nuser = 1\nuser",
        "%%gpu_time\nuser = 1\n1 / 0",
        "%%gpu_time\nuser = 1\nbreak",
        "%%gpu_time\nuser = = 1",
        "%%gpu_time -r 0\nuser = 1",
        "%%gpu_time 1 / 0\nuser = 1",
        "%%gpu_time\n",
        "%%gpu_time\n%%capture\nuser = 1",
        "%%gpu_time\n%%bash\nexit 3",
        "%gpu_time user = 1",
        "%gpu_time 1 / 0",
        "%%gpu_time\n%gpu_time 1",
        "%%gpu_time\nimport asyncio as user\nawait user.sleep(0)\n1 / 0",
    ],
)
def test_no_name_stays(kernel, cell):
    """None of perfkit's own names is left in the namespace, however the cell ended."""
    kernel.run(cell)
    shell = "get_ipython()."
    assert kernel.value(f"[n for n in {shell}user_ns if 'perfkit' in n]") == []
    assert kernel.value(f"[n for n in {shell}user_ns_hidden if 'perfkit' in n]") == []
    assert kernel.run("%who").stdout.strip() in ("user", "Interactive namespace is empty.")


def test_who_inside(kernel):
    """`%who` and `dir()` in a timed body do not list perfkit's own names."""
    assert kernel.run("%%gpu_time\nuser = 1\n%who").stdout.split() == ["user"]


def test_getsource(kernel):
    """The source of a function made in a timed body is found, in the body and later."""
    cell = kernel.run(REPEAT + "import inspect\ndef f():\n    return 17\n\ninspect.getsource(f)")
    assert cell.results == [repr("def f():\n    return 17\n")]
    assert kernel.run("inspect.getsource(f)").results == cell.results
    assert kernel.value("f.__code__.co_firstlineno") == 4


def test_rerun(kernel):
    """`%rerun` of a timed cell times it again."""
    kernel.run("n = 0")
    kernel.run("%%gpu_time\nn += 1")
    assert len(kernel.run("%rerun").reports) == 1
    assert kernel.value("n") == 2


# -- errors ----------------------------------------------------------------------------------------


def test_traceback(kernel):
    """An error gives one traceback: the body's lines, true numbers, no frame of perfkit."""
    cell = kernel.run("%%gpu_time\ndef f(n):\n    return 1 / n\n\nf(0)")
    assert (cell.status, cell.error) == ("error", "ZeroDivisionError")
    assert re.search(r"-> 5 +f\(0\)", cell.traceback)
    assert re.search(r"-> 3 +return 1 / n", cell.traceback)
    assert "/perfkit/" not in cell.traceback
    assert len(re.findall(r"^ZeroDivisionError: ", cell.traceback, re.M)) == 1


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_traceback_modes(kernel, mode):
    """No traceback mode of IPython shows a frame of perfkit."""
    kernel.run(f"%xmode {mode}")
    cell = kernel.run(REPEAT + "n = globals().get('n', 0) + 1\n1 / (3 - n)")
    kernel.run("%xmode Context")
    assert cell.error == "ZeroDivisionError"
    assert "division by zero" in cell.traceback
    assert "/perfkit/" not in cell.traceback


def test_report_before_the_error(kernel):
    """When a repeat fails, the samples taken by then are shown before the error."""
    cell = kernel.run(REPEAT + "n = globals().get('n', 0) + 1\n1 / (3 - n)")
    kinds = [m["msg_type"] for m in cell.messages if m["msg_type"] in ("display_data", "error")]
    assert kinds == ["display_data", "error"]
    assert "1 sample" in cell.report["text/plain"]
    assert "stopped by an error" in cell.report["text/plain"]
    assert kernel.value("n") == 3


def test_queued_cells(kernel):
    """Cells that wait behind a timed cell that fails are not run, as in any Run All."""
    first, second = kernel.start("%%gpu_time\n1 / 0"), kernel.start("late = 1")
    assert kernel.collect(first).status == "error"
    assert kernel.collect(second).status == "aborted"
    assert kernel.value("'late' in globals()") is False


def test_nbclient_stops(kernel):
    """A run by nbclient stops at a timed cell that fails, and has its report."""
    notebook = kernel.run_notebook("%load_ext perfkit", "%%gpu_time\nx = 1\n1 / 0", "print('late')")
    assert "ZeroDivisionError" in notebook.metadata["failure"]
    report, error = notebook.cells[1].outputs
    assert "%%gpu_time" in report.data["text/html"]
    assert error.ename == "ZeroDivisionError"
    assert (notebook.cells[2].outputs, notebook.cells[2].execution_count) == ([], None)


STRAY = {
    "break": 3,
    "continue": 3,
    "return 3": 3,
    "yield 3": 3,
    "if early:\n    break": 4,
    "with open('/dev/null'):\n    return": 4,
    "def f():\n    await g()": 4,
    "class C:\n    return 3": 4,
}
"""What only a loop or a function may hold, and the line of a cell that it is then on."""


@pytest.mark.parametrize("text", STRAY)
def test_stray_statement(kernel, text):
    """A stray `break` and its like are SyntaxErrors at their line; nothing has run before."""
    cell = kernel.run(f"%%gpu_time\nearly = 1\n{text}")
    assert (cell.status, cell.error, cell.reports) == ("error", "SyntaxError", [])
    assert f"line {STRAY[text]}\n" in cell.traceback
    assert kernel.value("'early' in globals()") is False


def test_syntax_error(kernel):
    """A SyntaxError in the body is shown at its line, without a report."""
    cell = kernel.run("%%gpu_time\nx = 1\nx = = 2")
    assert (cell.status, cell.error, cell.reports) == ("error", "SyntaxError", [])
    assert "line 3" in cell.traceback and "/perfkit/" not in cell.traceback


def test_interrupt(kernel, tmp_path):
    """SIGINT in the third run ends the cell with its report; the next timed cell works."""
    marker = tmp_path / "third"
    request = kernel.start(
        "%%gpu_time -r 9 -w 0 import time; n = 0\nn += 1\ntime.sleep(0.001)\n"
        f"if n == 3:\n    open({str(marker)!r}, 'w').close()\n    time.sleep(60)"
    )
    kernel.interrupt_when(marker)
    cell = kernel.collect(request)
    assert (cell.status, cell.error) == ("error", "KeyboardInterrupt")
    assert "interrupt" in cell.report["text/plain"]
    assert "/perfkit/" not in cell.traceback
    assert kernel.value("n") == 3
    assert kernel.run("%%gpu_time\nn").results == ["3"]


def test_interrupt_of_await(kernel, tmp_path):
    """SIGINT while a timed cell awaits ends it with its report; the next timed cell works."""
    marker = tmp_path / "waits"
    request = kernel.start(
        f"%%gpu_time\nimport asyncio\nopen({str(marker)!r}, 'w').close()\n"
        "for _ in range(6000):\n    await asyncio.sleep(0.01)"
    )
    kernel.interrupt_when(marker)
    cell = kernel.collect(request)
    assert cell.status == "error"
    assert "stopped by" in cell.report["text/plain"]
    assert kernel.run("%%gpu_time\n3").results == ["3"]


def test_exit(kernel):
    """`sys.exit` in a timed body ends the cell, not the kernel, and the report is shown."""
    cell = kernel.run("%%gpu_time\nimport sys\nsys.exit(3)")
    assert (cell.status, cell.reply["ename"]) == ("error", "SystemExit")
    assert "stopped by" in cell.report["text/plain"]
    assert kernel.run("%%gpu_time\n3").results == ["3"]


def test_reset(kernel):
    """`%reset -f` takes nothing from the magic, before a timed cell or inside one."""
    kernel.run("x = 1\n%reset -f")
    assert kernel.run("%%gpu_time\n'x' in globals()").results == ["False"]
    cell = kernel.run("%%gpu_time\n%reset -f\nx = 2\nx")
    assert (cell.error, cell.results, len(cell.reports)) == ("", ["2"], 1)


# -- repeats and output ----------------------------------------------------------------------------


def test_output_of_repeats(kernel):
    """What the body prints and displays is shown for the first run alone."""
    cell = kernel.run(
        REPEAT + "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
        "display('shown')\n!echo shell\nn = globals().get('n', 0) + 1"
    )
    assert cell.stdout.split() == ["out", "shell"]
    assert cell.stderr == "err\n"
    assert [d["text/plain"] for d in cell.displays if d not in cell.reports] == ["'shown'"]
    assert kernel.value("n") == 4


@pytest.mark.parametrize("last", ["pass", "1 / (3 - n)", "import sys; sys.exit(n - 2)"])
def test_streams_restored(kernel, last):
    """The streams and the display publisher are the same objects after the cell."""
    kernel.run(
        "import sys\nsh = get_ipython()\ndef streams():\n    return [sys.stdout, sys.stderr, "
        "sys.displayhook, sh.display_pub, sh.displayhook]\nkept = streams()"
    )
    kernel.run(REPEAT + f"n = globals().get('n', 0) + 1\nif n == 3:\n    {last}")
    assert kernel.run("[a is b for a, b in zip(kept, streams())]").results == [str([True] * 5)]
    assert kernel.run("print('heard')\ndisplay('seen')").stdout == "heard\n"


def test_repeated_await(kernel):
    """A body that awaits is repeated like any other."""
    cell = kernel.run("import asyncio, perfkit\n")
    cell = kernel.run(
        "%%gpu_time -r 3 -w 0 -o t\nn = globals().get('n', 0) + 1\nawait asyncio.sleep(0.01)\n"
        "async def steps():\n    yield n\nasync for last in steps():\n    pass\nlast"
    )
    assert cell.results == ["4"]
    assert kernel.value("[len(t.samples), t.runs, t.wall_s > 0.009]") == [3, 4, True]


def test_other_tasks_run(kernel):
    """While a timed body awaits, other tasks of the kernel's loop go on."""
    kernel.run(
        "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n"
        "        ticks += 1\n        await asyncio.sleep(0.001)\n"
        "task = asyncio.ensure_future(tick())"
    )
    cell = kernel.run("%%gpu_time\nbefore = ticks\nawait asyncio.sleep(0.2)\nticks > before + 3")
    kernel.run("task.cancel()")
    assert cell.results == ["True"]


# -- the magic line --------------------------------------------------------------------------------


def test_set_up(kernel):
    """Text behind the options runs once, before the clock, and is not repeated."""
    kernel.run("import time\ncalls = []")
    cell = kernel.run(
        "%%gpu_time -r 3 -w 0 -o t calls.append('up'); time.sleep(0.5); n = 0\n"
        "time.sleep(0.001)\nn += 1\nn"
    )
    assert cell.results == ["4"]
    assert kernel.value("[calls, t.first_s < 0.4, t.wall_s < 0.4]") == [["up"], True, True]


@pytest.mark.parametrize("line", ["x = !echo up", "x = ['up']  # why", "x = %sx echo up"])
def test_set_up_syntax(kernel, line):
    """Set-up may be what a cell may be, and may have a comment."""
    assert kernel.run(f"%%gpu_time {line}\nx").results == ["['up']"]


@pytest.mark.parametrize("line", ["# why", "-r 2 # -r 0", "  -r 2   #", "#-x"])
def test_comment_on_the_magic_line(kernel, line):
    """A comment on the magic line is ignored."""
    cell = kernel.run(f"%%gpu_time {line}\n3")
    assert (cell.results, cell.stderr, len(cell.reports)) == (["3"], "", 1)


def test_set_up_fails(kernel):
    """An error in the set-up is shown with its line and without perfkit's frames; no report."""
    cell = kernel.run("%%gpu_time nothing_here + 1\nran = 1")
    assert (cell.status, cell.error, cell.reports) == ("error", "NameError", [])
    assert "nothing_here + 1" in cell.traceback
    assert "/perfkit/" not in cell.traceback and "Could not get source" not in cell.traceback
    assert kernel.value("'ran' in globals()") is False
    assert kernel.run("%%gpu_time\n3").results == ["3"]


WRONG = {
    "%%gpu_time --repeet 3\nx": "did you mean --repeat?",
    "%%gpu_time --nosync\nx": "did you mean --no-sync?",
    "%%gpu_time -x\nx": "there are -b",
    "%%gpu_time -r\nx": "-r N|auto",
    "%%gpu_time -r 0\nx": "from 1, or auto",
    "%%gpu_time -r 2.5\nx": "from 1, or auto",
    "%%gpu_time -r -3\nx": "from 1, or auto",
    "%%gpu_time -w -1\nx": "from 0",
    "%%gpu_time -b -1\nx": "seconds above 0",
    "%%gpu_time -b nan\nx": "seconds above 0",
    "%%gpu_time -b inf\nx": "seconds above 0",
    "%%gpu_time -o 2x\nx": "a Python name, such as",
    "%%gpu_time -o class\nx": "a Python name, such as",
    "%%gpu_time -o\nx": "-o NAME",
    "%%gpu_time x = = 1\nx": "below the first line",
    "%%gpu_time": "below the first line",
    "%%gpu_time -r 3\n": "below the first line",
    "%%gpu_time x = 1\n": "below the first line",
    "%%gpu_time\n\n  \n# only\n    # comments": "below the first line",
    "%%gpu_time\n%%gpu_time\nx": "one measurement at a time",
    "%gpu_time": "behind the options",
    "%gpu_time -r 3": "behind the options",
    "%gpu_time  # nothing": "behind the options",
    "%gpu_time -r 0 x": "from 1, or auto",
    "%gpu_time --repeet 3 x": "did you mean --repeat?",
    "%gpu_time x = = 1": "x = = 1",
    "%gpu_time return 3": "return",
    "%gpu_time await x": "await",
}


@pytest.mark.parametrize("cell", WRONG)
def test_usage_error(kernel, cell):
    """A wrong option or no code gives one line that names the right form; then all works."""
    message = kernel.run(cell).usage_error
    assert WRONG[cell] in message
    assert message.startswith(("%%gpu_time", "%gpu_time"))
    assert kernel.value("'x' in globals()") is False
    assert kernel.run("%%gpu_time\nx = 3\nx").results == ["3"]


# -- the line form ---------------------------------------------------------------------------------


def test_line_form(kernel):
    """`%gpu_time` times the rest of its line; the names that it assigns land."""
    assert "%gpu_time: " in kernel.run("%gpu_time sum(range(9))").report["text/plain"]
    assert len(kernel.run("%gpu_time -r 3 x = [1, 2]; y = x").reports) == 1
    assert kernel.value("[x, y]") == [[1, 2], [1, 2]]


def test_line_form_in_a_function(kernel):
    """Inside a function the line sees the local names, in comprehensions too."""
    kernel.run(
        "def f():\n    n, seen = 5, []\n    %gpu_time seen.append(n)\n"
        "    %gpu_time seen.append(sum(n for _ in range(2)))\n    return seen"
    )
    cell = kernel.run("f()")
    assert (cell.results, len(cell.reports)) == (["[5, 10]"], 2)
    assert kernel.value("'seen' in globals()") is False


def test_line_form_fails(kernel):
    """An error in the timed line is shown once, at its line, without perfkit's frames."""
    cell = kernel.run("x = 1\n%gpu_time x / 0")
    assert (cell.status, cell.error, len(cell.reports)) == ("error", "ZeroDivisionError", 1)
    assert re.search(r"-> 2 .*x / 0", cell.traceback)
    assert "/perfkit/" not in cell.traceback
    cells = set(re.findall(r"In\[(\d+)\]", cell.traceback))
    assert cells == {str(cell.reply["execution_count"])}


@pytest.mark.parametrize(
    "inner",
    ["%gpu_time 1", "get_ipython().run_cell_magic('gpu_time', '', '1')"],
)
def test_measurement_inside_another(kernel, inner):
    """A measurement inside another gives one line, and the outer one still reports."""
    cell = kernel.run(f"%%gpu_time\n{inner}")
    assert (cell.status, cell.reply["ename"]) == ("error", "UsageError")
    assert len(cell.stderr.splitlines()) == 1
    assert "inside %%gpu_time: one measurement at a time" in cell.stderr
    assert "stopped by" in cell.report["text/plain"]
    assert len(kernel.run("%%gpu_time\n3").reports) == 1


def test_nested_run_cell(kernel):
    """A cell that a timed body runs does not end the measurement around it."""
    cell = kernel.run(REPEAT + "get_ipython().run_cell('inner = 1')\ninner")
    assert (cell.results, len(cell.reports)) == (["1"], 1)
    assert "3 samples" in cell.report["text/plain"]


# -- beside other things of IPython ----------------------------------------------------------------


def test_capture_around(kernel):
    """`%%capture` around a timed cell catches its output, its report and its value."""
    cell = kernel.run("%%capture kept\n%%gpu_time\nprint('out')\nx = 3\nx")
    assert (cell.status, cell.messages[2:], cell.stdout) == ("ok", [], "")
    assert kernel.value("[kept.stdout, len(kept.outputs), x]") == ["out\n", 2, 3]
    assert kernel.value("'%%gpu_time' in kept.outputs[0].data['text/html']") is True
    assert kernel.value("kept.outputs[1].data['text/plain']") == "3"


def test_time_and_timeit(kernel):
    """`%%time` and `%%timeit` on plain cells do what they did."""
    timed = kernel.run("%%time\nx = 3\nx")
    assert (timed.results, timed.reports, "Wall time" in timed.stdout) == (["3"], [], True)
    looped = kernel.run("%%timeit -n 2 -r 2\npass")
    assert (looped.reports, "2 runs, 2 loops each" in looped.stdout) == ([], True)


@pytest.mark.parametrize("mode", ["all", "last", "last_expr", "last_expr_or_assign", "none"])
@pytest.mark.parametrize("body", ["1\n2", "1\nx = 2", "x = 2\nx += 1", "x = y = 3", "x: int = 4"])
def test_interactivity(kernel, mode, body):
    """Every `ast_node_interactivity` shows of a repeated cell what it shows of a plain one."""
    kernel.run(f"get_ipython().ast_node_interactivity = {mode!r}")
    plain = kernel.run("x = 0;\n" + body)
    timed = kernel.run("%%gpu_time -r 3 -w 0 -q\n__import__('time').sleep(0.001)\nx = 0\n" + body)
    kernel.run("get_ipython().ast_node_interactivity = 'last_expr'")
    assert [r for r in timed.results if r != "0"] == [r for r in plain.results if r != "0"]


@pytest.mark.parametrize("mode", ["all", "last_expr", "last_expr_or_assign", "none"])
def test_interactivity_of_a_loop(kernel, mode):
    """Values that a loop in the body shows are shown for the first run alone."""
    body = "for i in (5, 6):\n    i"
    kernel.run(f"get_ipython().ast_node_interactivity = {mode!r}")
    plain = kernel.run(body)
    timed = kernel.run(f"%%gpu_time -r 3 -w 0 -q\nimport time; time.sleep(0.001)\n{body}")
    kernel.run("get_ipython().ast_node_interactivity = 'last_expr'")
    expected = ["5", "6"] if mode == "all" else []
    assert (timed.results, plain.results) == (expected, expected)


ADD_ONE = """
import ast
class AddOne(ast.NodeTransformer):
    def visit_Constant(self, node):
        return ast.copy_location(ast.Constant(node.value + 1), node) if node.value == 41 else node
class InFront(ast.NodeTransformer):
    def visit_Module(self, module):
        return ast.Module(ast.parse('front = 1').body + module.body, [])
steps = get_ipython().ast_transformers
"""


@pytest.mark.parametrize("where", ["0", "len(steps)"])
@pytest.mark.parametrize("kind", ["AddOne", "InFront"])
def test_transformer_of_the_user(kernel, kind, where):
    """A step of the user's on the syntax tree works with ours, before it or after it."""
    kernel.run(ADD_ONE + f"step = {kind}()\nsteps.insert({where}, step)")
    cell = kernel.run(REPEAT + "x = 41\nx")
    still = kernel.value("step in steps")
    kernel.run("steps.remove(step)")
    assert cell.results == [{"AddOne": "42", "InFront": "41"}[kind]]
    assert (len(cell.reports), still) == (1, True)
    assert kernel.value("globals().get('front')") == {"AddOne": None, "InFront": 1}[kind]


def test_transformer_that_rejects(kernel):
    """A step of the user's that rejects a cell rejects a timed one; the next one works."""
    kernel.run(
        ADD_ONE + "from IPython.core.error import InputRejected\n"
        "class No(ast.NodeTransformer):\n    def visit_Name(self, node):\n"
        "        if node.id == 'bad':\n            raise InputRejected('not bad')\n"
        "        return node\nsteps.append(No())"
    )
    cell = kernel.run("%%gpu_time\nbad = 1")
    assert (cell.status, cell.reports) == ("error", [])
    assert kernel.run("%%gpu_time\ngood = 1\ngood").results == ["1"]
    kernel.run("steps.pop()")


def test_complete_cell(kernel):
    """A timed cell being typed is complete exactly when a cell of `%%time` is."""
    ends = ["", "\n", "\nx", "\nx\n", "\nx\n\n", "\nfor i in x:", "\nfor i in x:\n    i\n"]
    answers = [kernel.ask("is_complete", "%%gpu_time -r 3" + end)["status"] for end in ends]
    assert answers == [kernel.ask("is_complete", "%%time" + end)["status"] for end in ends]
    assert answers[:4] == ["incomplete"] * 4


def test_terminal(fresh_kernel, tmp_path):
    """In terminal IPython a timed cell is typed over lines and ended by empty ones."""
    typed = "%load_ext perfkit\n%%gpu_time\nx = 3\nx + 1\n\n\nx * 100\n\n"
    options = ["--simple-prompt", "--no-banner", "--colors=NoColor"]
    command = [sys.executable, "-m", "IPython", *options]
    environment = fresh_kernel.environment | {"IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        command,
        input=typed,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "%%gpu_time: " in done.stdout and "wall time" in done.stdout
    assert "Out[2]: 4" in done.stdout and "Out[3]: 300" in done.stdout
    assert "Error" not in done.stdout + done.stderr


FLAGS = {
    *("-r", "--repeat", "-w", "--warmup", "-b", "--budget", "-o", "--output", "-q", "--quiet"),
    *("--name", "--backend", "--cold", "--no-sync", "--trace", "--graph"),
}


@pytest.mark.parametrize("sign", ["%", "%%"])
def test_help(kernel, sign):
    """`?` behind the magic's name shows what it does and every option."""
    (page,) = kernel.run(f"{sign}gpu_time?").pages
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page))
    assert named >= FLAGS


def test_lsmagic(kernel):
    """`%lsmagic` lists both forms."""
    (listed,) = kernel.run("%lsmagic").results
    assert {"%gpu_time", "%%gpu_time"} <= set(listed.replace("\\n", " ").split())


@pytest.mark.parametrize("line", ["%%gpu_time --", "%gpu_time --", "%%gpu_time -r 3 --"])
def test_completion(kernel, line):
    """Completion behind `--` offers the long options and nothing else."""
    offered = kernel.value(f"get_ipython().complete('--', {line!r}, {len(line)})[1]")
    assert set(offered) == {flag for flag in FLAGS if flag.startswith("--")}
    assert {"--no-sync"} <= set(kernel.ask("complete", line + "no", len(line) + 2)["matches"])
