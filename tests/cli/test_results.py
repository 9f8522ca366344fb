"""`perfkit results`: the ledger as a table for people and as JSON for programs."""

import json

import pytest

import perfkit
from perfkit import ledger
from perfkit.cli import main as cli
from perfkit.records.base import Quality
from perfkit.records.lesson import Answer, Prediction
from perfkit.records.timing import Sample, Timing


@pytest.fixture
def results(capsys):
    """Run `perfkit results` and give what it printed."""

    def run(*options):
        assert cli.main(["results", *options]) == 0
        return capsys.readouterr().out

    return run


def timing(status="valid"):
    """A record of a cell that took 12.3 ms."""
    sample = Sample(naive_s=0.0123, wall_s=0.0123)
    return Timing.of(
        repeat=1,
        budget_s=2.0,
        first=sample,
        samples=(sample,),
        machine=perfkit.machine(),
        quality=Quality(status=status),
    )


def test_table(results):
    """Each entry is a line with its name, number, time and kind, and the columns align."""
    ledger.add(timing(), "loop")
    ledger.add(Prediction.of(key="k", value=3, unit="s", measured=2.5), "predict k")
    ledger.add(Answer.of(question="31.1", status="right"), "check 31.1")
    lines = results().splitlines()
    assert [line.split()[0] for line in lines] == ["loop", "predict", "check"]
    assert "12.3 ms" in lines[0] and "3 s, measured 2.5 s" in lines[1] and "right" in lines[2]
    kinds = ["Timing", "Prediction", "Answer"]
    assert len({line.index(kind) for line, kind in zip(lines, kinds, strict=True)}) == 1


def test_json(results):
    """The JSON has name, time, kind, headline and the whole record."""
    ledger.add(timing(), "loop")
    (entry,) = json.loads(results("--json"))
    assert set(entry) == {"name", "at", "kind", "headline", "record"}
    assert (entry["name"], entry["kind"], entry["headline"]) == ("loop", "Timing", "12.3 ms")
    assert Timing.from_json(json.dumps(entry["record"])) == timing()


def test_nothing_kept(results, ledger_file):
    """An empty ledger names its file and says what to do; as JSON it is an empty list."""
    assert str(ledger_file) in results() and "PERFKIT_RESULTS" in results()
    assert json.loads(results("--json")) == []


@pytest.mark.parametrize(
    ("status", "headline"),
    [("valid", "12.3 ms"), ("suspect", "12.3 ms (suspect)"), ("refused", "n/a (refused)")],
)
def test_quality_is_said(results, status, headline):
    """A number that is suspect says so, and one that was refused is not shown."""
    ledger.add(timing(status), "loop")
    (entry,) = json.loads(results("--json"))
    assert entry["headline"] == headline


@pytest.mark.parametrize("record", ['{"record":"Later"}', '{"record":"Timing"}', "[1]", "3", "{}"])
def test_unknown_records(results, ledger_file, record):
    """A record of a kind or version that is not known is listed without a number."""
    ledger_file.write_text(f'{{"name":"x","at":"some day","record":{record}}}\n')
    assert results().split()[:2] == ["x", "n/a"]
    assert json.loads(results("--json"))[0]["record"] == json.loads(record)


def test_names_are_only_text(results):
    """A name cannot break the line or send orders to the terminal."""
    ledger.add(Answer.of(question="q", status="wrong"), "two\nlines\x1b[31m")
    out = results()
    assert out.count("\n") == 1 and "\x1b" not in out and out.startswith("two lines")
