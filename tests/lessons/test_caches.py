"""Lesson 11: lines against simple truths, the staircase's words, and both exercises."""

import tracemalloc

import numpy as np
import pytest

from perfkit.lessons import caches, check
from perfkit.records.base import Quality
from perfkit.records.tiers import Plateau, TierProbe
from perfkit.tiers.chase import walker

RIGHT = {
    "x[::1]": 25_000,
    "x[::8]": 25_000,
    "x[::64]": 6_250,
    "rows of a": 60_000,
    "columns of a": 480_000,
    "columns of f": 60_000,
}
PROBE = TierProbe.of(
    probe="memory.latency",
    curve=((4096, 1e-9), (2**20, 4e-9), (2**28, 1.5e-7)),
    plateaus=(
        Plateau(level="L1", seconds=1e-9, end_bytes=2**15, nominal_bytes=2**15),
        Plateau(level="L2", seconds=None, nominal_bytes=2**20),
        Plateau(level="DRAM", seconds=1.5e-7),
    ),
)
REFUSED = TierProbe.of(
    probe="memory.latency", quality=Quality(status="refused", reasons=("no way to walk memory",))
)


def stub(*_):
    raise NotImplementedError


def aligned(*shape):
    """Zeros of 8 bytes that begin with a line."""
    spare = np.zeros(int(np.prod(shape)) + 8)
    first = -spare.ctypes.data % 64 // 8
    return spare[first : first + int(np.prod(shape))].reshape(shape)


def by_loop(view, of, keeps):
    """The slowest simulator: a list whose end was used last."""
    kept, misses = [], 0
    for index in np.ndindex(view.shape):
        offset = sum(i * stride for i, stride in zip(index, view.strides, strict=True))
        line = (view.ctypes.data - of.ctypes.data + offset) // 64
        misses += line not in kept
        kept = [*[other for other in kept if other != line][-(keeps - 1) :], line]
    return misses


def test_lines_of_simple_loops():
    """All of it, every other element, one a line, a single one, and backwards."""
    x = aligned(64)
    views = (x, x[::2], x[::8], x[::16], x[:1], x[::-1])
    assert [caches.fetched(view, x) for view in views] == [8, 8, 8, 4, 1, 8]


@pytest.mark.parametrize("keeps", [2, 4, 7, 8, 100])
def test_lines_as_by_hand(keeps):
    """Any cache fetches what a plain loop over the addresses finds, in either order."""
    a = aligned(7, 24)
    for view in (a, a.T, a[::2, 1:], a.T[::3]):
        assert caches.fetched(view, a, keeps) == by_loop(view, a, keeps)


def test_columns_fit_or_do_not():
    """A cache with room for a column fetches each line once; one line less, and none is kept."""
    a = aligned(10, 16)
    assert caches.fetched(a.T, a, keeps=10) == a.nbytes // 64
    assert caches.fetched(a.T, a, keeps=9) == a.size


def test_description():
    """Shape, strides and order in words."""
    a = np.zeros((2, 3))
    assert caches.describe(a).startswith("shape (2, 3), strides (24, 8) bytes, C order")
    assert "Fortran order" in caches.describe(a.T)
    assert "not contiguous" in caches.describe(np.zeros((4, 4))[::2, ::2])


def test_levels():
    """A line for each level; what was not found is n/a; the last cache is not memory."""
    text = caches.levels(PROBE)
    assert [line.split()[0] for line in text.splitlines()] == ["level", "L1", "L2", "DRAM"]
    assert "n/a" in text
    assert caches.level(PROBE, "DRAM").seconds == 1.5e-7
    assert caches.level(PROBE, "L4").seconds is None
    assert caches.last_level(PROBE).level == "L2"


def test_staircase():
    """Each size has a row, and bars grow with the latency; HTML has the same figures."""
    picture = caches.Staircase(PROBE)
    lengths = [line.count("█") for line in repr(picture).splitlines()]
    assert lengths == sorted(lengths)
    assert lengths[0] >= 1 and lengths[-1] == 40
    for words in ("4.00 KiB", "4.00 ns", "150 ns"):
        assert words in repr(picture)
        assert words in picture._repr_html_()


