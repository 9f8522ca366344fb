"""The installed package: it holds the lessons, and `perfkit lab` brings them out."""

import importlib.metadata
import subprocess
import sys
import zipfile

import pytest


@pytest.fixture(scope="module")
def wheel_names(checkout, tmp_path_factory):
    """The names in the wheel that pip builds from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["pip", "wheel", "--quiet", "--no-deps", "-w", folder, "."]
    subprocess.run([sys.executable, "-m", *words], cwd=checkout, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_has_every_lesson(wheel_names, checkout):
    """Every notebook is in the wheel, and no other folder of the tree is."""
    lessons = {f"perfkit/notebooks/{path.name}" for path in checkout.glob("notebooks/*.ipynb")}
    assert lessons and lessons <= wheel_names
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"perfkit"}


def test_wheel_has_nobodys_results(wheel_names, checkout):
    """What a learner has left among the lessons is not in the wheel."""
    assert (checkout / "notebooks" / "perfkit-results.jsonl").exists()
    assert not [name for name in wheel_names if "results.jsonl" in name]


def test_lab_from_the_installed_wheel(image, checkout, tmp_path):
    """The installed command copies every lesson, keeps an edited one, and needs no checkout."""
    image.run("perfkit", "lab", "mine", "--no-open", cwd=tmp_path)
    lessons = sorted(path.name for path in checkout.glob("notebooks/[0-9]*.ipynb"))
    assert sorted(path.name for path in (tmp_path / "mine").glob("*.ipynb")) == lessons
    edited = tmp_path / "mine" / lessons[0]
    edited.write_text("my own")
    shown = image.run("perfkit", "lab", "mine", "--no-open", cwd=tmp_path)
    assert f"{lessons[0]}: you have changed it, it stays" in shown
    assert edited.read_text() == "my own"


def test_lab_starts_jupyterlab(image, tmp_path):
    """The installed command ends in a JupyterLab that takes what stands behind --."""
    shown = image.run("perfkit", "lab", "mine", "--", "--version", cwd=tmp_path)
    assert shown.splitlines()[-1].startswith("4.")
    assert importlib.metadata.version("jupyterlab") == shown.splitlines()[-1]


def test_editable_install_has_no_copy(image, checkout, tmp_path):
    """An editable install reads the lessons of the checkout, not a copy that grows old."""
    words = ("pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "t"), "-e", ".")
    image.run(*words)
    assert not (tmp_path / "t" / "perfkit").exists()
    assert [path.read_text() for path in (tmp_path / "t").glob("*.pth")] == [str(checkout)]
