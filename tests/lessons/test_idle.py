"""Lesson 33: each check against the stub, plausible wrong answers and solutions."""

import queue
import threading

import numpy as np
import pytest

from perfkit.lessons import check, idle
from perfkit.measure.timeline import record_timeline


@pytest.fixture(scope="module")
def training():
    """A training whose step has been compiled."""
    return idle.Training()


def stub(loop):
    """As the learner finds it."""
    raise NotImplementedError


def late(loop):
    """Reads the loss one step late."""
    before = None
    for i in range(loop.steps):
        loss = loop.step(loop.load(i))
        if before is not None:
            loop.log(i - 1, float(before))
        before = loss
    loop.log(loop.steps - 1, float(before))


def on_a_thread(loop):
    """Another thread reads."""
    waiting = queue.Queue()

    def read():
        while (item := waiting.get()) is not None:
            loop.log(item[0], float(item[1]))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(loop.steps):
        waiting.put((i, loop.step(loop.load(i))))
    waiting.put(None)
    reader.join()


def every_tenth(loop):
    """The article's interval: nine of ten values are lost."""
    for i in range(loop.steps):
        loss = loop.step(loop.load(i))
        if i % 10 == 0:
            loop.log(i, float(loss))


def stale(loop):
    """A value for every step, but an old one."""
    value = 0.0
    for i in range(loop.steps):
        loss = loop.step(loop.load(i))
        if i % 10 == 0:
            value = float(loss)
        loop.log(i, value)


def shuffled(loop):
    """All values, but not in order."""
    losses = [(i, loop.step(loop.load(i))) for i in range(loop.steps)]
    for i, loss in losses[::-1]:
        loop.log(i, float(loss))


def fewer_steps(loop):
    """Trains half."""
    loop.steps //= 2
    late(loop)
    loop.steps *= 2


@pytest.mark.parametrize("answer", [late, on_a_thread])
def test_every_value_without_the_stall(answer):
    """Reading late, or on a thread, keeps every value and is faster."""
    found = check("33.1", answer)
    assert found.status == "right", found.message
    assert "all 20 values" in found.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (idle.every_step, "waited for the step that was given last"),
        (every_tenth, "2 of 20 values"),
        (stale, "its loss is"),
        (shuffled, "in order"),
        (fewer_steps, "steps were given"),
    ],
)
def test_wrong_loops(answer, words):
    """The first loop, a longer interval and stale values are told apart."""
    found = check("33.1", answer)
    assert found.status == "wrong" and words in found.message


def padded(batch):
    """Zeros behind the rows, and a mask."""
    rows, mask = np.zeros((64, 4), np.float32), np.zeros(64, np.float32)
    rows[: len(batch)], mask[: len(batch)] = batch, 1
    return rows, mask


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda batch: (padded(batch)[0], np.ones(64, np.float32)), "must not count"),
        (lambda batch: (batch, np.ones(len(batch), np.float32)), "ten batches made 10 programs"),
        (lambda batch: (padded(batch)[0][:8], padded(batch)[1][:8]), "must not count"),
        (lambda batch: (padded(batch)[0], 1.0), "one number for each row"),
    ],
)
def test_wrong_padding(answer, words):
    """Padding that counts, none at all, and rows cut off."""
    found = check("33.2", answer)
    assert found.status == "wrong" and words in found.message


def test_padding():
    """Ten lengths, one program, the same losses."""
    assert check("33.2", padded).status == "right"


def test_stubs():
    """A stub is not attempted."""
    assert {check(name, stub).status for name in ("33.1", "33.2")} == {"not attempted"}


def test_load_is_the_cause_of_its_gaps(training):
    """Loading and reading leave the device idle more than either, and the load is named."""
    found = {}
    for way in (idle.LOOPS[1], idle.LOOPS[3]):
        timeline = record_timeline(lambda way=way: training.run(way), backend="jax")
        found[way.name] = idle.outcome(way, timeline)
    read, both = found.values()
    assert both.duty < read.duty and both.step_s > read.step_s
    assert both.cause == "data loading, load"
    assert "loads and reads" in repr(idle.table([read, both]))


def test_ways_do_what_they_say(training):
    """Losses are read where the way says so; new shapes are traced; a thread ends with its run."""
    threads = threading.active_count()
    assert len(training.run(idle.LOOPS[4], steps=4)) == 4
    assert training.run(idle.LOOPS[2], steps=3) == []
    before = training.traces
    training.run(idle.LOOPS[7], steps=4)
    assert training.traces == before + 3
    assert threading.active_count() == threads


def test_names_are_in_the_program(training):
    """Every name of the step is in the compiled program."""
    found = idle.scopes(training.program())
    assert set(found) == {"forward", "backward", "update"} and found["forward"] >= 4
