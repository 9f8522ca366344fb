"""Lesson 32's exercises: the stub, plausible wrong answers, and only the solution passes."""

import math

import pytest

from perfkit.errors import UsageError
from perfkit.intervals import covered_s
from perfkit.lessons import check, traces
from perfkit.timeline.columns import Columns, Event, Lane
from perfkit.timeline.judge import judge
from perfkit.timeline.trace import read_timeline

GAINS = {
    "kernels twice as fast": "training-v100",
    "copies and collectives behind kernels": "training-a100",
    "a host that is never late": "alexnet",
}


def stub(*_):
    raise NotImplementedError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One recorded training, as the notebook records it: the training and what the trace tells."""
    profiler = pytest.importorskip("torch.profiler")
    training = traces.Training(seed=32)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
        training.run()
    path = tmp_path_factory.mktemp("lesson-32") / "run.json"
    profile.export_chrome_trace(str(path))
    traces.keep(profile, path)
    return training, read_timeline(path)


@pytest.fixture
def findings(run):
    """The right answer to exercise 32.2, read from the report."""
    _, trace = run
    operator = trace.report.operators[0]
    return {
        "operator": operator.name,
        "own_ms": 1e3 * operator.self_s,
        "gap": trace.gaps[0].host,
        "step": max(trace.steps, key=lambda one: one.duration_s).number,
    }


@pytest.mark.parametrize("name", ["32.1", "32.2", "32.3"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def union(intervals):
    spans = [one[:2] for one in intervals]
    return covered_s(spans, -math.inf, math.inf)


def span(intervals):
    return max(one[1] for one in intervals) - min(one[0] for one in intervals)


def kernels(intervals):
    return [one for one in intervals if one[2] == "kernel"]


def lasting(intervals):
    return sum(end - start for start, end, _ in intervals)


def to_last_end(intervals):
    """A union that forgets how far earlier work reached."""
    total, reach = 0, -math.inf
    for start, end, _ in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = end
    return total


def answer(measure):
    """Busy, computing and idle, with some measure of how long intervals cover."""
    return lambda rows: (measure(rows), measure(kernels(rows)), span(rows) - measure(rows))


def test_right_duty():
    """The union over streams passes."""
    assert check("32.1", answer(union)).status == "right"


@pytest.mark.parametrize(
    ("duty", "told"),
    [
        (answer(lasting), "the time counts twice"),
        (answer(to_last_end), "short work inside long work"),
        (answer(lambda rows: min(lasting(rows), span(rows))), "two kernels at once"),
        (answer(lambda rows: union(rows) if rows == sorted(rows) else 0), "out of order"),
        (
            lambda rows: (union(rows), union(rows), span(rows) - union(rows)),
            "at least one kernel ran",
        ),
        (
            lambda rows: (
                union(rows),
                union(rows) - union([one for one in rows if one[2] != "kernel"]),
                span(rows) - union(rows),
            ),
            "a copy behind a kernel",
        ),
        (
            lambda rows: (*answer(union)(rows)[:2], max(one[1] for one in rows) - union(rows)),
            "not from 0",
        ),
        (traces.tick_by_tick, "fractions of a second"),
        (union, "TypeError"),
        (lambda rows: (union(rows), union(kernels(rows))), "three numbers"),
    ],
)
def test_wrong_duty(duty, told):
    """Each wrong duty is told the case that it fails, or the slip."""
    judged = check("32.1", duty)
    assert judged.status == "wrong"
    assert told in judged.message


def test_slow_way_agrees_with_the_report():
    """Tick by tick, and in the report of a timeline, a device was busy for the same time."""
    rows = [(0, 80, "kernel"), (20, 50, "copy"), (60, 90, "collective"), (95, 100, "copy")]
    kinds = {"copy": "h2d"}
    report = judge(
        Columns.of(
            Event(start, end, Lane("GPU 0", f"stream {stream}"), kinds.get(kind, kind), kind)
            for stream, (start, end, kind) in enumerate(rows)
        )
    )
    device = report.devices[0]
    seen = (device.busy_s, device.compute_s, device.idle_s)
    assert tuple(round(1e9 * one) for one in seen) == traces.tick_by_tick(rows) == (95, 80, 5)


def test_right_findings(findings):
    """What the report says of the learner's own run is right by torch's own table."""
    judged = check("32.2", lambda: findings)
    assert (judged.status, judged.message[:11]) == ("right", "Torch's own")


def test_planted_is_found(run):
    """The report names the part that stalls, and only the step drawn by lot validates."""
    training, trace = run
    columns, slow = trace.columns, trace.steps[training.slow_step]
    validates_s = 1e-9 * columns.start_ns[columns.name == columns.names.index("validate")]
    assert trace.report.host.causes[0].host == training.stalled
    assert len(validates_s) == 1
    assert slow.start_s < validates_s[0] < slow.start_s + slow.duration_s


def test_own_times_are_those_of_torch(run):
    """Own and total time of every operator of the report is within 5 % of torch's table."""
    kept = traces._kept[0]
    for row in run[1].report.operators:
        assert row.self_s == pytest.approx(kept.own_s[row.name], rel=0.05, abs=1e-6)
        assert row.total_s == pytest.approx(kept.total_s[row.name], rel=0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("key", "wrong", "told"),
    [
        ("operator", lambda _: "update", "is no operator"),
        ("operator", lambda _: "aten::empty", "its own time is"),
        ("own_ms", lambda right: 0.9 * right, "not within 5 %"),
        ("gap", lambda right: "forward" if right != "forward" else "fetch", "was not in"),
        ("step", lambda right: (right + 1) % traces.STEPS, "did not take longest"),
    ],
)
def test_wrong_findings(findings, key, wrong, told):
    """One wrong finding of four is told which."""
    judged = check("32.2", lambda: {**findings, key: wrong(findings[key])})
    assert judged.status == "wrong"
    assert key in judged.message
    assert told in judged.message


