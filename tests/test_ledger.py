"""Numbers that last: what is written is read again, whatever happened to the file."""

import subprocess
import sys

import pytest

from perfkit import ledger
from perfkit.errors import PerfkitError
from perfkit.records.lesson import Answer, Prediction


def record(key="a", value=1.5):
    return Prediction.of(key=key, value=value, unit="s")


def test_record_comes_back(ledger_file):
    """A record that was added comes back equal, under its name, with a time."""
    ledger.add(record(), "bet")
    (entry,) = ledger.entries()
    assert entry.name == "bet" and entry.at.endswith("+00:00")
    assert Prediction.from_json(bytes(entry.record)) == record()


def test_entries_in_order():
    """Entries come oldest first, and a name picks its own."""
    for number, name in enumerate("abab"):
        ledger.add(record(value=number), name)
    ledger.add(Answer.of(question="q", status="right"), "c")
    assert [entry.name for entry in ledger.entries()] == list("ababc")
    values = [Prediction.from_json(bytes(e.record)).value for e in ledger.entries("b")]
    assert values == [1, 3]


def test_one_line_each(ledger_file):
    """Each entry is one line, whatever its text holds."""
    ledger.add(record(key="two\nlines \u2028 and µ"), "odd\nname")
    assert ledger_file.read_bytes().count(b"\n") == 1
    (entry,) = ledger.entries("odd\nname")
    assert Prediction.from_json(bytes(entry.record)).key == "two\nlines \u2028 and µ"


def test_no_file_no_entries(ledger_file):
    """Reading where nothing was written gives nothing and makes no file."""
    assert list(ledger.entries()) == [] and not ledger_file.exists()


def test_file_beside_the_notebook(tmp_path, monkeypatch):
    """Without PERFKIT_RESULTS the file lies in the working folder."""
    monkeypatch.delenv("PERFKIT_RESULTS")
    monkeypatch.chdir(tmp_path)
    ledger.add(record(), "a")
    assert ledger.path() == tmp_path / "perfkit-results.jsonl" and ledger.path().exists()


def test_half_a_line_is_passed_over(ledger_file):
    """A last line that was cut off is passed over, and the lines before it are read."""
    ledger.add(record(), "whole")
    line = ledger_file.read_bytes()
    ledger_file.write_bytes(line + line[: len(line) // 2])
    assert [entry.name for entry in ledger.entries()] == ["whole"]


def test_half_a_line_loses_no_other(ledger_file):
    """An entry that is added behind a line that was cut off is read all the same."""
    ledger.add(record(), "first")
    line = ledger_file.read_bytes()
    ledger_file.write_bytes(line + line[:20])
    ledger.add(record(), "second")
    assert [entry.name for entry in ledger.entries()] == ["first", "second"]


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"not JSON",
        b"[1]",
        b"{}",
        b'{"name": 3}',
        b"\xff\xfe\xff",
        b'{"name": "\xff", "at": ""}',
    ],
    ids=repr,
)
def test_strange_lines_are_passed_over(ledger_file, junk):
    """Lines that are no entries are passed over wherever they stand."""
    ledger.add(record(), "first")
    with ledger_file.open("ab") as file:
        file.write(junk + b"\n")
    ledger.add(record(), "second")
    assert [entry.name for entry in ledger.entries()] == ["first", "second"]


def test_two_writers(ledger_file):
    """Two processes that write at once tear none of each other's lines."""
    code = (
        "import sys; from perfkit import ledger; from perfkit.records.lesson import Prediction\n"
        "name = sys.argv[1]; print('ready', flush=True); input()\n"
        "for i in range(300):\n"
        "    text = name * (1 + i % 200 * 40)\n"
        "    ledger.add(Prediction.of(key=text, value=i, unit='s'), name)\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in "xy"
    ]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    for name in "xy":
        records = [Prediction.from_json(bytes(e.record)) for e in ledger.entries(name)]
        assert [record.value for record in records] == list(range(300))
        assert all(set(record.key) == {name} for record in records)


@pytest.mark.parametrize("where", ["folder", "missing/file.jsonl"])
def test_unwritable_file(tmp_path, monkeypatch, where):
    """Where the file cannot be written one line names it, the reason and the cure."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("PERFKIT_RESULTS", str(tmp_path / where))
    with pytest.raises(PerfkitError) as caught:
        ledger.add(record(), "bet")
    text = str(caught.value)
    assert text.startswith("'bet' was not kept: ") and str(tmp_path / where) in text
    assert "PERFKIT_RESULTS" in text and "\n" not in text
    assert list(ledger.entries()) == []


def test_full_disk_is_told(ledger_file):
    """A line of which only a part could be written was not kept, and that is said."""
    code = (
        "import resource, signal; from perfkit import errors, ledger\n"
        "from perfkit.records.lesson import Prediction\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: ledger.add(Prediction.of(key='k' * 1000, unit='s'), 'bet')\n"
        "except errors.PerfkitError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("'bet' was not kept: ")
    assert list(ledger.entries()) == []
