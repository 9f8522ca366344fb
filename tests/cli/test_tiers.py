"""`perfkit tiers`: the plan, the table, JSON for programs, errors in one line, many at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from perfkit.cli import main as cli
from perfkit.records.tiers import TierPlan, TierProbe

COMMAND = [sys.executable, "-m", "perfkit.cli.main", "tiers"]


@pytest.fixture
def place(tmp_path):
    """A folder to measure, and an environment that has no other but /dev/shm."""
    folder = tmp_path / "data"
    folder.mkdir()
    own = {"HOME": str(folder), "TMPDIR": str(folder), "PERFKIT_LOCKS": str(tmp_path)}
    return folder, os.environ | own


def run(place, *options):
    """Run it in a process of its own: what it printed."""
    asked = [*COMMAND, *options]
    done = subprocess.run(asked, env=place[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refusal(capsys, *options):
    """The one line that it fails with."""
    assert cli.main(["tiers", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("perfkit: ")
    return err


def test_plan(capsys, tmp_path):
    """`--plan` shows what would be written, and writes nothing."""
    assert cli.main(["tiers", "--plan", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path} (you named it)" in out and "nothing has been done yet" in out
    assert list(tmp_path.iterdir()) == []


def test_plan_as_json(capsys, tmp_path):
    """`--plan --json` is the plan's record."""
    assert cli.main(["tiers", "--plan", "--json", "--budget", "3", str(tmp_path)]) == 0
    plan = TierPlan.from_json(capsys.readouterr().out)
    assert plan.paths[0].path == str(tmp_path) and plan.budget_s == 3.0


def test_plan_of_many_processes(capsys, tmp_path):
    """`--plan` does nothing with `--together` either."""
    written = []
    (tmp_path / "data").mkdir()
    before = (tmp_path / "data").stat().st_mtime_ns
    status = cli.main(["tiers", "--plan", "--together", "2", str(tmp_path / "data")])
    written.append((tmp_path / "data").stat().st_mtime_ns != before)
    out = capsys.readouterr().out
    assert written == [False]
    assert status == 2 or "plan" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("/no/such/folder",), "does not exist"),
        (("/etc/passwd",), "is a file"),
        (("",), "empty path"),
        (("--budget", "0"), "seconds above 0"),
        (("--budget", "nan"), "seconds above 0"),
        (("--budget", "much"), "invalid float"),
        (("--quick", "--full"), "not allowed with"),
        (("--nothing",), "unrecognized arguments: --nothing"),
        (("--together", "2"), "name one"),
        (("--together", "1", "/tmp"), "whole number from 2"),
        (("--together", "x", "/tmp"), "invalid int"),
        (("--together", "2", "/no/such/folder"), "does not exist"),
        (("/tmp", "--", "x"), "takes nothing behind --"),
    ],
)
def test_errors(capsys, options, wanted):
    """What is wrong is one line on stderr, and the status is 2."""
    assert wanted in refusal(capsys, *options)


def test_json(place):
    """`--json` is one probe a line, each with its own proof; nothing else is printed."""
    lines = run(place, "--json", "--budget", "0.3", str(place[0])).splitlines()
    probes = [TierProbe.from_json(line) for line in lines]
    assert {"memory.bandwidth", "memory.latency", "storage.read", "storage.write"} <= {
        probe.probe for probe in probes
    }
    assert [json.loads(line) for line in lines] == [json.loads(p.to_json()) for p in probes]
    assert all(p.cache for p in probes if p.probe == "storage.read")
    assert all(p.host and p.time for p in probes) and list(place[0].iterdir()) == []


def test_table(place):
    """Without `--json` the plan comes first, then the table; a device that is not in use is
    absent.
    """
    out = run(place, "--budget", "0.3", str(place[0]))
    assert out.startswith("plan: ") and "nothing has been done yet" not in out
    row = next(line for line in out.splitlines() if line.strip().startswith("GPU memory"))
    assert "absent" in row and "no device runtime is imported" in out
    assert "CPU memory" in out and "shared memory" in out and "ABCI" in out


def test_interrupt(place):
    """SIGINT ends it without a traceback, with a status that is not 0 and no file left."""
    asked = [*COMMAND, "--full", str(place[0])]
    with subprocess.Popen(
        asked, env=place[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("plan: ")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode != 0 and list(place[0].iterdir()) == []
    assert len(err.strip().splitlines()) <= 1, err


def test_six_at_once(place):
    """Six people on one file system take turns, and all succeed."""
    folder, environment = place
    kinds = [["--json"]] * 5 + [[]]
    crew = [
        subprocess.Popen(
            [*COMMAND, "--budget", "2", str(folder), *kind],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in kinds
    ]
    found = [process.communicate(timeout=120) for process in crew]
    assert [process.returncode for process in crew] == [0] * 6, found
    assert [err for _, err in found] == [""] * 6 and list(folder.iterdir()) == []
    for out, _ in found[:5]:
        reads = [p for line in out.splitlines() if (p := TierProbe.from_json(line)).iops]
        assert {str(folder), "/dev/shm"} <= {probe.target.path for probe in reads}
    assert "tiers in" in found[5][0]
