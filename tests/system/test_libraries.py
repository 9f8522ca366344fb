"""The libraries of this process, those that nobody knows, and what they were built with."""

import subprocess
import sys

import numpy as np
import pytest

from perfkit.system import libraries as subject
from perfkit.system.libraries import package_of, read_environment, read_libraries


def rows(kind):
    return [row for row in read_libraries()[0] if row.kind == kind]


def test_numpy_stands_on_a_blas():
    """NumPy's wheel brings OpenBLAS, with its threads and its kernels' name."""
    mine = [row for row in rows("BLAS") if row.of == "numpy"]
    assert len(mine) == 1
    assert mine[0].can_set and mine[0].threads >= 1 and mine[0].version and mine[0].architecture


def test_simd_and_fft_of_numpy():
    """What NumPy was built for is told by NumPy."""
    (simd,) = rows("SIMD")
    assert simd.version == np.__version__ and simd.details.startswith("in use up to ")
    assert [row.name for row in rows("FFT") if row.of == "numpy"] == ["numpy.fft"]


def test_threads_are_those_of_now():
    """The count is the one at run time, not the one at the start."""
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1):
        assert {row.threads for row in rows("BLAS") if row.of == "numpy"} == {1}


def test_nothing_is_loaded():
    """Reading imports threadpoolctl and no numeric package."""
    code = (
        "import sys; from perfkit.system.libraries import read_libraries as r; r();"
        "print([n for n in ('numpy', 'scipy', 'torch', 'jax') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


MAPS = """7f00-7f01 r-xp 0 08:01 1                 /usr/lib/libblas.so.3.11.0
7f02-7f03 r-xp 0 08:01 1                          /usr/lib/libblas.so.3.11.0
7f04-7f05 r-xp 0 08:01 2                          /opt/arm/libarmpl_mp.so
7f06-7f07 r-xp 0 08:01 3                          /usr/lib/libopenblas.so.0
7f08-7f09 rw-p 0 00:00 0                          [heap]
7f0a-7f0b r-xp 0 08:01 4                          /opt/my libs/libsatlas.so.3
7f0c-7f0d r-xp 0 08:01 5                          /usr/lib/libblastoise.txt
short line
"""


def test_unknown_blas():
    """A BLAS in the list of mapped files that threadpoolctl does not know is a row, once."""
    found = list(subject._unknown(MAPS, {"/usr/lib/libopenblas.so.0"}))
    assert [row.path for row in found] == [
        "/usr/lib/libblas.so.3.11.0", "/opt/arm/libarmpl_mp.so", "/opt/my libs/libsatlas.so.3",
    ]  # fmt: skip
    assert all("does not know it" in row.reason and not row.can_set for row in found)
    assert [bool(row.details) for row in found] == [True, False, False]


def test_accelerate():
    """Apple's library is known from what NumPy says it was built with."""
    (row,) = subject._accelerate({"Build Dependencies": {"blas": {"name": "Accelerate"}}})
    assert row.name == "Accelerate" and "VECLIB_MAXIMUM_THREADS" in row.reason
    assert not list(subject._accelerate({}))


def test_a_library_that_fails(monkeypatch):
    """What raises is a reason; the other rows come."""

    def broken(mode):
        raise RuntimeError("no config\nsecond line")

    monkeypatch.setattr(np, "show_config", broken)
    found, reasons = read_libraries()
    assert reasons == ("NumPy: RuntimeError: no config",)
    assert any(row.kind == "BLAS" for row in found)


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/x/lib/python3.11/site-packages/numpy.libs/libopenblas.so", "numpy"),
        ("/x/lib/python3/dist-packages/torch/lib/libgomp.so.1", "torch"),
        ("/opt/miniconda3/envs/a/lib/libmkl_rt.so", "conda"),
        ("/usr/lib/x86_64-linux-gnu/libgomp.so.1", "system"),
        ("relative/libx.so", ""),
    ],
)
def test_whose_library(path, package):
    """The package is the folder's, the rest is named by its place."""
    assert package_of(path) == package


def test_environment():
    """Variables that steer threads and kernels are shown, others are not."""
    environ = {
        "OMP_NUM_THREADS": "2", "MKL_DEBUG_CPU_TYPE": "5", "NPY_DISABLE_CPU_FEATURES": "AVX2",
        "OMP_PROC_BIND": "close", "SECRET_NUM_THREADS": "x", "HOME": "y",
    }  # fmt: skip
    names = [row.name for row in read_environment(environ)]
    assert names == [
        "MKL_DEBUG_CPU_TYPE", "NPY_DISABLE_CPU_FEATURES", "OMP_NUM_THREADS", "OMP_PROC_BIND",
    ]  # fmt: skip
