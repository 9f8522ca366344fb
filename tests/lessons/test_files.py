"""Lesson 41: the data set and what its reads prove, arithmetic by hand, and both exercises."""

import re
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest

from perfkit import time_io
from perfkit.lessons import check, files
from perfkit.lessons.files import Cell, Run

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "41_files.ipynb"
CHUNKS = {"rows": (1, 4096), "clips": (8, 4096), "columns": (10_000, 1)}


def stub(*_):
    raise NotImplementedError


def solved(first, second, opens, nbytes):
    """Two equations by NumPy."""
    runs = [[run.opens, run.nbytes] for run in (first, second)]
    open_s, byte_s = np.linalg.solve(runs, [first.seconds, second.seconds])
    return opens * open_s + nbytes * byte_s


@pytest.fixture
def data(tmp_path):
    """A small data set, removed again."""
    made = files.DataSet(tmp_path, items=20)
    yield made
    made.close()


def test_layouts_hold_the_same(data):
    """Files and HDF5 give the same bytes, raw and as JPEG."""
    for kind in files.KINDS:
        with h5py.File(data.folder / f"{kind}.h5") as file:
            assert file["pictures"].shape[0] == data.items == 20
            for number in range(data.items):
                content = (data.folder / kind / f"{number:04}").read_bytes()
                assert bytes(file["pictures"][number]) == content


@pytest.mark.parametrize("kind", files.KINDS)
def test_both_ways_read_all(data, kind):
    """Every picture has all its values, whichever way and order."""
    numbers = data.numbers("random")
    assert sorted(numbers) == data.numbers("in order")
    values = data.items * files.ITEM_BYTES
    assert data.read_many(kind, numbers) == data.read_one(kind, numbers) == values


def test_close_removes_all(tmp_path):
    """Nothing is left after close, and a second one does no harm."""
    data = files.DataSet(tmp_path, items=2)
    data.close()
    data.close()
    assert list(tmp_path.iterdir()) == []


def test_requested_bytes(data):
    """The kernel's count has each picture once from files, and whole chunks from HDF5."""
    run = time_io(lambda: data.read_many("raw", data.numbers("random")))
    if run.read_requested_bytes is None:
        return
    wanted = data.items * files.ITEM_BYTES
    assert round(run.read_requested_bytes / wanted) == 1
    for rows in (1, 10):
        path = data.rechunk(rows)
        run = time_io(lambda path=path: data.read_chunked(path, data.numbers("random")))
        assert round(run.read_requested_bytes / wanted) == rows


def test_cells(data):
    """A measured cell becomes a row below its heads."""
    measured = data.measure(Cell("JPEG", "random", "cold"), rounds=1)
    assert measured.gain > 0
    head, row = files.table([measured]).splitlines()
    assert row.startswith("cold, JPEG, random")
    assert len(head) == len(row)


def test_runs(data):
    """Runs over files say how many were opened and the bytes in them."""
    assert data.run(1000, 5)[:2] == data.run(1000, 5)[:2] == (5, 5000)
    assert data.epoch()[:2] == (20, 20 * files.ITEM_BYTES)


def test_survey(tmp_path):
    """Files below a folder are counted, with their mean bytes; an empty folder has none."""
    assert files.survey(tmp_path) == (0, 0)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "sub" / "b").write_bytes(bytes(30))
    assert files.survey(tmp_path) == (2, 20)
    assert files.survey(tmp_path, most=1)[0] == 1


def test_targets():
    """Stripes go round the targets; a read meets those that its bytes lie on."""
    stripes = {"stripe_bytes": 4, "count": 3}
    assert files.targets(0, 4, **stripes) == {0}
    assert files.targets(3, 2, **stripes) == {0, 1}
    assert files.targets(8, 8, **stripes) == {2, 0}
    assert files.targets(0, 1000, **stripes) == {0, 1, 2}


def test_trials_are_exact():
    """The given numbers follow one cost and one bandwidth each."""
    for (open_s, rate), runs in zip(((120e-6, 5e8), (2e-3, 1e9)), files.TRIALS, strict=True):
        for run in runs:
            assert run.seconds == pytest.approx(run.opens * open_s + run.nbytes / rate, rel=1e-12)


def test_band_holds_all_pairs():
    """The band reaches from the lowest to the highest promise."""
    firsts, seconds = [Run(1, 0, 1.0), Run(1, 0, 2.0)], [Run(0, 1, 10.0), Run(0, 1, 30.0)]
    assert files.band(solved, firsts, seconds, opens=1, nbytes=1) == (11, 32)


