"""The texts of errors: what, why, what to do, in one line."""

import pytest

import perfkit
from perfkit import errors, optional
from perfkit.magics import gpu_time, options


def text(call):
    """The message of the PerfkitError that `call` raises."""
    with pytest.raises(errors.PerfkitError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


CASES = {
    "repeat": (
        lambda: perfkit.time_call(int, repeat=0),
        "repeat is 0: give a whole number from 1, or 'auto'",
    ),
    "warmup": (
        lambda: perfkit.time_call(int, warmup=-1),
        "warmup is -1: give a whole number from 0",
    ),
    "budget": (
        lambda: perfkit.time_call(int, budget_s=-1),
        "budget is -1: give seconds above 0",
    ),
    "not callable": (
        lambda: perfkit.time_call(3),
        "time_call times a function, not int: wrap it in lambda:",
    ),
    "backend unknown": (
        lambda: perfkit.time_call(int, backend="opengl"),
        "backend 'opengl' is not known: did you mean opencl?",
    ),
    "option unknown": (
        lambda: options.parse("%%gpu_time", gpu_time.OPTIONS, "--repeats 3"),
        "%%gpu_time: option --repeats is not known: did you mean --repeat?",
    ),
    "option value": (
        lambda: options.parse("%%gpu_time", gpu_time.OPTIONS, "-r 0"),
        "%%gpu_time: -r 0: give a whole number from 1, or auto",
    ),
    "option without value": (
        lambda: options.parse("%%gpu_time", gpu_time.OPTIONS, "-o"),
        "%%gpu_time: -o needs a value: -o NAME",
    ),
    "prediction": (
        lambda: perfkit.predict("x", "many", unit="s"),
        "predict('x'): 'many' is not a number: give one in s",
    ),
    "exercise": (
        lambda: perfkit.check("31.9", int),
        "there is no exercise '31.9': there are 31.1, 31.2",
    ),
    "package": (
        lambda: optional.require("no_such_package_here", "a test"),
        "a test needs no_such_package_here, which is not installed: "
        "pip install 'no_such_package_here'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    """The error says what is wrong and what to do, in exactly these words."""
    call, expected = CASES[case]
    assert text(call) == expected


def test_one_line_in_a_notebook():
    """IPython shows a perfkit error as its one line, without a traceback."""
    assert errors.UsageError("this")._render_traceback_() == ["UsageError: this"]


def test_errors_say_cause_and_cure():
    """Every error class is documented."""
    assert all(getattr(errors, name).__doc__ for name in errors.__all__)
