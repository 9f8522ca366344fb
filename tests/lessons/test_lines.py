"""Lesson 30: its EM code against plain loops, its helpers, and both exercises."""

import re
from pathlib import Path

import numpy as np
import pytest
from line_profiler import LineProfiler

from perfkit.errors import UsageError
from perfkit.lessons import check, em_gmm, lines
from perfkit.measure.lines.profile import profile_lines

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "30_lines.ipynb"
CONTRACTS = {"sums": em_gmm.by_sums, "matmul": em_gmm.by_matmul}
TURNED = "nkd,kde->nke"


def stub(*_, **__):
    raise NotImplementedError


def leaving_out(*left_out, else_compute=em_gmm.by_sums):
    """An answer to 30.2 that looks some products up and computes the others."""

    def contract(subscripts, *arrays, kept):
        return kept[subscripts] if subscripts in left_out else else_compute(subscripts, *arrays)

    return contract


def gains(monkeypatch, won, promised=4.0):
    """Let the step gain `won` without the line, whatever this machine does."""
    monkeypatch.setattr(lines, "best_times", lambda *functions, rounds: (won, 1.0))
    monkeypatch.setattr(lines, "_promise", lambda x, z: promised)


def slow_step(x, z):
    """One step of EM as the textbook writes it: one point and one Gaussian at a time."""
    n, k = z.shape
    density = np.empty((n, k))
    for j in range(k):
        weight = sum(z[i, j] for i in range(n))
        mean = sum(z[i, j] * x[i] for i in range(n)) / weight
        spread = sum(z[i, j] * np.outer(x[i] - mean, x[i] - mean) for i in range(n)) / weight
        spread += em_gmm.RIDGE * np.eye(x.shape[1])
        for i in range(n):
            distance = (x[i] - mean) @ np.linalg.inv(spread) @ (x[i] - mean)
            density[i, j] = weight / n * np.exp(-0.5 * distance) / np.linalg.det(spread) ** 0.5
    return density / density.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_step_is_right(contract):
    """A step gives what plain loops give, with both ways to compute the products."""
    x, z = em_gmm.data(n=60, d=3, k=2)
    np.testing.assert_allclose(em_gmm.step(x, z, contract), slow_step(x, z), rtol=1e-9)


def test_hot_line_is_in_the_code():
    """Each product of the step has subscripts of its own, and the hot line's are among them."""
    seen = []
    em_gmm.step(*em_gmm.data(n=20, d=3, k=2), lambda s, *a: seen.append(s) or em_gmm.by_sums(s, *a))
    assert len(seen) == len(set(seen)) == 4
    assert em_gmm.HOT in seen


def test_data_are_the_same():
    """Each call gives the same points, and guesses that add up to one."""
    (x, z), (again, _) = em_gmm.data(n=20, d=3, k=2), em_gmm.data(n=20, d=3, k=2)
    assert (x == again).all()
    np.testing.assert_allclose(z.sum(axis=1), 1)


def watched():
    total = 0
    for i in range(50):
        total += i
    return sorted(range(20_000), key=str)


def test_row_finds_a_statement():
    """A statement is found by its words; one that is not there is named."""
    profile = profile_lines(watched)
    assert lines.row(profile, "sorted").source.strip().startswith("return sorted")
    with pytest.raises(UsageError, match="'median'"):
        lines.row(profile, "median")


def test_plain_shares_add_up():
    """line_profiler's shares of the lines of a function are parts of one."""
    profiler = LineProfiler(watched)
    profiler.runcall(watched)
    parts = [lines.plain_share(profiler, words) for words in ("total", "for i", "return")]
    assert sum(parts) == pytest.approx(1)
    assert min(parts) > 0


def test_best_times_take_turns():
    """Functions run in turn, and each has a time."""
    order = []
    times = lines.best_times(lambda: order.append("a"), lambda: order.append("b"), rounds=3)
    assert order == ["a", "b"] * 3
    assert len(times) == 2


