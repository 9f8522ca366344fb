"""Packages and switches, read from real PyTorch and JAX, and from packages that are broken."""

import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from perfkit.system import frameworks as subject
from perfkit.system.frameworks import denormals, read_frameworks


def run(code, *first):
    """The last line that the code prints in a fresh process, where any warning is an error."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, first)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


READ = """
import json, sys
from perfkit.system.frameworks import read_frameworks
def rows(**given):
    libraries, switches = read_frameworks(**given)
    return {r.name: [r.version, r.details, r.reason, r.loaded] for r in libraries}, {
        s.name: [s.value, s.means] for s in switches}
"""


def test_nothing_is_imported():
    """By default packages are found by their files, and none is loaded."""
    code = READ + (
        "found = rows()[0]\n"
        "print(json.dumps([found, [n for n in ('numpy', 'torch', 'jax') if n in sys.modules]]))"
    )
    found, imported = run(code)
    assert imported == []
    assert {"numpy", "scipy", "torch", "jax"} <= found.keys()
    assert all(version and not here for version, _, _, here in found.values())
    assert found["torch"][1].startswith(("CPU build", "CUDA ", "ROCm "))


# -- packages that fail ----------------------------------------------------------------------------

BROKEN = {
    "cupy": "raise ImportError('libcudart.so.13: cannot open\\nsecond line')",
    "numba": "import sys; sys.exit(3)",
    "numexpr": "raise OSError('bad file')",
    "pyfftw": "import not_there_at_all",
    "mkl_fft": "import warnings; warnings.warn('old', FutureWarning)",
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """All packages imported, with broken ones before those that are installed."""
    place = tmp_path_factory.mktemp("broken")
    for name, text in BROKEN.items():
        (place / f"{name}.py").write_text(text)
    code = "import sys; sys.path.insert(0, sys.argv[1])\n" + READ
    code += "print(json.dumps([rows(import_all=True), 'jax' in sys.modules]))"
    (libraries, switches), has_jax = run(code, place)
    return libraries, switches, has_jax


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cupy", "ImportError: libcudart.so.13: cannot open second line"),
        ("numba", "SystemExit: 3"),
        ("numexpr", "OSError: bad file"),
        ("pyfftw", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
def test_an_import_that_fails_is_a_row(imported, name, words):
    """Whatever an import raises is one line in its row."""
    _, _, reason, here = imported[0][name]
    assert not here and reason == f"its import failed: {words}"


def test_the_others_come(imported):
    """A package after the broken ones is loaded, one that only warns too, and no warning leaks."""
    libraries, switches, has_jax = imported
    assert has_jax and libraries["mkl_fft"][3] and libraries["torch"][3]
    assert libraries["torch intra-op"] and "jax.config.jax_enable_x64" in switches


def test_a_stop_by_the_user_is_no_reason(tmp_path, monkeypatch):
    """Ctrl-C in an import goes through."""
    (tmp_path / "stopped_package.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        subject._import("stopped_package")


def test_a_package_that_is_half_there(monkeypatch):
    """A loaded package without what is asked for has a reason, and the other rows come."""
    for name in ("numba", "torch", "jax"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    found = {row.name: row for row in read_frameworks()[0]}
    assert found["numba"].reason.startswith("not known: AttributeError")
    assert found["torch"].reason and found["numpy"].version == np.__version__


def test_not_installed_is_no_row(monkeypatch):
    """What is neither loaded nor to be found is not mentioned."""
    monkeypatch.setattr(subject, "_is_installed", lambda name: False)
    names = {row.name for row in read_frameworks()[0]}
    assert "numpy" in names and names <= set(sys.modules) | {"torch intra-op"}


# -- PyTorch ---------------------------------------------------------------------------------------

STATES = {
    "fresh": "",
    "old": "mm.allow_tf32 = True",
    "old, by name": "torch.set_float32_matmul_precision('high')",
    "new": "mm.fp32_precision = 'tf32'",
    "new, for all": "torch.backends.fp32_precision = 'tf32'",
    "new, convolutions": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "both": "mm.allow_tf32 = True; mm.fp32_precision = 'ieee'",
    "both, convolutions": "torch.backends.cudnn.allow_tf32 = False\n"
    "torch.backends.cudnn.conv.fp32_precision = 'tf32'\n"
    "torch.backends.cudnn.rnn.fp32_precision = 'tf32'",
}
# Each state in a child of its own: what has been set cannot be made unset.
TORCH = """
import os, threadpoolctl, torch
def state():
    get = torch._C._get_fp32_precision_getter
    pools = [(p['prefix'], p['num_threads']) for p in threadpoolctl.threadpool_info()]
    old = []
    for read in (torch._C._get_cublas_allow_tf32, torch.get_float32_matmul_precision):
        try:
            old.append(read())
        except RuntimeError:
            old.append('raises')
    keys = [(b, o) for b in ('cuda', 'mkldnn') for o in ('all', 'matmul', 'conv', 'rnn')]
    return [[get(*key) for key in keys], old, pools, torch.cuda.is_initialized(),
            torch.get_num_interop_threads()]
mm, seen = torch.backends.cuda.matmul, {}
for name, code in json.loads(sys.argv[1]).items():
    out, into = os.pipe()
    if not os.fork():
        exec(code)
        before = state()
        answer = json.dumps([rows(), before == state()])
        os.write(into, answer.encode())
        os._exit(0)
    os.close(into)
    seen[name] = json.loads(os.fdopen(out).read())
