"""What Binder and a JupyterHub image build from binder/: it is read right, installs and starts."""

import json
import math
import subprocess
import sys

import perfkit

THREADS = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"]
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def test_dockerfile(checkout, tmp_path, monkeypatch):
    """repo2docker takes Python 3.11, the requirements, postBuild and start out of binder/."""
    monkeypatch.setenv("HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", checkout],
        capture_output=True,
        text=True,
        check=True,
    )
    steps = [
        "python=3.11",
        'pip install --no-cache-dir -r "binder/requirements.txt"',
        "RUN ./binder/postBuild",
        'ENV R2D_ENTRYPOINT="${REPO_DIR}/binder/start"',
    ]
    places = [(done.stderr + done.stdout).find(step) for step in steps]
    assert -1 not in places and places == sorted(places)


def test_packages_fit(image):
    """What was installed fits together, the notebook that goes with the jupyterlab included."""
    assert "No broken requirements" in image.run("pip", "check")
    assert "Version" in image.run("pip", "show", "notebook", "jupyterlab", "pyopencl")


def test_post_build_fills_the_caches(image):
    """PostBuild leaves the caches of matplotlib and PoCL in the home folder, twice if need be."""
    for _ in range(2):
        image.run("bash", "binder/postBuild")
    cache = image.home / ".cache"
    assert list(cache.glob("matplotlib/fontlist-*"))
    assert list(cache.glob("pocl/**/*.so"))


def test_jupyterlab_starts(image):
    """The start script hands over to JupyterLab."""
    assert image.run("bash", "binder/start", "jupyter", "lab", "--version").startswith("4.")


def test_threads_follow_the_quota(image):
    """All thread counts are the CPUs that this process may use, rounded up."""
    shown = json.loads(image.run("bash", "binder/start", "python", "-c", SHOW))
    cpus = str(math.ceil(perfkit.machine().limits.cpus))
    assert {name: shown.get(name) for name in THREADS} == dict.fromkeys(THREADS, cpus)


def test_own_threads_are_kept(image):
    """A thread count that the user has set stays, an empty one too."""
    words = ("bash", "binder/start", "python", "-c", SHOW)
    shown = json.loads(image.run(*words, OMP_NUM_THREADS="7", MKL_NUM_THREADS=""))
    assert (shown["OMP_NUM_THREADS"], shown["MKL_NUM_THREADS"]) == ("7", "")
    assert int(shown["OPENBLAS_NUM_THREADS"]) >= 1


def test_start_without_perfkit(image):
    """Where the limits cannot be read the command runs all the same, with one thread."""
    words = ("bash", "binder/start", "env")
    shown = image.run(*words, PYTHONHOME="/nowhere")
    assert "OMP_NUM_THREADS=1" in shown.splitlines()


def test_arguments_pass_unchanged(image):
    """Words with blanks and empty words reach the command as they are."""
    code = "import sys; print(sys.argv[1:])"
    assert image.run("bash", "binder/start", "python", "-c", code, "a b", "") == "['a b', '']\n"
