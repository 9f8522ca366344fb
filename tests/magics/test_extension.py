"""Loading, reloading and unloading the extension in real kernels, and the records' views."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

PROBE = '''
import sys, types
probe = sys.modules["probe"] = types.ModuleType("probe")
probe.sys, probe.get_ipython = sys, get_ipython
exec("""
def tables():
    "All that an extension can change in a shell, with the identity of what is in it."
    shell = get_ipython()
    formatters = [*shell.display_formatter.formatters.values()]
    formatters += [shell.display_formatter.mimebundle_formatter]
    formatters += [shell.display_formatter.ipython_display_formatter]
    hooks = shell.strdispatchers["complete_command"]
    found = {
        "cleanup": [*shell.input_transformers_cleanup],
        "post": [*shell.input_transformers_post],
        "ast": [*shell.ast_transformers],
        "events": {event: [*calls] for event, calls in shell.events.callbacks.items()},
        "magics": {kind: sorted(names) for kind, names in shell.magics_manager.magics.items()},
        "completers": {key: [*chain] for key, chain in hooks.strs.items()},
        "patterns": [*hooks.regexs],
        "dispatchers": sorted(shell.strdispatchers),
        "matchers": [*shell.Completer.custom_matchers],
        "hooks": dict(shell.hooks),
        "types": [{str(kind): f for kind, f in x.type_printers.items()} for x in formatters],
        "deferred": [dict(x.deferred_printers) for x in formatters],
        "singletons": [dict(x.singleton_printers) for x in formatters],
        "custom errors": [shell.custom_exceptions, shell.CustomTB],
        "names": [n for n in [*shell.user_ns, *shell.user_ns_hidden] if "__perfkit" in n],
        "streams": [sys.displayhook, shell.display_pub, sys.excepthook],
    }
    return {name: repr(table) for name, table in found.items()}

def of_perfkit():
    "How often something of perfkit's is in each table."
    return {name: text.count("perfkit") for name, text in tables().items()}
""", probe.__dict__)
del sys, types, probe
'''
"""A module, so that nothing takes it away with the names of cells."""


@pytest.fixture(scope="module", autouse=True)
def pristine(fresh_kernel):
    """The shell's tables before perfkit was ever loaded."""
    assert fresh_kernel.run(PROBE).status == "ok"
    return fresh_kernel.value("__import__('probe').tables()")


@pytest.fixture
def bare(fresh_kernel):
    """A kernel in which perfkit is not loaded."""
    fresh_kernel.clear()
    if fresh_kernel.value("'perfkit' in get_ipython().extension_manager.loaded"):
        fresh_kernel.run("%unload_ext perfkit")
    return fresh_kernel


@pytest.fixture
def foreign(bare):
    """A function that makes somebody else's `gpu_time`, which goes when the test ends."""
    yield lambda sign: bare.run(FOREIGN[sign])
    bare.run(
        "%unload_ext perfkit\nshell = get_ipython()\nfor kind in 'line', 'cell':\n"
        "    shell.magics_manager.magics[kind].pop('gpu_time', None)\n"
        "for sign in '%', '%%':\n"
        "    shell.strdispatchers['complete_command'].strs.pop(sign + 'gpu_time', None)"
    )


def _tables(kernel):
    return kernel.value("__import__('probe').tables()")


def _of_perfkit(kernel):
    return kernel.value("__import__('probe').of_perfkit()")


# -- load, reload, unload --------------------------------------------------------------------------


def test_load(bare):
    """Loading says nothing, makes no name, and adds one step of each kind and two magics."""
    cell = bare.run("%load_ext perfkit")
    assert (cell.status, cell.stdout, cell.stderr, cell.displays) == ("ok", "", "", [])
    assert bare.value("[n for n in globals() if n[0] != '_']") == [
        *("In", "Out", "get_ipython", "exit", "quit", "open")
    ]
    found = _of_perfkit(bare)
    assert (found["cleanup"], found["ast"], found["names"]) == (1, 1, 0)


def test_load_twice(bare):
    """Loading again changes nothing, by `%load_ext` or by hand."""
    bare.run("%load_ext perfkit")
    before = _tables(bare)
    bare.run("%load_ext perfkit\nimport perfkit\nperfkit.load_ipython_extension(get_ipython())")
    assert _tables(bare) == before
    assert len(bare.run("%%gpu_time\n1").reports) == 1


def test_reload(bare):
    """`%reload_ext` leaves exactly one of everything, and the magic works."""
    bare.run("%load_ext perfkit")
    before = _of_perfkit(bare)
    assert bare.run("%reload_ext perfkit\n%reload_ext perfkit").status == "ok"
    assert _of_perfkit(bare) == before
    cell = bare.run("%%gpu_time\n3")
    assert (cell.results, len(cell.reports)) == (["3"], 1)


