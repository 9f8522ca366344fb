"""Lesson 21: rounding to fewer bits, products in turns, switches, lines for a script."""

import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from perfkit.lessons import check, precision


def stub(*_):
    raise NotImplementedError


def solution(x, bits):
    """As the lesson's: by parts and exponents."""
    part, exponent = np.frexp(x)
    return np.ldexp(np.rint(part * 2 ** (bits + 1)), exponent - bits - 1)


def decimals(x, bits):
    return np.round(x, 2)


def in_place(x, bits):
    x[:] = precision.rounded(x, bits)
    return x


def without_special(x, bits):
    return np.where(np.isinf(x), np.float32(0), precision.rounded(x, bits))


# -- exercise 21.1 -------------------------------------------------------------------------------


def test_stub_and_solution():
    """The stub is not attempted, the solution is right."""
    assert check("21.1", stub).status == "not attempted"
    assert check("21.1", solution).status == "right"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, bits: precision.rounded(x, bits, ties="cut"), "That cuts bits off"),
        (lambda x, bits: precision.rounded(x, bits, ties="away"), "to the even neighbour"),
        (lambda x, bits: solution(x.astype(float), bits), "you gave float64"),
        (lambda x, bits: list(x), "you gave list"),
        (lambda x, bits: solution(x, bits)[1:], "of the shape of x"),
        (lambda x, bits: solution(x, 7), "bits=10"),
        (lambda x, bits: x.copy(), "Which multiple of the last bit is nearest"),
        (decimals, "Decimals are no bits"),
        (in_place, "changed x"),
        (without_special, "Infinity and NaN stay"),
    ],
)
def test_wrong(wrong, message):
    """Each tempting answer is told what is wrong with it."""
    judged = check("21.1", wrong)
    assert judged.status == "wrong"
    assert message in judged.message


def test_seven_bits_are_bfloat16():
    """Bit for bit what another library's bfloat16 holds, ties, overflow and signs among them."""
    import ml_dtypes

    x = precision._values()
    with np.errstate(over="ignore"):
        theirs = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    ours = precision.rounded(x, 7)
    usual = ~np.isnan(x)
    np.testing.assert_array_equal(ours[usual].view("uint32"), theirs[usual].view("uint32"))
    assert np.isnan(ours[~usual]).all()


def test_ten_bits_are_float16_in_its_range():
    """float16 has ten bits too."""
    x = np.random.default_rng(1).uniform(-100, 100, 5000).astype(np.float32)
    np.testing.assert_array_equal(precision.rounded(x, 10), x.astype(np.float16).astype("f4"))


def test_error_falls_by_two_for_each_bit():
    """Three bits fewer are an error of eight times the size."""
    x, y = np.random.default_rng(2).standard_normal((2, 128, 128)).astype(np.float32)
    exact = x.astype(float) @ y.astype(float)
    short, shorter = (
        precision.error(precision.rounded(x, bits) @ precision.rounded(y, bits), exact)
        for bits in (10, 7)
    )
    assert 7 < shorter / short < 9


# -- in turns ------------------------------------------------------------------------------------


def test_turns():
    """Each has a turn in each round, and the longer one takes longer."""
    seen = []

    def call(name, pause_s):
        return lambda: (seen.append(name), time.sleep(pause_s))

    turns = precision.in_turns({"a": call("a", 0.001), "b": call("b", 0.01)}, rounds=3)
    assert seen == ["a", "b"] * 4
    assert turns["b"] > 2 * turns["a"]
    assert "1.00 x" in repr(turns)


def test_thread_counts_come_back():
    """One thread meanwhile, and as many as before afterwards, also for torch and after an error."""
    import torch

    def threads():
        pools = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
        return pools, torch.get_num_threads()

    def fail():
        meanwhile.append(threads())
        raise RuntimeError("halfway")

    meanwhile = []
    with threadpool_limits(2):
        torch.set_num_threads(2)
        before = threads()
        with pytest.raises(RuntimeError, match="halfway"):
            precision.in_turns({"fail": fail})
        assert threads() == before
    pools, of_torch = meanwhile[0]
    assert set(pools) == {1}
    assert of_torch == 1


# -- switches and lines for a script -------------------------------------------------------------


def test_switches_of_torch():
    """The new switch and the old one are there, and what they are set to."""
    import torch

    rows = dict(line.split()[:2] for line in repr(precision.switches()).splitlines()[2:])
    now = str(torch.backends.cuda.matmul.fp32_precision)
    assert rows["torch.backends.cuda.matmul.fp32_precision"] == now
    now = torch.get_float32_matmul_precision()
    assert rows["torch.get_float32_matmul_precision()"] == now


def test_guard_passes_here_and_fails_elsewhere():
    """The lines run as they are, and fail for another type and another number of threads."""
    a = np.zeros(3)
    with threadpool_limits(2, user_api="blas"):
        lines = precision.guard(a=a)
        exec(lines, {"a": a})
        with pytest.raises(AssertionError):
            exec(lines, {"a": a.astype("float32")})
    with threadpool_limits(1, user_api="blas"), pytest.raises(AssertionError):
        exec(lines, {"a": a})


@pytest.mark.gpu
def test_on_gpu():
    """TF32 is the less exact one, and the switch is as before."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    before = torch.backends.cuda.matmul.fp32_precision
    x, y = np.random.default_rng(2).standard_normal((2, 512, 512)).astype(np.float32)
    text = repr(precision.on_gpu(x, y, x.astype(float) @ y.astype(float)))
    assert "tf32" in text
    assert torch.backends.cuda.matmul.fp32_precision == before