print(json.dumps(seen))
"""
MATMUL, CUDNN = "torch.backends.cuda.matmul", "torch.backends.cudnn"


@pytest.fixture(scope="module")
def states():
    """What is read after each way to set TF32, and whether reading left all as it was."""
    return run(READ + TORCH, json.dumps(STATES))


@pytest.mark.parametrize("state", STATES)
def test_reading_changes_nothing(states, state):
    """The settings, the threads and CUDA are the same after it, and no warning was made."""
    (_, switches), same = states[state]
    assert same and f"{MATMUL}.fp32_precision" in switches


@pytest.mark.parametrize(
    ("state", "name", "value"),
    [
        ("fresh", f"{MATMUL}.allow_tf32", "False"),
        ("fresh", f"{CUDNN}.allow_tf32", "True"),
        ("fresh", "torch.get_float32_matmul_precision()", "highest"),
        ("old", f"{MATMUL}.allow_tf32", "True"),
        ("old", f"{MATMUL}.fp32_precision", "tf32"),
        ("old, by name", "torch.get_float32_matmul_precision()", "high"),
        ("new", f"{MATMUL}.fp32_precision", "tf32"),
        ("new", f"{MATMUL}.allow_tf32", "n/a"),
        ("new", f"{CUDNN}.allow_tf32", "True"),
        ("new, for all", f"{MATMUL}.fp32_precision", "tf32"),
        ("new, convolutions", f"{CUDNN}.allow_tf32", "n/a"),
        ("new, convolutions", f"{CUDNN}.rnn.fp32_precision", "tf32"),
        ("both", f"{MATMUL}.allow_tf32", "mixed"),
        ("both", f"{MATMUL}.fp32_precision", "ieee"),
        ("both, convolutions", f"{CUDNN}.allow_tf32", "mixed"),
    ],
)
def test_precision(states, state, name, value):
    """Old and new switches as they are; mixed only where both must have been set."""
    assert states[state][0][1][name][0] == value


def test_mixed_says_why(states):
    """The message is torch's, in one line; where only the new way is used nothing is mixed."""
    means = states["both"][0][1][f"{MATMUL}.allow_tf32"][1]
    assert means.startswith("set in the old and in the new way: RuntimeError: ")
    assert "\n" not in means
    assert all(value != "mixed" for value, _ in states["new, for all"][0][1].values())


def test_torch_tells_its_build(states):
    """The build is named, and the rows of all switches have a meaning."""
    (libraries, switches), _ = states["fresh"]
    assert libraries["torch"][1].startswith(("CPU build", "CUDA ", "ROCm "))
    assert all(means for _, means in switches.values())


def test_threads_of_torch_are_those_of_now():
    """The row follows set_num_threads, and reading does not fix the other pool's size."""
    code = READ + (
        "import torch; torch.set_num_threads(1)\n"
        "found = [r.threads for r in read_frameworks()[0] if r.name == 'torch intra-op']\n"
        "torch.set_num_interop_threads(1); print(json.dumps(found))"
    )
    assert run(code) == [1]


# -- JAX -------------------------------------------------------------------------------------------


def test_jax_is_not_started():
    """Before JAX has run nothing is started; afterwards its backend is named with its devices."""
    code = READ + (
        "import jax, jax._src.xla_bridge as bridge\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "before = rows(); quiet = not bridge._backends\n"
        "jax.config.update('jax_platforms', 'cpu'); jax.devices()\n"
        "print(json.dumps([before[0]['jax'][1], before[1], quiet, rows()[0]['jax'][1]]))"
    )
    before, switches, quiet, after = run(code)
    assert quiet and before.endswith("no backend started")
    assert after.endswith("cpu: 1 device")
    assert switches["jax.config.jax_enable_x64"][0] == "True"


def test_build_of_jax(monkeypatch):
    """The plugins that are installed say what JAX may use; one for CUDA is no CPU build."""
    has = {"jax-cuda13-plugin": "1", "jaxlib": "1"}
    monkeypatch.setattr(subject, "_installed", lambda name: has.get(name, ""))
    assert subject._jax_build() == "CUDA 13 plugin"
    has.clear()
    assert subject._jax_build() == "CPU build"


# -- the rest --------------------------------------------------------------------------------------


def test_variables():
    """Variables are shown where they are set, with what they do; others are not."""
    environ = {
        "NVIDIA_TF32_OVERRIDE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "NPY_DISABLE_CPU_FEATURES": "AVX2", "AWS_SECRET": "x",
    }  # fmt: skip
    rows = [row for row in read_frameworks(environ=environ)[1] if row.of == "environment"]
    assert {row.name: row.value for row in rows} == {
        key: value for key, value in environ.items() if key != "AWS_SECRET"
    }
    assert all(row.means for row in rows)


@pytest.mark.parametrize(("number", "text"), [(91002, "9.10.2"), (8902, "8.9.2"), (90100, "9.1.0")])
def test_version_of_cudnn(number, text):
    """Its numbers have two forms."""
    assert subject._dotted(number) == text


def test_denormals_are_kept():
    """Here they are kept, and what they cost has been measured."""
    text, factor = denormals()
    assert text == "kept"
    assert factor > 0.1


def test_denormals_are_flushed():
    """What torch sets for the thread is what NumPy does in it; and it is taken back."""
    code = (
        "import json, torch; from perfkit.system.frameworks import denormals\n"
        "on = torch.set_flush_denormal(True); flushed = denormals()[0]\n"
        "torch.set_flush_denormal(False); print(json.dumps([on, flushed, denormals()[0]]))"
    )
    on, flushed, kept = run(code)
    assert [flushed, kept] == ["flushed to zero" if on else "kept", "kept"]


def test_denormals_without_numpy(monkeypatch):
    """Without NumPy there is a reason, and no number."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    text, factor = denormals()
    assert text.startswith("n/a: ") and "numpy" in text and factor is None