def test_total_time_fails(run, findings):
    """The operator with the largest total, and the total of the right one, are both wrong."""
    rows = run[1].report.operators
    outermost = max(rows, key=lambda one: one.total_s)
    named = check("32.2", lambda: {**findings, "operator": outermost.name})
    timed = check("32.2", lambda: {**findings, "own_ms": 1.06e3 * rows[0].self_s})
    seconds = check("32.2", lambda: {**findings, "own_ms": rows[0].self_s})
    assert outermost.name != rows[0].name
    assert [one.status for one in (named, timed, seconds)] == ["wrong"] * 3
    assert "operators that it calls" in named.message


def test_findings_need_all_four(findings):
    """An answer with a key missing is told the four."""
    del findings["gap"]
    assert "give these four" in check("32.2", lambda: findings).message


def test_findings_need_a_trace(monkeypatch):
    """Without a recorded run the check asks for one."""
    monkeypatch.setattr(traces, "_kept", [])
    assert "no trace yet" in check("32.2", dict).message


def test_repair_takes_the_stall_out(run):
    """Repaired, the part stalls no longer, and the training at hand is not changed."""
    training, _ = run
    assert training.repaired(training.stalled).stalled == ""
    other = next(part for part in traces.INPUT if part != training.stalled)
    assert training.repaired(other).stalled == training.stalled
    with pytest.raises(UsageError, match="no part of the input"):
        training.repaired("forward")


def test_seconds_in(run):
    """Stretches of one name are added up; a name that is not there took no time."""
    training, trace = run
    stalled_s = traces.seconds_in(trace, training.stalled)
    assert stalled_s >= traces.STEPS * traces.STALL_S
    assert traces.seconds_in(trace, "nothing of the kind") == 0


def test_right_gains():
    """Each repair goes to another trace."""
    assert check("32.3", lambda: GAINS).status == "right"


@pytest.mark.parametrize(
    ("repair", "trace", "told"),
    [
        ("kernels twice as fast", "alexnet", "gains at most <0.1 %"),
        ("copies and collectives behind kernels", "training-v100", "gains at most 0.9 %"),
        ("a host that is never late", "training-a100", "gains at most 16 %"),
        ("a host that is never late", "resnet", "is none of"),
    ],
)
def test_wrong_gains(repair, trace, told):
    """A wrong trace is told how little it gains."""
    judged = check("32.3", lambda: {**GAINS, repair: trace})
    assert judged.status == "wrong"
    assert told in judged.message


def test_gains_need_all_three():
    """An answer to one repair is not enough."""
    assert "give a trace for each" in check("32.3", lambda: {"a host": "alexnet"}).message


def test_table_is_text_and_html():
    """The public traces are shown in a terminal and in a notebook, with their source."""
    table = traces.table(traces.PUBLIC)
    for view in (repr(table), table._repr_html_()):
        assert "training-a100" in view
        assert "61 %" in view
        assert "HolisticTraceAnalysis (MIT licence)" in view
