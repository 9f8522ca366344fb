"""Lesson 00: bets and their slips, the race, the three machines, rounds a day."""

import time

import pytest

from perfkit import ledger
from perfkit.errors import UsageError
from perfkit.lessons import bets, check, em_gmm, predict, race, rounds, start
from perfkit.records.doctor import Diagnosis, Gpu, Processor, Surroundings
from perfkit.records.machine import Limits

RIGHT = {
    "notes": {"laptop", "pod", "node"},
    "loader": {"laptop", "node"},
    "table": {"laptop", "node"},
    "training": set(),
}


@pytest.fixture(autouse=True)
def own_ledger(tmp_path, monkeypatch):
    """What is kept lands in a file of its own, and no prediction of before is known."""
    monkeypatch.setenv("PERFKIT_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setattr("perfkit.lessons.predictions._said", {})


def stub(*_):
    raise NotImplementedError


def told(number, answer):
    """The message of a wrong answer."""
    judged = check(number, answer)
    assert judged.status == "wrong"
    return judged.message


# -- bets ----------------------------------------------------------------------------------------


def test_slip_says_what_is_missing():
    """The slip shows each bet with its unit, and counts those without a number."""
    placed = predict("bet.loop", 50, unit="times as long")
    text = repr(bets.slip(placed, predict("bet.disk", unit="times as long")))
    assert "50 times as long" in text
    assert "lesson 20" in text
    assert "1 of 2 are missing" in text


def test_slip_when_all_are_placed():
    """Nothing is missing then."""
    assert "All are placed" in repr(bets.slip(predict("bet.cache", 3, unit="epochs")))


def test_settled_bet_shows_both():
    """A bet is found again in the ledger by another kernel."""
    predict("bet.disk", 10, unit="times as long")
    line = bets.settle("bet.disk", 400)
    assert "10 times as long" in line
    assert "400 times as long" in line
    assert "too low by 40.0 x" in line
    assert "bet 2" in line


def test_settling_without_a_bet():
    """Who skipped lesson 00 sees the measured figure with its unit."""
    assert "you predicted nothing; measured: 97 % of the time" in bets.settle("bet.share", 97)


def test_no_such_bet():
    """A wrong key is told in one line with the right ones."""
    with pytest.raises(UsageError, match=r"'bet.horse' is no bet: there are bet.loop"):
        bets.settle("bet.horse", 1)


def test_line_is_escaped():
    """What a line says is text in HTML."""
    assert "&lt;b&gt;" in bets.Line("<b>")._repr_html_()


# -- the race ------------------------------------------------------------------------------------


def test_race_takes_turns_and_counts():
    """Each runner has one try at least, the quick one more, and each its own answer."""
    x, z = em_gmm.data(n=600, d=8, k=3)
    seen = []

    def runner(name, pause_s):
        def fit(x, z, *steps):
            seen.append(name)
            time.sleep(pause_s)
            return 0 * x + len(name)

        return fit

    found = race.run({"ab": runner("ab", 0), "c": runner("c", 0.02)}, x, z, seconds=0.05)
    assert seen[:4] == ["ab", "c", "ab", "c"]
    assert found["ab"].tries > 3 * found["c"].tries >= 3
    assert found["ab"].per_minute > 3 * found["c"].per_minute
    assert (found["ab"].answer - found["c"].answer == 1).all()


def test_race_ends_tries_that_take_longer():
    """A try that is longer than the time still counts."""
    x, z = em_gmm.data(n=600, d=8, k=3)
    assert race.run({"fit": em_gmm.fit}, x, z, seconds=0)["fit"].tries == 1


def test_picture_has_a_square_for_each_try():
    """As many squares as tries in a minute, up to a most that is named."""
    few = race.Race(fit=race.Runner(em_gmm.fit, tries=3, seconds=2.0))
    many = race.Race(fit=race.Runner(em_gmm.fit, tries=race.MOST + 7, seconds=60.0))
    assert repr(few).count("■") == 90
    assert repr(many).count("■") == race.MOST
    assert "and 7 more" in repr(many)


# -- exercise 00.1 -------------------------------------------------------------------------------


def test_machines_stub_and_solution():
    """The stub is not attempted, the solution is right."""
    assert check("00.1", stub).status == "not attempted"
    assert check("00.1", lambda: RIGHT).status == "right"


@pytest.mark.parametrize(
    ("job", "names", "message"),
    [
        ("loader", {"laptop", "pod", "node"}, "loader may not run on pod: it needs 4 CPUs and"),
        ("table", {"laptop", "pod", "node"}, "table may not run on pod: it needs 8.00 GiB"),
        ("training", {"node"}, "24.0 GiB on a GPU and gets 10.0 GiB"),
        ("training", {"laptop"}, "on a GPU, and there is none"),
        ("notes", {"laptop"}, "notes may run on pod: a process gets 1 CPU"),
        ("notes", {"laptop", "cloud"}, "cloud is none of laptop, pod, node"),
    ],
)
def test_machines_wrong(job, names, message):
    """Each wrong answer is told the figure that counts."""
    assert message in told("00.1", lambda: {**RIGHT, job: names})


def test_machines_one_job_is_missing():
    """All jobs must be answered."""
    assert "for each of notes" in told("00.1", lambda: {"notes": {"pod"}})


def test_batch_grant_counts():
    """What a scheduler granted limits the CPUs where no mask does."""
    job = Diagnosis.of(
        machine=start.MACHINES["node"].machine,
        limits=Limits(cpus=128),
        processor=Processor(cpus=128),
        surroundings=Surroundings(cpus_granted=4),
    )
    assert start.cpus(job) == 4


def test_whole_gpu_without_slices():
    """A GPU that is not cut counts whole; the largest one counts."""
    pair = (Gpu(index=0, name="a", memory_bytes=8), Gpu(index=1, name="b", memory_bytes=24))
    machine = start.MACHINES["node"]
    two = Diagnosis.of(machine=machine.machine, limits=machine.limits, gpus=pair)
    assert start.gpu_bytes(two) == 24
    assert start.gpu_bytes(machine) == 10 * 2**30


def test_table_has_a_column_for_this_machine():
    """This machine stands beside the three, limits that are not there are named."""
    text = repr(start.machines(start.MACHINES["pod"]))
    assert "yours" in text
    assert text.count("Kubernetes, JupyterHub") == 2
    assert "yours" not in repr(start.machines())


# -- exercise 00.2 and the learner's own loop ----------------------------------------------------


def test_rounds_stub_and_solution():
    """The stub is not attempted; a loop through the day is as right as the formula."""

    def slowly(run, think, hours=8):
        left, count = hours * 60, 0
        while left >= run + think:
            left, count = left - run - think, count + 1
        return count

    assert check("00.2", stub).status == "not attempted"
    assert check("00.2", slowly).status == "right"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda run, think, hours=8: hours * 60 // max(run, 1), "thinking is part of every round"),
        (lambda run, think, hours=8: 32 * 10 // (run or 5), "does not double the rounds"),
        (lambda run, think, hours=8: 480 // (run + think), "as many hours as `hours` says"),
        (lambda run, think, hours=8: hours * 60 / (run + think), "count whole ones"),
        (lambda run, think, hours=8: 0, "How long is one round"),
        (lambda run, think, hours=8: "many", "give a number"),
    ],
)
def test_rounds_wrong(wrong, message):
    """Each tempting formula is told what it leaves out."""
    assert message in told("00.2", wrong)


def test_bars_grow_with_the_rounds():
    """The longest bar is the run that takes no time."""
    html = rounds.bars(lambda run, think: 480 // (run + think), (10, 0), think=10)._repr_html_()
    assert "left center/50.0%" in html
    assert "left center/100.0%" in html


def test_own_loop_is_kept():
    """Three hours of waiting: half of it gives back as many rounds as the sum says."""
    line = rounds.own_loop(30, 6, "the learning rate")
    (entry,) = ledger.entries("own.loop")
    assert b"the learning rate" in bytes(entry.record)
    assert "you wait 3.0 hours a day" in line
    assert "7.4 rounds" in line  # 8 h / (50 min thinking + 15 min)


def test_own_loop_of_a_long_run():
    """More waiting than a day has is said, not reckoned with."""
    assert "while you sleep" in rounds.own_loop(600, 2)


def test_own_loop_without_numbers():
    """Nothing is kept as long as a number is missing."""
    assert "nothing is kept" in rounds.own_loop(None, 3)
    assert not list(ledger.entries("own.loop"))


@pytest.mark.parametrize("value", [0, -1, "long", True, float("nan")])
def test_own_loop_of_no_number(value):
    """What is no number above 0 gets one line."""
    with pytest.raises(UsageError, match="give a number above 0"):
        rounds.own_loop(value, 3)