def test_middle():
    """Of eight runs the fastest and slowest two are left out, of three none."""
    runs = [Run(1, 1, float(s)) for s in (5, 1, 8, 2, 7, 3, 6, 4)]
    assert [run.seconds for run in files.middle(runs)] == [3, 4, 5, 6]
    assert len(files.middle(runs[:3])) == 3


@pytest.mark.parametrize("name", ["41.1", "41.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def test_right_fit():
    """Solving both equations is right."""
    assert check("41.1", solved).status == "right"


def per_file(*which):
    """Seconds a file, of some of the runs, times the files."""
    return lambda a, b, opens, nbytes: (
        opens * sum((a, b)[i].seconds for i in which) / sum((a, b)[i].opens for i in which)
    )


def per_byte(*which):
    """Seconds a byte, of some of the runs, times the bytes."""
    return lambda a, b, opens, nbytes: (
        nbytes * sum((a, b)[i].seconds for i in which) / sum((a, b)[i].nbytes for i in which)
    )


def mean_per_file(a, b, opens, nbytes):
    """The mean of both quotients."""
    return opens * (a.seconds / a.opens + b.seconds / b.opens) / 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (per_file(0), "divided by the file count"),
        (per_file(1), "divided by the file count"),
        (per_file(0, 1), "divided by the file count"),
        (mean_per_file, "divided by the file count"),
        (per_byte(0), "divided by the bytes"),
        (per_byte(1), "divided by the bytes"),
        (per_byte(0, 1), "divided by the bytes"),
        (lambda a, b, opens, nbytes: 1.52, "for 1,000 files with 300 MB; it is 2.300 s"),
        (lambda a, b, opens, nbytes: solved(a, b, opens, 0), "it is 1.520 s"),
        (lambda a, b, opens, nbytes: 1.01 * solved(a, b, opens, nbytes), "it is 1.520 s"),
        (lambda a, b, opens, nbytes: None, "TypeError"),
    ],
)
def test_wrong_fit(answer, told):
    """Each wrong answer is told what is wrong; dividing by one count is named."""
    judged = check("41.1", answer)
    assert judged.status == "wrong"
    assert told in judged.message


def test_chunk_arithmetic():
    """By hand: a row of a chunk of 64, four reads for a row, a clip that begins inside a chunk."""
    assert files.touched_over_needed((64, 4096), "rows") == 64
    assert files.chunks_read((1, 1024), "rows") == 4
    assert files.touched_over_needed((1, 1024), "rows") == 1
    assert files.touched_over_needed((1, 4096), "columns") == 4096
    assert files.chunks_read((16, 4096), "clips") == 1
    assert files.touched_over_needed((12, 4096), "clips") > Fraction(12, 8)


def test_patterns_in_the_notebook():
    """The lesson's table has the patterns that are judged."""
    shown = re.findall(r"\| `(\w+)` \| [^|]+ \| random \|", NOTEBOOK.read_text("utf-8"))
    assert shown == list(files.PATTERNS)


def test_right_chunks():
    """The shape of the item, as tuples or lists."""
    assert check("41.2", lambda: CHUNKS).status == "right"
    assert check("41.2", lambda: {name: list(c) for name, c in CHUNKS.items()}).status == "right"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": (64, 4096)}, "rows: with chunks of (64, 4096) 64 bytes are read for each"),
        ({"clips": (64, 4096)}, "clips: with chunks of (64, 4096) 8 bytes"),
        ({"clips": (1, 4096)}, "lies in 8 chunks of (1, 4096)"),
        ({"rows": (1, 1024)}, "lies in 4 chunks of (1, 1024)"),
        ({"columns": (1, 4096)}, "columns: with chunks of (1, 4096) 4096 bytes"),
        ({"columns": (100, 1)}, "lies in 100 chunks"),
        ({"columns": (20_000, 1)}, "no chunk of a data set"),
        ({"rows": (0, 1)}, "no chunk of a data set"),
        ({"rows": (4096,)}, "no chunk of a data set"),
        ({"more": (1, 1)}, "give a chunk for each of rows, clips, columns"),
    ],
)
def test_wrong_chunks(change, told):
    """Each wrong chunk is told what it costs."""
    judged = check("41.2", lambda: CHUNKS | change)
    assert judged.status == "wrong"
    assert told in judged.message
