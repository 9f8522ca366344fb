"""The fast EM gives the answer of the one that was begun, and cheats do not."""

import tracemalloc

import numpy as np
import pytest

from perfkit.lessons import em_gmm

SHAPES = [(700, 6, 3), (513, 2, 1), (40, 3, 2), (1024, 10, 4)]


def apart(z, other):
    """How far two results are from each other, in the mean."""
    return np.abs(z - other).mean()


@pytest.mark.parametrize("shape", SHAPES)
def test_double_precision_is_the_same(shape):
    """With float64, blocks change nothing that matters, whatever the last block's size."""
    x, z = em_gmm.data(*shape)
    np.testing.assert_allclose(
        em_gmm.fit_blocks(x, z, dtype="float64"), em_gmm.fit(x, z), rtol=1e-6, atol=1e-10
    )


@pytest.mark.parametrize("block", [1, 7, 512, 10_000])
def test_any_block(block):
    """Blocks of one point, uneven blocks and a single block give the same."""
    x, z = em_gmm.data(300, 5, 3)
    got = em_gmm.fit_blocks(x, z, 3, dtype="float64", block=block)
    np.testing.assert_allclose(got, em_gmm.fit(x, z, 3), rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_single_precision_is_the_same_answer(seed):
    """With float32, z differs by less than the tolerance in the mean, on other points too."""
    random = np.random.default_rng(seed)
    x, z = random.random((2000, 50)), random.random((2000, 5))
    z /= z.sum(axis=1, keepdims=True)
    got = em_gmm.fit_blocks(x, z)
    assert got.dtype == np.float32
    assert apart(got, em_gmm.fit(x, z)) < em_gmm.TOLERANCE / 3


def test_far_from_the_origin():
    """A thousand added to all points costs float32 nothing, since they are centred first."""
    x, z = em_gmm.data(1000, 20, 3)
    assert apart(em_gmm.fit_blocks(x + 1000, z), em_gmm.fit(x, z)) < em_gmm.TOLERANCE


def test_tolerance_tells_a_step_left_out():
    """One step less is not the same answer, nor are inputs in half precision."""
    x, z = em_gmm.data(2000, 50, 5)
    right = em_gmm.fit(x, z)
    assert apart(em_gmm.fit(x, z, 9), right) > 10 * em_gmm.TOLERANCE
    rounded = x.astype("float16").astype("float64")
    assert apart(em_gmm.fit(rounded, z), right) > em_gmm.TOLERANCE


def test_rows_add_up_and_inputs_stay():
    """Each point belongs to all Gaussians together once, and neither input is written to."""
    x, z = em_gmm.data(600, 4, 3)
    before = x.copy(), z.copy()
    got = em_gmm.fit_blocks(x, z)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)
    assert (x == before[0]).all()
    assert (z == before[1]).all()


def test_no_steps():
    """Without a step z is what was given."""
    x, z = em_gmm.data(30, 3, 2)
    assert em_gmm.fit(x, z, 0) is z
    np.testing.assert_allclose(em_gmm.fit_blocks(x, z, 0), z, rtol=1e-6)


def peak_bytes(function, *arguments):
    """What was allocated at most while `function` ran."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_large_array():
    """The begun program makes an array of N by K by D, the fast one nothing as large."""
    x, z = em_gmm.data(4000, 20, 5)
    large = 8 * 4000 * 5 * 20
    assert peak_bytes(em_gmm.fit, x, z, 1) > large
    assert peak_bytes(em_gmm.fit_blocks, x, z, 1) < large / 2