def test_unload(bare, pristine):
    """`%unload_ext` restores every table of the shell exactly as it was before the load."""
    bare.run("%load_ext perfkit")
    assert bare.run("%%gpu_time\n1").status == "ok"
    assert bare.run("%gpu_time 1").status == "ok"
    assert bare.run("import perfkit\nperfkit.machine()").status == "ok"
    assert _tables(bare) != pristine
    assert bare.run("%unload_ext perfkit").stderr == ""
    assert _tables(bare) == pristine


def test_unload_after_a_failure(bare, pristine):
    """After cells that failed, `%unload_ext` still restores everything."""
    bare.run("%load_ext perfkit")
    for cell in ("\n1 / 0", " -r 0\n1", "\nbreak", " 1 / 0\n1"):
        assert bare.run("%%gpu_time" + cell).status == "error"
    bare.run("%unload_ext perfkit")
    assert _tables(bare) == pristine


def test_unloaded_magic_is_gone(bare):
    """After the unload the magic is unknown to IPython, in both forms."""
    bare.run("%load_ext perfkit\n%unload_ext perfkit")
    for cell in ("%%gpu_time\nx = 1", "%gpu_time x = 1"):
        assert "not found" in bare.run(cell).stderr
    assert bare.value("'x' in globals()") is False


def test_unload_twice(bare, pristine):
    """Unloading what is not loaded changes nothing and raises nothing."""
    code = "import perfkit\nperfkit.unload_ipython_extension(get_ipython())"
    cell = bare.run("%load_ext perfkit\n" + code + "\n" + code)
    bare.run("%unload_ext perfkit")
    assert (cell.status, cell.stderr) == ("ok", "")
    assert _tables(bare) == pristine


def test_steps_of_others_stay(bare):
    """What others put into the same tables after the load is still there after the unload."""
    bare.run(
        "%load_ext perfkit\nshell = get_ipython()\nimport ast\n"
        "def clean(lines):\n    return lines\ndef done(result):\n    pass\n"
        "step = ast.NodeTransformer()\nshell.input_transformers_cleanup.append(clean)\n"
        "shell.ast_transformers.append(step)\nshell.events.register('post_run_cell', done)\n"
        "%unload_ext perfkit"
    )
    assert (
        bare.value(
            "[clean in shell.input_transformers_cleanup, step in shell.ast_transformers, "
            "done in shell.events.callbacks['post_run_cell']]"
        )
        == [True] * 3
    )
    bare.run(
        "shell.input_transformers_cleanup.remove(clean)\nshell.ast_transformers.remove(step)\n"
        "shell.events.unregister('post_run_cell', done)"
    )


@pytest.mark.parametrize("word", ["unload", "reload"])
def test_unload_inside_a_timed_body(bare, pristine, word):
    """Inside a timed body the extension refuses to be unloaded, in one line; then it can be."""
    bare.run("%load_ext perfkit")
    cell = bare.run(f"%%gpu_time\n%{word}_ext perfkit\nx = 1")
    assert (cell.status, len(cell.reports)) == ("error", 1)
    shown = (cell.traceback + cell.stderr).strip()
    assert len(shown.splitlines()) == 1 and "a cell of its own" in shown
    assert len(bare.run("%%gpu_time\n1").reports) == 1
    bare.run("%unload_ext perfkit")
    assert _tables(bare) == pristine


# -- a name that is taken --------------------------------------------------------------------------

FOREIGN = {
    "%": "def gpu_time(line):\n    return 'foreign ' + line\n"
    "get_ipython().register_magic_function(gpu_time, 'line')",
    "%%": "def gpu_time(line, cell):\n    return 'foreign ' + cell.strip()\n"
    "get_ipython().register_magic_function(gpu_time, 'cell')",
}
USE = {"%": "%gpu_time 1 + 1", "%%": "%%gpu_time\n1 + 1"}


@pytest.mark.parametrize(("sign", "other"), [("%", "%%"), ("%%", "%")])
def test_foreign_magic(bare, foreign, sign, other):
    """A magic that was there first keeps the name, with a warning; perfkit's other form works."""
    foreign(sign)
    loaded = bare.run("%load_ext perfkit")
    assert f"{sign}gpu_time belongs to another extension" in loaded.stderr
    assert f" {other}gpu_time belongs" not in loaded.stderr
    used = bare.run(USE[sign])
    assert (used.results, used.reports) == (["'foreign 1 + 1'"], [])
    assert len(bare.run(USE[other]).reports) == 1
    bare.run("%unload_ext perfkit")
    assert bare.run(USE[sign]).results == ["'foreign 1 + 1'"]
    assert "not found" in bare.run(USE[other]).stderr


def test_foreign_completer(bare, foreign):
    """A foreign magic keeps its own completer through load and unload."""
    foreign("%")
    bare.run(
        "get_ipython().set_hook('complete_command', "
        "lambda shell, event: ['--foreign'], str_key='%gpu_time')"
    )
    offered = "get_ipython().complete('--', '%gpu_time --', 12)[1]"
    bare.run("%load_ext perfkit")
    assert bare.value(offered) == ["--foreign"]
    bare.run("%unload_ext perfkit")
    assert bare.value(offered) == ["--foreign"]


