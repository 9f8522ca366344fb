"""`%tiers` in real kernels: options, plan, the report, and what an interrupt leaves."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest

from perfkit.magics.tiers import _Bar
from perfkit.records.tiers import TierTable

MIME = "application/vnd.perfkit.tiers.v1+json"


@pytest.fixture(scope="module")
def survey(fresh_kernel):
    """One short survey with a figure: its cell, its record, and the ledger's names."""
    folder = fresh_kernel.folder / "data"
    folder.mkdir()
    fresh_kernel.run(
        f"%load_ext perfkit\nimport os, perfkit\nos.environ['HOME'] = {str(folder)!r}\n"
        f"os.environ['PERFKIT_LOCKS'] = {str(fresh_kernel.folder)!r}"
    )
    cell = fresh_kernel.run(f"%tiers -b 0.3 -o t --name mine --figure {folder}")
    assert cell.status == "ok", cell.traceback
    assert fresh_kernel.value("perfkit.last() is t") is True
    table = TierTable.from_json(fresh_kernel.value("t.to_json()"))
    names = [json.loads(line)["name"] for line in fresh_kernel.ledger.read_text().splitlines()]
    return folder, cell, table, names


def planned(cell):
    """The text of the plan that a cell shows; it shows nothing else."""
    assert cell.status == "ok", cell.stderr + cell.traceback
    (data,) = cell.displays
    assert (cell.stdout, cell.stderr, cell.results) == ("", "", []) and "text/html" in data
    return data["text/plain"]


def test_report(survey):
    """The cell shows one report, whose rows are the record's, beside the deck's."""
    _, cell, table, _ = survey
    text = cell.report["text/plain"]
    assert [tier["name"] for tier in cell.report[MIME]["tiers"]] == [t.name for t in table.tiers]
    assert all(tier.name in text for tier in table.tiers) and "ABCI" in text
    assert text.startswith("%tiers: ") and "absent" in text
    assert "<script" not in cell.report["text/html"]


def test_bound_and_kept(survey):
    """`-o` binds the record, and `--name` keeps it in the ledger."""
    folder, _, table, names = survey
    assert names == ["mine"] and table.label == "%tiers" and table.stopped == ""
    assert str(folder) in [tier.path for tier in table.tiers]


def test_nothing_stays(survey):
    """No file stays in the folder, and the progress bar leaves no warning."""
    folder, cell, _, _ = survey
    # The folder is the kernel's home as well, where PoCL and matplotlib keep their own.
    assert list(folder.glob(".perfkit*")) == []
    assert "Warning" not in cell.stderr and "Traceback" not in cell.stderr


def test_figure(survey):
    """`--figure` shows one picture, behind the report."""
    _, cell, _, _ = survey
    kinds = ["image/png" in data for data in cell.displays if data in cell.reports or _image(data)]
    assert kinds == [False, True]


def _image(data):
    return "image/png" in data


def test_quiet(kernel):
    """`-q` shows nothing at all, and binds the record."""
    cell = kernel.run("%tiers -q -b 0.3 -o t")
    assert cell.status == "ok" and cell.shown == ["", "", [], []] and cell.reports == []
    assert kernel.value("t.tier('CPU memory').read_Bps > 1e8") is True


def test_plan(kernel):
    """`--plan` shows each folder, its bytes and its time, and does nothing."""
    (kernel.folder / "my disk").mkdir(exist_ok=True)
    text = planned(kernel.run('%tiers --plan "my disk"'))
    assert f"{kernel.folder}/my disk (you named it)" in text and "/dev/shm" in text
    assert "nothing has been done yet" in text
    assert list((kernel.folder / "my disk").iterdir()) == []


def test_full_takes_longer(kernel):
    """`--full` plans more time than `--quick`, which is the default."""
    seconds = {}
    for option in ("", "--quick", "--full"):
        text = planned(kernel.run(f"%tiers --plan {option}"))
        seconds[option] = float(re.search(r"about ([\d.]+) s in all", text)[1])
    assert seconds[""] == seconds["--quick"] < seconds["--full"] / 3


