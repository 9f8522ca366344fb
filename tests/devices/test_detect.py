"""Which runtimes are watched: those that are imported, and none is imported to find out."""

import subprocess
import sys

import pytest

from perfkit.devices.detect import BACKENDS, devices_in_use
from perfkit.errors import NotSupportedHere, UsageError

HEAVY = ("pyopencl", "jax", "torch", "cupy", "numpy")


def run(code):
    """What a fresh Python prints when it runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_timing_imports_nothing():
    """Timing plain Python imports no runtime, and not NumPy either."""
    code = (
        "import sys, perfkit; perfkit.time_call(lambda: sum(range(10)), repeat=5, budget_s=0.1)\n"
        f"print([name for name in {HEAVY} if name in sys.modules], perfkit.last().backends)"
    )
    assert run(code) == "[] ('host',)"


def test_the_import_check_can_fail():
    """The test above would see an import that a timed body makes."""
    code = (
        "import sys, perfkit; perfkit.time_call(lambda: __import__('numpy'))\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert run(code) == "['numpy']"


def test_nothing_in_use():
    """A process that imported no runtime has none in use."""
    code = "from perfkit.devices.detect import devices_in_use; print(devices_in_use())"
    assert run(code) == "()"


def test_import_in_body_is_noted():
    """A runtime that the body itself imports was not watched in the first call: a note says so."""
    code = (
        "import perfkit\n"
        "timing = perfkit.time_call(lambda: __import__('perfkit.devices.thread'))\n"
        "print(*timing.notes)"
    )
    assert run(code).startswith("thread was imported inside the body: the first call includes")


def test_imported_runtimes_are_in_use(opencl):
    """Imported asynchronous runtimes are watched; the host needs no watching."""
    names = {device.name for device in devices_in_use()}
    # Other tests of this process may have imported JAX, and torch, which is synchronous here.
    assert {"thread", "opencl"} <= names <= {"thread", "opencl", "jax"}
    assert all(device.asynchronous for device in devices_in_use())


def test_named_runtimes_alone(opencl):
    """With names only these are watched, and each is the same adapter every time."""
    (device,) = devices_in_use(["opencl"])
    assert device.name == "opencl" and devices_in_use(["opencl"]) == (device,)
    assert devices_in_use(["host"]) == ()


def test_unknown_backend():
    """A name close to a known one is answered with that one, another with all there are."""
    with pytest.raises(UsageError, match="'opencll' is not known: did you mean opencl"):
        devices_in_use(["opencll"])
    with pytest.raises(UsageError) as caught:
        devices_in_use(["xyz"])
    assert all(name in str(caught.value) for name in BACKENDS)


def test_backend_not_imported(monkeypatch):
    """A runtime that is known but not imported is not in use, and the text names the import."""
    monkeypatch.delitem(sys.modules, "pyopencl", raising=False)
    with pytest.raises(NotSupportedHere, match="not in use: import pyopencl first"):
        devices_in_use(["opencl"])
    assert "opencl" not in [device.name for device in devices_in_use()]
    assert "pyopencl" not in sys.modules


FORKED = """
import os, signal, sys
import perfkit
from perfkit.devices.thread import Stream
{setup}
child = os.fork()
if not child:
    signal.alarm(30)
    for question in (
        lambda: perfkit.time_call(lambda: sum(range(100))).verdict,
        lambda: perfkit.time_call(lambda: 1, backend={backend!r}),
        {third},
    ):
        try:
            print(question(), flush=True)
        except perfkit.PerfkitError as error:
            print(error, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
SETUPS = {
    "thread": ("stream = Stream('s')\nperfkit.time_call(stream.synchronize)", "stream.synchronize"),
    "jax": ("import jax\ny = jax.numpy.ones(3) + 1\nperfkit.time_call(lambda: 1)", "lambda: 'ok'"),
}


@pytest.mark.parametrize("backend", SETUPS)
def test_fork_after_set_up(backend):
    """In a forked child a runtime of the parent's is left alone, and named when asked for."""
    setup, third = SETUPS[backend]
    code = FORKED.format(setup=setup, backend=backend, third=third)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    verdict, asked, _ = done.stdout.splitlines()
    assert verdict == "synchronous"
    assert "was set up before this process was forked" in asked
    if backend == "thread":
        assert "make a new Stream in it" in done.stdout
