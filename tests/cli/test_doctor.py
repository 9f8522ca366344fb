"""`perfkit doctor`: for people and for support tickets."""

import json
import os
import subprocess
import sys

import pytest

from perfkit.cli.main import main


def test_text(capsys):
    """The same report as in the notebook, under the command's name."""
    assert main(["doctor", "--no-import"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("perfkit doctor: ") and "you may use" in out and "%doctor:" not in out


def test_json_for_a_ticket(capsys):
    """One object; what is asked for first stands at the top."""
    assert main(["doctor", "--json", "--no-import"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert list(seen)[:5] == ["machine", "limits", "libraries", "gpus", "findings"]
    assert seen["limits"]["cpus"] and seen["machine"]["python"]


@pytest.fixture
def broken(tmp_path):
    """A package of the name of a known one that raises on import."""
    (tmp_path / "numexpr").mkdir()
    (tmp_path / "numexpr/__init__.py").write_text("raise RuntimeError('wrong ABI')")
    return tmp_path


def test_all_that_is_installed_is_asked(broken):
    """It imports the packages; one that raises is a row with its reason."""
    ran = subprocess.run(
        [sys.executable, "-m", "perfkit.cli.main", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(broken)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row for row in json.loads(ran.stdout)["libraries"]}
    assert rows["scipy"]["loaded"] and rows["torch"]["loaded"]
    assert "wrong ABI" in rows["numexpr"]["reason"] and not rows["numexpr"]["loaded"]


def test_wrong_argument(capsys):
    """One line."""
    assert main(["doctor", "here"]) == 2
    assert capsys.readouterr().err.startswith("perfkit: unrecognized arguments: here")
