"""A copy of what git has, and an environment in which Binder's files were really installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("JUPYTER", "MPL", "OMP_", "OPENBLAS_", "MKL_", "PERFKIT", "POCL", "PYTHON", "VIRTUAL_ENV")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """The files that git has or would take, with a learner's own file among the lessons."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "notebooks" / "perfkit-results.jsonl").write_text("my own\n")
    return folder


@pytest.fixture(scope="session")
def image(checkout, tmp_path_factory):
    """A fresh environment with binder/requirements.txt installed; `run` runs a command in it."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    # All caches below a home of its own; only pip's downloads are shared.
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env |= {"PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    env.pop("XDG_CACHE_HOME", None)
    install = ["pip", "install", "--quiet", "-r", "binder/requirements.txt"]
    subprocess.run(install, cwd=checkout, env=env, check=True, timeout=600)

    def run(*words, cwd=checkout, **more):
        own = env | {"HOME": str(folder / "home"), "PERFKIT_RESULTS": str(folder / "r.jsonl")}
        done = subprocess.run(
            words, cwd=cwd, env=own | more, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "home").mkdir()
    return SimpleNamespace(run=run, home=folder / "home", site=folder / "venv")
