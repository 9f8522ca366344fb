"""The file systems behind the paths that matter."""

import threading
from pathlib import Path

from perfkit.system import places as subject
from perfkit.system.places import read_file_systems


def test_uses_share_a_row(monkeypatch, tmp_path):
    """A path that serves two uses is one row; each row tells its file system."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    rows = {row.path: row for row in read_file_systems()}
    assert rows[str(tmp_path)].use == "here, SCRATCH"
    assert all(row.fstype and row.total_bytes is not None for row in rows.values())


def test_a_path_that_is_not_there(monkeypatch):
    """The reason is in the row; the others come."""
    monkeypatch.setenv("HF_HOME", "/no/such/folder")
    rows = {row.use: row for row in read_file_systems()}
    assert rows["HF_HOME"].reason == "No such file or directory"
    assert any(str(Path.cwd()) == row.path and not row.reason for row in rows.values())


def test_a_dead_mount(monkeypatch):
    """What does not answer is left, with a word, and does not hold up the report."""
    answer = threading.Event()

    def never(path):
        answer.wait(60)
        raise OSError(path)

    monkeypatch.setattr(subject, "PATIENCE_S", 0.05)
    monkeypatch.setattr(subject, "target_of", never)
    before = set(threading.enumerate())
    rows = read_file_systems()
    answer.set()
    for late in set(threading.enumerate()) - before:
        late.join()
    assert rows and all("did not answer" in row.reason for row in rows)
