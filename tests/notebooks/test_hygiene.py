"""Notebooks keep the house's conventions, so that a one-line edit is a one-line diff."""

import re
import statistics
from pathlib import Path

import nbformat
import pytest

from perfkit.lessons.bets import BETS

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TAGS = {
    "setup", "predict", "measure", "exercise", "check", "solution", "figure", "transfer", "deeper",
    "instructor", "nbval-check-output", "raises-exception", "nbval-skip",
}  # fmt: skip
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def cells(path, kind=None):
    """The cells of a notebook, all or of one kind."""
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if kind in (None, cell.cell_type)]


def tags(cell):
    """The tags of a cell."""
    return set(cell.metadata.get("tags", []))


def test_there_are_lessons():
    """The checks below have something to check."""
    assert LESSONS


@each_lesson
def test_format(path):
    """The file is nbformat 4.5 with the plain kernel and no other metadata."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata == {"kernelspec": KERNEL}
    nbformat.validate(notebook)


@each_lesson
def test_ids_are_readable(path):
    """Every cell id begins with the lesson's number."""
    number = path.stem[:2]
    assert all(re.fullmatch(rf"{number}-[a-z0-9-]+", cell.id) for cell in cells(path))


@each_lesson
def test_tags_are_known(path):
    """Tags come from the closed list, and nbval is steered by tags alone."""
    for cell in cells(path):
        assert tags(cell) <= TAGS
        assert "NBVAL_" not in cell.source


@each_lesson
def test_outputs_are_stripped(path):
    """Only cells whose output is compared keep one, with its execution count."""
    for cell in cells(path, "code"):
        kept = "nbval-check-output" in tags(cell)
        assert bool(cell.outputs) == kept
        assert (cell.execution_count is not None) == kept


@each_lesson
def test_size(path):
    """A lesson is at most 60 KB, code cells are short, and so is the text."""
    assert path.stat().st_size <= 60_000
    code = [len(cell.source.splitlines()) for cell in cells(path, "code")]
    words = [len(cell.source.split()) for cell in cells(path, "markdown")]
    assert statistics.median(code) <= 6
    assert max(code) <= 20
    assert statistics.median(words) <= 40
    assert max(words) <= 150


@each_lesson
def test_timed_cells_are_calls(path):
    """A timed cell is at most two lines."""
    timed = [cell.source for cell in cells(path, "code") if cell.source.startswith("%%gpu_time")]
    assert all(len(source.splitlines()) <= 3 for source in timed)


@each_lesson
def test_exercises_have_check_and_solution(path):
    """Each exercise is followed by a check, and by a hidden solution with the same check."""
    code = cells(path, "code")
    places = [i for i, cell in enumerate(code) if "exercise" in tags(cell)]
    assert places
    for place in places:
        stub, check, solution = code[place : place + 3]
        assert "raise NotImplementedError" in stub.source
        assert "check" in tags(check)
        assert "solution" in tags(solution)
        assert solution.metadata["jupyter"]["source_hidden"] is True
        question = re.search(r'check\("([^"]+)"', check.source)[1]
        assert f'check("{question}"' in solution.source


@each_lesson
def test_predictions_are_open(path):
    """There is a prediction, every one is None as shipped, and every one is revealed."""
    source = "\n".join(cell.source for cell in cells(path, "code"))
    asked = re.findall(r'predict\(\s*"([^"]+)", None', source)
    assert asked
    own = [key for key in asked if not key.startswith("bet.")]
    assert own == re.findall(r'reveal\(\s*"([^"]+)"', source)
    assert not re.search(r'predict\(\s*"[^"]+", [^N]', source)


def test_bets_are_placed_and_settled():
    """Lesson 00 asks for every bet, and each is settled in its lesson as soon as there is one."""
    text = {path.stem[:2]: path.read_text() for path in LESSONS}
    asked = re.findall(r'predict\(\\"(bet\.\w+)', text["00"])
    assert asked == list(BETS)
    for key, bet in BETS.items():
        settled = {number for number, source in text.items() if f'settle(\\"{key}' in source}
        assert settled == {bet.lesson} & text.keys()


@each_lesson
def test_first_and_last_cell(path):
    """The first cell asks one question and says minutes, needs and goals; the last takes away."""
    first, *_, last = cells(path, "markdown")
    number, question = path.stem[:2], r"\*\*[^*]+\?\*\*"
    assert first.source.startswith(f"# {number} · ")
    assert re.search(question, first.source)
    assert "minutes" in first.source
    assert "After this lesson you can" in first.source
    assert "Take away" in last.source


@each_lesson
def test_no_installs(path):
    """A lesson neither installs nor downloads."""
    source = "\n".join(cell.source for cell in cells(path, "code"))
    assert not re.search(r"pip install|urlopen|requests\.|wget|curl ", source)


@each_lesson
def test_readme_has_the_lesson(path):
    """The README's table names the file and the lesson's title."""
    readme = (ROOT / "README.md").read_text()
    title = cells(path, "markdown")[0].source.splitlines()[0].split(" · ")[1]
    assert f"notebooks/{path.name}" in readme
    assert title in readme