@pytest.mark.parametrize("sign", FOREIGN)
def test_magic_replaced_after_the_load(bare, foreign, sign):
    """A magic of the same name that somebody registers later is theirs, and stays at unload."""
    bare.run("%load_ext perfkit")
    foreign(sign)
    assert bare.run(USE[sign]).results == ["'foreign 1 + 1'"]
    bare.run("%unload_ext perfkit")
    assert bare.run(USE[sign]).results == ["'foreign 1 + 1'"]


# -- how records look ------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags of a text and what they ask the network for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.requests: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.open.append(tag)
        self.requests += [f"{k}={v}" for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.requests += [v for k, v in attrs if v and k == "style" and "url(" in v]
        self.requests += [k for k, _ in attrs if k.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()


RECORDS = "import perfkit\ntiming = perfkit.time_call(lambda: 1)\nmachine = perfkit.machine()"


@pytest.mark.parametrize("name", ["timing", "machine"])
def test_views(kernel, name):
    """A record as a cell's value is an ordinary output with text and HTML, without addresses."""
    kernel.run(RECORDS)
    cell = kernel.run(name)
    (result,) = [m["content"] for m in cell.messages if m["msg_type"] == "execute_result"]
    text, html = result["data"]["text/plain"], result["data"]["text/html"]
    assert " at 0x" not in text and "Timing(" not in text and "Machine(" not in text
    tags = Tags(html)
    assert tags.open == [] and "table" in tags.names and tags.requests == []
    assert "script" not in tags.names


def test_views_when_unloaded(bare):
    """Without the extension a record is shown by its plain repr; loaded again, by its report."""
    bare.run("%load_ext perfkit\n" + RECORDS)
    assert "text/html" in bare.run("display(timing)").displays[0]
    bare.run("%unload_ext perfkit")
    (plain,) = bare.run("display(timing)").displays
    assert set(plain) == {"text/plain"} and plain["text/plain"].startswith("Timing(")
    bare.run("%load_ext perfkit")
    assert "text/html" in bare.run("display(timing)").displays[0]


def test_report_is_the_records_view(kernel):
    """The report under a cell is what the bound record shows when it is displayed."""
    cell = kernel.run("%%gpu_time -o t\n1")
    assert kernel.run("display(t)").displays == [cell.report]


EVIL = "<script>alert('a & \\\"b\\\"')</script>"


@pytest.mark.parametrize("place", ["label", "stream", "error"])
def test_html_escapes(kernel, place):
    """What users name is escaped in the HTML and left as it is in the text."""
    kernel.run(
        f'from perfkit.devices.thread import Stream\nimport perfkit, time\nevil = "{EVIL}"\n'
        "def body():\n    s.launch(time.sleep, 0.001, name=work)\n"
        "s, work = Stream(), 'work'"
    )
    kernel.run(
        {
            "label": "body.__name__ = evil",
            "stream": "s = Stream(evil)",
            "error": "pass",
        }[place]
    )
    kernel.run("t = perfkit.time_call(body)")
    if place == "error":
        kernel.run(
            "import msgspec\nq = msgspec.structs.replace(t.quality, reasons=(evil,))\n"
            "t = msgspec.structs.replace(t, quality=q, notes=(evil,), stopped=evil)"
        )
    (data,) = kernel.run("s.close()\ndisplay(t)").displays
    tags = Tags(data["text/html"])
    assert "script" not in tags.names and tags.open == [] and tags.requests == []
    assert "&lt;script&gt;" in data["text/html"]
    if place in ("label", "error"):
        assert kernel.value("evil") in data["text/plain"]


def test_no_script_in_any_html(kernel):
    """No view has a script, an event handler or anything to fetch, with a picture or without."""
    kernel.run("from perfkit.devices.thread import Stream\nimport time\ns = Stream()")
    cells = [
        "%%gpu_time\n1",
        "%%gpu_time -r 3\n1",
        "%%gpu_time\ns.launch(time.sleep, 0.001)",
        "%%gpu_time --no-sync\ns.launch(time.sleep, 0.001)",
        "%%gpu_time\n1 / 0",
    ]
    pages = [kernel.run(cell).report["text/html"] for cell in cells]
    kernel.run("s.close()")
    assert "<svg" in pages[2] and "<svg" not in pages[0]
    for page in pages:
        tags = Tags(page)
        assert tags.requests == [] and tags.open == []
        assert not tags.names & {"script", "link", "style", "iframe", "img", "object", "a"}


def test_text_is_aligned(kernel):
    """The figures of a report stand in one column, flush right."""
    rows = kernel.run("%%gpu_time -r 3\n1").report["text/plain"].splitlines()[1:4]
    ends = [re.match(r"  \w[\w ]*?  +(?:[\d.,]+ \S+|n/a)(?=  )", row).end() for row in rows]
    assert len(rows) == 3 and len(set(ends)) == 1
