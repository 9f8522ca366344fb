"""Lesson 31's exercises: the stub, plausible wrong answers, and only the solution passes."""

import numpy as np
import pytest

from perfkit.lessons import check, stopwatch

RIGHT = ["warm up", "drain", "start", "call", "drain", "stop", "report"]
WAITING = {"float(y)", "str(y)", "bool(y)", "np.asarray(y)"}


def stub():
    raise NotImplementedError


@pytest.fixture(params=["opencl", "thread"])
def device(request):
    """Both kinds of device that the lesson may get."""
    kinds = {"opencl": stopwatch._OpenCLArrays, "thread": stopwatch._ThreadArrays}
    return kinds[request.param]()


@pytest.mark.parametrize("name", ["31.1", "31.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def test_right_order():
    """The right order reports exactly the launch and the work."""
    assert stopwatch.follow(RIGHT) == 51
    assert check("31.1", lambda: RIGHT).status == "right"


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("warm up,start,call,drain,drain,stop,report", "warm-up was still running"),
        ("warm up,drain,drain,start,call,stop,report", "nobody waited for the call"),
        ("drain,start,warm up,call,drain,stop,report", "the first call"),
        ("warm up,drain,start,drain,stop,call,report", "not between start and stop"),
        ("warm up,drain,start,call,drain,report,stop", "before it has started and stopped"),
        ("warm up,drain,start,call,stop,report", "use each of these once"),
    ],
)
def test_wrong_order(order, told):
    """Each wrong order is told what is wrong with it."""
    answer = check("31.1", lambda: order.split(","))
    assert answer.status == "wrong"
    assert told in answer.message


def test_missing_drains_differ():
    """A drain missing before the start and one missing before the stop fail differently."""
    before_start = stopwatch.follow(["warm up", "start", "call", "drain", "stop", "report"])
    before_stop = stopwatch.follow(["warm up", "drain", "start", "call", "stop", "report"])
    assert before_stop < 51 < before_start


def test_right_waiting():
    """The expressions that need values are those that wait."""
    assert check("31.2", lambda: WAITING).status == "right"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (WAITING | {"y @ y"}, "after y @ y the work was still running"),
        (WAITING - {"str(y)"}, "str(y) wait too"),
        (set(stopwatch.EXPRESSIONS), "still running"),
        ({"y.shpae"}, "not among"),
    ],
)
def test_wrong_waiting(answer, told):
    """A wrong set is told which expressions are wrong, and how."""
    judged = check("31.2", lambda: answer)
    assert judged.status == "wrong"
    assert told in judged.message


def test_error_in_the_answer():
    """An answer that raises is wrong and names the error."""
    answer = check("31.1", lambda: 1 / 0)
    assert answer.status == "wrong"
    assert "ZeroDivisionError" in answer.message


def test_products_are_right(device):
    """The device multiplies matrices as NumPy does."""
    x = device.array(16)
    expected = np.full((16, 16), 1 / 16, "float32")
    np.testing.assert_allclose((x @ x).read(), expected @ expected, rtol=1e-5)


def test_products_are_asynchronous(device):
    """A product is not ready when its call returns, and is after a synchronize."""
    x = device.array(512)
    x.read()
    y = x @ x @ x
    running = not y.ready
    device.synchronize()
    assert running
    assert y.ready


@pytest.mark.parametrize("expression", stopwatch.EXPRESSIONS)
def test_waiting_is_found_on_both(device, expression):
    """Both devices agree on which expressions wait."""
    device.array(448).read()
    assert stopwatch.waits(device, expression) == (expression in WAITING)
