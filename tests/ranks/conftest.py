import tempfile
import time
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory, monkeypatch):
    """No test leaves a child of this process, or a file where temporary ones go."""
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before, shared = psutil.Process().children(recursive=True), set(Path("/dev/shm").iterdir())
    yield
    new = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not new
    assert not list(folder.iterdir())
    own = {
        path for path in Path("/dev/shm").iterdir() if "vader" in path.name or "sm_" in path.name
    }
    assert not own - shared


@pytest.fixture
def pids(tmp_path):
    """A folder where each rank leaves its process id, and how to read them."""

    class Pids:
        folder = tmp_path

        def __call__(self, at_least=1):
            until = time.monotonic() + 20
            while len(found := list(tmp_path.glob("pid-*"))) < at_least:
                assert time.monotonic() < until, "the ranks did not come up"
                time.sleep(0.01)
            return [int(path.name.partition("-")[2]) for path in found]

    return Pids()