def test_paths(kernel):
    """A path may come from a variable, from ~, or stand before a comment."""
    kernel.run("import os\nhere = os.getcwd()\nos.environ['HOME'] = here")
    for path in ("$here", "{here}", "~", f"{kernel.folder}  # mine", "."):
        assert f"{kernel.folder} (you named it)" in planned(kernel.run(f"%tiers --plan {path}"))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--nothing", "--nothing is not known"),
        ("--json", "--json is not known"),
        ("--plam", "did you mean --plan?"),
        ("-r 3", "-r is not known"),
        ("--budget 0", "seconds above 0"),
        ("--budget much", "seconds above 0"),
        ("-b nan", "seconds above 0"),
        ("--budget", "needs a value"),
        ("--plan=3", "takes no value"),
        ("--quick --full", "give one of them"),
        ("--ranks 1 /tmp", "whole number from 2"),
        ("--ranks two /tmp", "whole number from 2"),
        ("--ranks 2", "name one"),
        ("--fill /tmp", "PATH:persistent=yes,shared=no"),
        ("--fill /tmp:shared=maybe", "partly"),
        ("--fill :shared=yes", "PATH:persistent=yes,shared=no"),
        ("--fill", "needs a value"),
        ("-o 1x", "Python name"),
        ("--name ' '", "not empty"),
        ("/no/such/folder", "does not exist"),
        ("/etc/passwd", "is a file"),
        ("/tmp '/unbalanced", "quote a path with blanks"),
    ],
)
def test_wrong_options(kernel, line, wanted):
    """What is wrong is one line that says what is right, before anything is measured."""
    start_s = time.monotonic()
    assert wanted in kernel.run(f"%tiers {line}").usage_error
    assert time.monotonic() - start_s < 5


def test_option_behind_a_path(kernel):
    """An option behind the paths is not taken for a folder in silence: one line, nothing done."""
    cell = kernel.run("%tiers /tmp --plan")
    if cell.status == "error":
        assert "--plan" in cell.usage_error
    else:
        assert "nothing has been done yet" in planned(cell)


def test_fill(kernel):
    """`--fill` alone keeps the answer and measures nothing."""
    cell = kernel.run("%tiers --fill '/my disk:persistent=yes,shared=no'")
    assert cell.status == "ok" and cell.shown == ["", "", [], []]
    last = json.loads(kernel.ledger.read_text().splitlines()[-1])["record"]
    assert (last["path"], last["persistent"], last["shared"]) == ("/my disk", "yes", "no")


def test_fill_where_nothing_can_be_kept(kernel):
    """An answer that cannot be written is one line, not a traceback."""
    kernel.run("import os\nold = os.environ['PERFKIT_RESULTS']")
    kernel.run("os.environ['PERFKIT_RESULTS'] = '/proc/none/results.jsonl'")
    cell = kernel.run("%tiers --fill /tmp:shared=no")
    kernel.run("os.environ['PERFKIT_RESULTS'] = old")
    assert cell.status == "error"
    said = cell.traceback or cell.stderr
    assert len(said.strip().splitlines()) == 1 and "PERFKIT_RESULTS" in said


def test_interrupt_shows_what_was_seen(kernel):
    """An interrupt shows the partial report, and leaves no file and the bar closed."""
    marker = kernel.folder / "begun"
    marker.unlink(missing_ok=True)
    request = kernel.start(f"open({str(marker)!r}, 'w').close()\n%tiers --full -o t .")
    kernel.interrupt_when(_settled(marker))
    cell = kernel.collect(request)
    assert cell.error == "KeyboardInterrupt"
    assert kernel.value("__import__('perfkit').last().stopped != ''") is True
    assert not list(Path(kernel.folder).glob(".perfkit*"))
    assert "stopped by" in cell.report["text/plain"].splitlines()[0]


def _settled(marker):
    """The marker, some time after it was made."""
    while not marker.exists():
        time.sleep(0.01)
    time.sleep(0.7)
    return marker


def test_ranks(kernel):
    """`--ranks 2` reads the folder with two processes as well, and says what each had of it."""
    text = kernel.run("%tiers --ranks 2 -b 0.3 -o t .").report["text/plain"]
    assert f"{kernel.folder}: 2 processes together read" in text
    assert kernel.value("max(p.job.tasks or 0 for p in t.probes)") == 2
    assert kernel.value("t.tier('CPU memory').read_Bps > 0") is True
    assert list(kernel.folder.glob(".perfkit*")) == []


def test_stable(kernel):
    """In stable mode the report has no figure, and no waiting or time."""
    kernel.run("import os\nos.environ['PERFKIT_OUTPUT'] = 'stable'")
    text = kernel.run("%tiers -b 0.3").report["text/plain"]
    kernel.run("del os.environ['PERFKIT_OUTPUT']")
    yours = text.split("ABCI")[0]
    assert text.startswith("%tiers: #") and "CPU memory" in yours
    assert not re.search(r"\d\.\d|GB/s| ns|GiB", yours)


def test_help_and_completion(kernel):
    """The options complete, and help lists each of them."""
    found = kernel.ask("complete", "%tiers --f", 10)["matches"]
    assert {"--full", "--fill", "--figure"} <= set(found)
    (page,) = kernel.run("%tiers?").pages
    assert all(flag in page for flag in ("--plan", "--budget", "--ranks", "--fill", "--name"))


def test_bar_after_an_interrupt(capsys):
    """An interrupt while the bar is drawn keeps no lock: the next survey's threads may draw."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _Bar(quiet=False) as bar:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bar._bar, "display", interrupted)
            bar.tick("first", 0.1)
    with _Bar(quiet=False) as bar:
        thread = threading.Thread(target=bar.tick, args=("second", 0.2), daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert "second" in capsys.readouterr().err
