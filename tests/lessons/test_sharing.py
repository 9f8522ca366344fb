"""Lesson 21: copy or view, and addresses."""

import numpy as np
import pytest

from perfkit.lessons import check, sharing

COPIES = ("x[[1, 2]]", "x.T.reshape(12)", "x.astype(x.dtype)")
RIGHT = {name: "copy" if name in COPIES else "view" for name in sharing.PAIRS}


def stub():
    raise NotImplementedError


def told(answer):
    """The message of a wrong answer."""
    judged = check("21.2", lambda: answer)
    assert judged.status == "wrong"
    return judged.message


def test_stub_and_solution():
    """The stub is not attempted, the solution is right."""
    assert check("21.2", stub).status == "not attempted"
    assert check("21.2", lambda: RIGHT).status == "right"


@pytest.mark.parametrize("name", sharing.PAIRS)
def test_each_pair_counts(name):
    """One wrong pair is named, with its reason."""
    other = "view" if RIGHT[name] == "copy" else "copy"
    message = told({**RIGHT, name: other})
    assert message == f"{name} is a {RIGHT[name]}: {sharing.PAIRS[name].why}"


@pytest.mark.parametrize("name", sharing.PAIRS)
def test_pairs_do_what_their_name_says(name):
    """The expression and the function give the same."""
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(sharing.PAIRS[name].make(x), eval(name, {"x": x}))


def test_missing_and_odd_answers():
    """All six, and one of two words."""
    assert 'say "view" or "copy" for each of x[1:]' in told({"x.T": "view"})
    assert "'both' is neither" in told({**RIGHT, "x.T": "both"})


@pytest.mark.parametrize("boundary", [4, 16, 64, 4096])
def test_array_at(boundary):
    """The address is a multiple of this and not of twice as much; all elements are ours."""
    for _ in range(20):
        array = sharing.array_at(boundary, n=37)
        assert sharing.address(array) % (2 * boundary) == boundary
        assert array.shape == (37,)
        array[:] = 1


@pytest.mark.parametrize("boundary", [0, 2, 48])
def test_no_such_boundary(boundary):
    """What is no power of two gets one line."""
    with pytest.raises(ValueError, match="is no power of two from 4 on"):
        sharing.array_at(boundary)


def test_look_over_libraries():
    """NumPy, torch and JAX by their addresses; a copy has another."""
    import jax.numpy as jnp
    import torch

    x = sharing.array_at(64)
    assert sharing.look(x, torch.from_numpy(x)) == "shared"
    assert sharing.look(x, np.from_dlpack(x)) == "shared"
    assert sharing.look(x, jnp.from_dlpack(x)) == "shared"
    assert sharing.look(x, x.copy()) == "copied"
    assert sharing.look(x, torch.from_numpy(x).clone()) == "copied"
