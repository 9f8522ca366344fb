"""`import perfkit` and `%load_ext perfkit` load nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = [
    "anywidget", "cupy", "h5py", "ipyparallel", "ipywidgets", "jax", "line_profiler", "matplotlib",
    "mpi4py", "numba", "numpy", "pyopencl", "scipy", "torch",
]  # fmt: skip
LOAD = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic('load_ext', 'perfkit')
"""
TIME_A_CELL = LOAD + "shell.run_cell('%%gpu_time -r auto -b 0.1 -q\\nsum(range(100))')\n"


def loaded_by(code):
    """Heavy packages in sys.modules after `code` ran in a fresh process."""
    probe = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[-2].split()


@pytest.mark.parametrize("code", ["import perfkit", LOAD, TIME_A_CELL])
def test_nothing_heavy(code):
    """Neither the package, the extension nor a timed cell of plain Python loads a heavy package."""
    assert loaded_by(code) == []


def test_probe_can_fail():
    """The probe names a heavy package that was loaded."""
    assert loaded_by("import numpy") == ["numpy"]