@pytest.mark.parametrize("name", ["30.1", "30.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def test_table_in_the_notebook():
    """The lesson's table shows the fixes that are judged."""
    shown = re.findall(r"\| (\w+) \| (\d+) % \| (\d+) \| (\d+) \|", NOTEBOOK.read_text("utf-8"))
    assert {name: tuple(map(int, figures)) for name, *figures in shown} == {
        name: (round(100 * fix.share), fix.factor, fix.days) for name, fix in lines.FIXES.items()
    }


def test_gain_is_amdahls():
    """Two fixes gain what their lines lose, by hand: 1 / (1 - 0.28 * 3/4 - 0.12 * 5/6)."""
    assert lines.gain(["reading", "printing"]) == pytest.approx(1 / 0.69)
    assert lines.gain([]) == 1
    assert lines.days(["reading", "printing"]) == 3


def test_right_plan():
    """The best set passes, in any order and as any collection."""
    assert check("30.1", lambda: {"reading", "printing"}).status == "right"
    assert check("30.1", lambda: ["printing", "reading"]).status == "right"


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"inverse", "copies"}, "You took the largest factors"),
        ({"contraction"}, "You took the largest share"),
        ({"reading"}, "1.27 times as fast; there are 3 days that make it 1.45"),
        ({"copies", "printing"}, "1.36 times as fast; there are 3 days that make it 1.45"),
        (set(), "1.00 times as fast"),
        ({"reading", "copies"}, "that takes 4 days, and you have 3"),
        (set(lines.FIXES), "that takes 9 days"),
        ({"raeding"}, "not among contraction, reading"),
    ],
)
def test_wrong_plan(plan, told):
    """Each wrong plan is told why; the two greedy ones by name."""
    answer = check("30.1", lambda: plan)
    assert answer.status == "wrong"
    assert told in answer.message


def test_right_ablation():
    """Without the hot line the step gains about what its profile promised, on any machine."""
    assert check("30.2", leaving_out(em_gmm.HOT)).status == "right"


def test_ablation_by_get():
    """A product that is looked up with `get` counts as looked up."""

    def contract(subscripts, *arrays, kept):
        found = kept.get(subscripts) if subscripts == em_gmm.HOT else None
        return em_gmm.by_sums(subscripts, *arrays) if found is None else found

    assert check("30.2", contract).status == "right"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (leaving_out(TURNED), "that is the wrong line"),
        (leaving_out("nk,nd->kd"), "that is the wrong line"),
        (leaving_out(), "nothing is left out"),
        (leaving_out(em_gmm.HOT, TURNED), "2 products were left out"),
        (leaving_out(em_gmm.HOT, TURNED, "nk,nd->kd", "nke,nke->nk"), "4 products were left out"),
        (lambda subscripts, *arrays, kept: 2 * kept[subscripts], "another result"),
        (lambda subscripts, *arrays, kept: kept["spread"], "KeyError"),
    ],
)
def test_wrong_ablation(answer, told):
    """Each wrong answer is told what is wrong, whatever its times are."""
    judged = check("30.2", answer)
    assert judged.status == "wrong"
    assert told in judged.message


@pytest.mark.parametrize("won", [2.5, 4.0, 8.0])
def test_promise_has_a_wide_margin(monkeypatch, won):
    """A gain of 2.5 or 8 where 4 was promised is a noisy machine, not a wrong answer."""
    gains(monkeypatch, won)
    assert check("30.2", leaving_out(em_gmm.HOT)).status == "right"


@pytest.mark.parametrize("won", [0.8, 1.0, 1.3, 50.0])
def test_promise_is_not_kept(monkeypatch, won):
    """Looked up and still computed, or more left out than the line: told so."""
    gains(monkeypatch, won)
    answer = check("30.2", leaving_out(em_gmm.HOT))
    assert answer.status == "wrong"
    assert "Amdahl promised 4.0" in answer.message
