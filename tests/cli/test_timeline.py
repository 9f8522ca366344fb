"""`perfkit timeline`: text, JSON, and errors in one line."""

import json

import pytest
from timeline.planted import planted_json
from timeline.traces import TRUTH_US, event, path_of, real, write

from perfkit.cli import main as cli
from perfkit.records.timeline import TimelineReport

FIELDS = {"span_s", "busy_s", "idle_s", "compute_s", "non_compute_s", "duty_cycle", "gaps"}


@pytest.fixture
def trace(tmp_path):
    """A trace whose idle time is data loading."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(planted_json("data loading", steps=6)))
    return path


def out_of(capsys, *options):
    """What it printed."""
    assert cli.main(["timeline", *map(str, options)]) == 0
    return capsys.readouterr().out


def refusal(capsys, *options):
    """The one line that it fails with."""
    assert cli.main(["timeline", *map(str, options)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return err


def test_text(capsys, trace):
    """The verdict comes first."""
    assert "busy" in out_of(capsys, trace).splitlines()[0]


def test_json(capsys, trace):
    """The JSON is the record, with the figures of each device and its gaps."""
    text = out_of(capsys, trace, "--json")
    (device,) = json.loads(text)["devices"]
    assert device.keys() >= FIELDS
    assert device["gaps"][0].keys() >= {"start_s", "duration_s", "cause", "host"}
    assert device["idle_s"] == pytest.approx(device["span_s"] - device["busy_s"])
    assert TimelineReport.from_json(text).to_json() == text.strip()


@real
@pytest.mark.parametrize("name", TRUTH_US)
def test_truth_in_json(capsys, name):
    """The figures of real traces are the truth to 2 µs."""
    (device,) = json.loads(out_of(capsys, path_of(name), "--json"))["devices"]
    _, span_us, busy_us, compute_us = TRUTH_US[name]
    truth = {
        "span_s": span_us,
        "busy_s": busy_us,
        "idle_s": span_us - busy_us,
        "compute_s": compute_us,
        "non_compute_s": busy_us - compute_us,
    }
    assert {key: 1e6 * device[key] for key in truth} == pytest.approx(truth, abs=2)


@real
def test_no_device_events(capsys):
    """A trace of the processor alone says so, and never 0 %."""
    text = out_of(capsys, path_of("cpu-only"))
    assert "this trace has no device events" in text.splitlines()[0]
    assert " 0 %" not in text.splitlines()[0]
    assert json.loads(out_of(capsys, path_of("cpu-only"), "--json"))["devices"] == []


def test_against_steps_and_save(capsys, trace, tmp_path):
    """Another trace beside it, some steps alone, and a trace for Perfetto."""
    saved = tmp_path / "out.json"
    text = out_of(capsys, trace, "--against", trace, "--steps", "1:2", "--save", saved)
    assert "median step" in text
    assert json.loads(saved.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "perfkit timeline FILE"),
        (("none.json",), "does not exist"),
        (("--live", "1"), "needs --port"),
        (("--port", "3"), "--live"),
        (("x.json", "--live", "1", "--port", "3"), "leave"),
        (("x.json", "--steps", "b"), "3:5"),
        (("x.json", "--", "more"), "takes nothing"),
    ],
)
def test_wrong_use(capsys, options, words):
    """One line says what to do."""
    assert words in refusal(capsys, *options)


def test_steps_that_are_not_there(capsys, trace, tmp_path):
    """Steps outside the trace name those that it has; without marks it says so."""
    assert "it has 0 to 5" in refusal(capsys, trace, "--steps", "50:60")
    bare = write(tmp_path / "bare.json", [event("k", 0, 1)])
    assert "it marks no steps" in refusal(capsys, bare, "--steps", "1:2")


def test_file_that_cannot_be_read_or_written(capsys, trace, tmp_path):
    """No permission, and no folder to write into."""
    assert "cannot be written" in refusal(capsys, trace, "--save", tmp_path / "no" / "x.json")
