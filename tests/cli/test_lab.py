"""`perfkit lab`: the lessons arrive, newer ones too, and no work of the learner's is lost."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.cli import lab
from perfkit.cli import main as cli


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder that stands for the shipped lessons."""
    folder = tmp_path / "shipped"
    (folder / "figures").mkdir(parents=True)
    (folder / "01_a.ipynb").write_text("one")
    (folder / "02_b.ipynb").write_text("two")
    (folder / "figures" / "f.svg").write_text("figure")
    (folder / "perfkit-results.jsonl").write_text("not a lesson")
    monkeypatch.setattr(lab, "shipped_lessons", lambda: folder)
    return folder


@pytest.fixture
def copy(shipped, tmp_path, capsys):
    """Run `perfkit lab --no-open` and give what it printed."""

    def run():
        assert cli.main(["lab", str(tmp_path / "mine"), "--no-open"]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def mine(tmp_path):
    """The learner's folder."""
    return tmp_path / "mine"


def names(folder):
    """The files in a folder, the manifest left out."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in found if name != lab.MANIFEST)


def test_first_copy(copy, mine):
    """Lessons and figures are copied, other files are not, and the count is said."""
    assert "3 files in " in copy()
    assert names(mine) == ["01_a.ipynb", "02_b.ipynb", "figures/f.svg"]
    assert (mine / "01_a.ipynb").read_text() == "one"


def test_second_copy_writes_nothing(copy, mine):
    """Where all is up to date nothing is written."""
    copy()
    before = {path: path.stat().st_mtime_ns for path in mine.rglob("*")}
    assert "0 new or updated" in copy()
    assert {path: path.stat().st_mtime_ns for path in mine.rglob("*")} == before


def test_update(copy, mine, shipped):
    """A file the learner did not touch follows the shipped one, over several versions."""
    copy()
    for text in ("newer", "newest"):
        (shipped / "01_a.ipynb").write_text(text)
        assert "1 new or updated" in copy()
        assert (mine / "01_a.ipynb").read_text() == text
    assert len(names(mine)) == 3


def test_edited_file_is_kept(copy, mine, shipped):
    """An edited file stays and is named; a new version is laid beside it, once."""
    copy()
    (mine / "01_a.ipynb").write_text("my own")
    assert copy().splitlines()[0] == "01_a.ipynb: you have changed it, it stays"
    assert not (mine / "01_a.new.ipynb").exists()
    (shipped / "01_a.ipynb").write_text("newer")
    assert "the new version is 01_a.new.ipynb" in copy()
    assert (mine / "01_a.new.ipynb").read_text() == "newer"
    (mine / "01_a.new.ipynb").unlink()
    assert "new version" not in copy()
    assert (mine / "01_a.ipynb").read_text() == "my own"
    assert not (mine / "01_a.new.ipynb").exists()


def test_new_version_follows(copy, mine, shipped):
    """The version that lies beside is updated, unless the learner has changed that as well."""
    copy()
    (mine / "01_a.ipynb").write_text("my own")
    beside = mine / "01_a.new.ipynb"
    for text in ("newer", "newest"):
        (shipped / "01_a.ipynb").write_text(text)
        copy()
        assert beside.read_text() == text
    beside.write_text("mine as well")
    (shipped / "01_a.ipynb").write_text("last")
    assert "rename 01_a.new.ipynb" in copy()
    assert beside.read_text() == "mine as well"
    beside.unlink()
    copy()
    assert beside.read_text() == "last"


@pytest.mark.parametrize("manifest", [None, "", "{", "[1]", '{"01_a.ipynb": 3}'])
def test_without_manifest(copy, mine, manifest):
    """Where the manifest is gone or broken a file that differs counts as the learner's."""
    copy()
    (mine / "01_a.ipynb").write_text("perhaps my own")
    (mine / lab.MANIFEST).unlink()
    if manifest is not None:
        (mine / lab.MANIFEST).write_text(manifest)
    assert "01_a.new.ipynb" in copy()
    assert (mine / "01_a.ipynb").read_text() == "perhaps my own"
    assert (mine / "02_b.ipynb").read_text() == "two"


def test_folder_of_the_lessons_itself(shipped, capsys):
    """In the folder that the lessons come from there is nothing to copy."""
    before = names(shipped)
    assert cli.main(["lab", str(shipped), "--no-open"]) == 0
    assert "nothing to copy" in capsys.readouterr().out
    assert names(shipped) == before and not (shipped / lab.MANIFEST).exists()


def test_lessons_of_this_checkout(repository):
    """From a checkout the lessons are those of its notebooks folder."""
    assert lab.shipped_lessons() == repository / "notebooks"


def test_opens_jupyterlab(shipped, mine, monkeypatch):
    """JupyterLab is started in the copy with the port, and with what stands behind --."""
    calls = []
    monkeypatch.setattr("os.execv", lambda *call: calls.append(call))
    assert cli.main(["lab", str(mine), "--port", "9999", "--", "--no-browser", "x"]) == 0
    ((program, words),) = calls
    assert program == sys.executable and words[1:3] == ["-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={mine}" in words and "--port=9999" in words
    assert words[-2:] == ["--no-browser", "x"]
    assert "--allow-root" in lab.command(mine, None, []) or lab.os.geteuid()


def test_default_folder(shipped, tmp_path, monkeypatch):
    """Without DIR the copy lies in ./perfkit-workbook."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab", "--no-open"]) == 0
    assert len(names(tmp_path / "perfkit-workbook")) == 3


def test_jupyterlab_missing(shipped, mine, monkeypatch, capsys):
    """Without JupyterLab the pip line is given, and nothing was copied."""
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    assert cli.main(["lab", str(mine)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install 'perfkit[workbook]'" in error
    assert not mine.exists()


def test_lessons_missing(tmp_path, monkeypatch, capsys):
    """A perfkit without lessons says so."""
    monkeypatch.setattr("perfkit.__file__", str(tmp_path / "perfkit" / "__init__.py"))
    assert cli.main(["lab", str(tmp_path / "mine"), "--no-open"]) == 2
    assert "no lessons in it" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["", "below"])
def test_folder_is_a_file(shipped, mine, capsys, where):
    """DIR that is a file, or lies below one, is named in one line."""
    mine.write_text("a file")
    assert cli.main(["lab", str(mine / where), "--no-open"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(mine) in error
    assert mine.read_text() == "a file"


@pytest.mark.parametrize(
    ("code", "cure"),
    [(errno.EACCES, "give another"), (errno.EROFS, "give another"), (errno.ENOSPC, "free some")],
)
def test_cannot_be_written(shipped, mine, monkeypatch, capsys, code, cure):
    """A folder that takes no file is named with the reason and the cure."""

    def refuse(path, content):
        raise OSError(code, "the reason", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert cli.main(["lab", str(mine), "--no-open"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{mine} cannot take the lessons (the reason)" in error
    assert cure in error


def test_full_disk_leaves_no_half(tmp_path):
    """Where a write stops half way the old file is whole and nothing else is left."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "01_a.ipynb").write_text("x" * 1000)
    code = (
        "import resource, signal, sys; from pathlib import Path; from perfkit.cli import lab\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: list(lab.copy_lessons(Path('source'), Path('mine')))\n"
        "except lab.PerfkitError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "free some space" in done.stdout
    assert list((tmp_path / "mine").iterdir()) == []