def test_refused_probe_is_said():
    """Without figures there is a line with the reason, and nothing fails."""
    assert "no way to walk memory" in caches.levels(REFUSED)
    assert caches.last_level(REFUSED).end_bytes is None
    for text in (repr(caches.Staircase(REFUSED)), caches.Staircase(REFUSED)._repr_html_()):
        assert "no way to walk memory" in text


def test_hop():
    """A walk has a time and says its pages; page by page it visits each line once."""
    found = caches.hop(2**20, page_local=True, huge=False)
    assert (found is None) == (walker()[0] is None)
    assert found is None or 0 < found[0] < 1e-4
    order = caches._order(256, page_local=True)
    assert sorted(order) == list(range(256))
    assert (order.reshape(4, 64) // 64 == order[::64, None] // 64).all()


@pytest.mark.parametrize("name", ["11.1", "11.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def test_right_lines():
    """The six numbers."""
    assert check("11.1", lambda: RIGHT).status == "right"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x[::1]": 400_000}, "You counted elements: a line brings 16"),
        ({"x[::8]": 50_000}, "You counted elements"),
        ({"x[::8]": 3_125}, "only the bytes that are used: a line comes whole"),
        ({"x[::64]": 390.625}, "only the bytes that are used"),
        ({"rows of a": 480_000}, "You counted elements: a line brings 8"),
        ({"columns of a": 60_000}, "a column needs 600 lines and the cache keeps 512"),
        ({"columns of f": 480_000}, "You counted elements"),
        ({"x[::8]": 7}, "How many bytes lie between two elements"),
    ],
)
def test_wrong_lines(change, told):
    """Each wrong way to count is named."""
    judged = check("11.1", lambda: RIGHT | change)
    assert judged.status == "wrong"
    assert told in judged.message


def test_missing_loop():
    """A loop without a number is asked for."""
    assert "give a number for each" in check("11.1", lambda: {"x[::1]": 25_000}).message


@pytest.mark.parametrize(
    "pieces",
    [
        lambda a: a if a.flags.c_contiguous else a.T,
        lambda a: a if a.strides[0] >= a.strides[1] else a.T,
        lambda a: list(a if a.flags.c_contiguous else a.T),
        lambda a: iter(a.T if a.flags.f_contiguous else a),
        lambda a: [a.ravel("K")],
        lambda a: [a.reshape(-1, order="A")],
    ],
)
def test_right_pieces(pieces):
    """Rows, columns or one long piece, as a matrix, list or iterator: along the grain is right."""
    assert check("11.2", pieces).status == "right"


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (list, "in Fortran order a piece has strides of (2048,) bytes"),
        (lambda a: a, "in Fortran order a piece has strides"),
        (lambda a: a.T, "in C order a piece has strides"),
        (np.ascontiguousarray, "bytes were allocated, so there is a copy"),
        (lambda a: a.copy("C"), "so there is a copy"),
        (lambda a: [a.ravel()], "in Fortran order 7"),
        (lambda a: (np.ascontiguousarray(row) for row in a), "so there is a copy"),
        (
            lambda a: np.ascontiguousarray(a).sum() and (a if a.flags.c_contiguous else a.T),
            "so there is a copy",
        ),
        (lambda a: a[:1], "do not hold each of the 98,304 elements once"),
        (lambda a: [], "do not hold each"),
        (lambda a: [*a, a[0]], "do not hold each"),
        (lambda a: a.flat, "in C order"),
    ],
)
def test_wrong_pieces(pieces, told):
    """Values first, then copies, then strides: each told."""
    judged = check("11.2", pieces)
    assert judged.status == "wrong"
    assert told in judged.message


def test_tracing_goes_on():
    """A learner's own tracemalloc is left as it was."""
    tracemalloc.start()
    try:
        check("11.2", lambda a: a)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    check("11.2", lambda a: a)
    assert not tracemalloc.is_tracing()
