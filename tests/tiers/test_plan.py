"""What a tier probe is going to do: which folders, each file system once, inside the budget."""

import os

import pytest

from perfkit.errors import UsageError
from perfkit.tiers.plan import WELL_KNOWN, plan_tiers

VARIABLES = [place.variable for place in WELL_KNOWN if place.variable]


def planned(paths=None, *, environ=None, **options):
    """A plan in an environment that has only what the test gives it."""
    return plan_tiers(paths, environ=environ or {}, **options)


def row_of(plan, path):
    """The one row of a path."""
    (row,) = [row for row in plan.paths if row.path == str(path)]
    return row


@pytest.mark.parametrize("variable", VARIABLES)
def test_well_known_variables(tmp_path, variable):
    """A folder that a variable names is in the plan, with the variable as the reason."""
    row = row_of(planned(environ={variable: str(tmp_path)}), tmp_path)
    assert row.why == f"${variable}" and row.name and not row.refused
    assert row.write_bytes > 0 and row.seconds > 0 and row.target.fstype


def test_empty_variables():
    """Variables that are empty or not set add nothing."""
    bare = [row.path for row in planned().paths]
    assert [row.path for row in planned(environ=dict.fromkeys(VARIABLES, "")).paths] == bare


@pytest.mark.parametrize(
    "path",
    ["/no/such/folder", "a\0b", "x" * 5000, "~nobody-here/x", "a\nb"],
    ids=["missing", "zero byte", "too long", "no such user", "line break"],
)
def test_bad_well_known_folder(tmp_path, path):
    """A variable that leads nowhere costs nobody the plan, whatever it holds."""
    plan = planned([tmp_path], environ={"TMPDIR": path, "SCRATCH": str(tmp_path)})
    assert not row_of(plan, tmp_path).refused
    assert all(row.refused or row.path != path for row in plan.paths)


def test_well_known_file(tmp_path):
    """A variable that names a file is left out or shown as refused, and nothing is written."""
    (tmp_path / "file").touch()
    rows = planned(environ={"TMPDIR": str(tmp_path / "file")}).paths
    assert all(row.refused and not row.write_bytes for row in rows if "file" in row.path)


def test_refused_well_known_folder(tmp_path, monkeypatch):
    """A known folder that may not be written is shown with the reason, and takes no time."""
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: str(p) != str(tmp_path) and allowed(p, mode))
    row = row_of(planned(environ={"SCRATCH": str(tmp_path)}), tmp_path)
    assert "not writable" in row.refused and (row.write_bytes, row.seconds) == (0, 0)


@pytest.mark.parametrize("name", ["nothing", "file", "dangling", "new\nline"])
def test_bad_named_path(tmp_path, name):
    """A named path that cannot be probed is one line that names it."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError) as found:
        planned([tmp_path, tmp_path / name])
    assert name.split("\n")[0] in str(found.value)
    assert len(str(found.value).splitlines()) == 1


def test_each_file_system_once(tmp_path):
    """Folders on one device are measured once: the later ones point to the first."""
    for name in "abc":
        (tmp_path / name).mkdir()
    folders = [str(tmp_path / name) for name in "abc"]
    plan = planned(folders[:2], environ={"HOME": folders[2]})
    assert [row_of(plan, folder).same_as for folder in folders] == ["", folders[0], folders[0]]
    measured = [row for row in plan.paths if not row.same_as]
    assert len({row.target.st_dev for row in measured}) == len(measured)
    assert all(not row.write_bytes for row in plan.paths if row.same_as)


def test_same_folder_twice(tmp_path):
    """One folder by several names is one row, and what you named comes first."""
    (tmp_path / "link").symlink_to(tmp_path)
    names = [tmp_path, f"{tmp_path}/", tmp_path / "link", os.path.relpath(tmp_path)]
    plan = planned(names, environ={"TMPDIR": str(tmp_path), "HOME": f"{tmp_path}/."})
    assert row_of(plan, tmp_path).why == "you named it"
    assert plan.paths[0].path == str(tmp_path)


def test_blanks_home_and_links(tmp_path, monkeypatch):
    """Blanks, ~ and links are followed to the folder that is meant."""
    (tmp_path / "my disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "my disk")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (tmp_path / "my disk", "~/my disk", tmp_path / "link", "~/link"):
        assert planned([path]).paths[0].path == str(tmp_path / "my disk")


def test_beeond_is_told_by_its_name(tmp_path):
    """A folder below a BeeOND mount is called so, whoever named it."""
    (tmp_path / "beeond").mkdir()
    assert planned([tmp_path / "beeond"]).paths[0].name == "BeeOND"
    assert row_of(planned(environ={"BEEOND": str(tmp_path)}), tmp_path).name == "BeeOND"


@pytest.mark.parametrize("quick", [True, False])
def test_budget_shortens_in_proportion(tmp_path, quick):
    """Half of the time halves each part; no part is left out."""
    whole = planned([tmp_path], quick=quick)
    half = planned([tmp_path], quick=quick, budget_s=whole.seconds / 2)
    assert whole.budget_s == pytest.approx(whole.seconds)
    assert half.memory_s == pytest.approx(whole.memory_s / 2, rel=0.2)
    for mine, other in zip(half.paths, whole.paths, strict=True):
        assert mine.seconds == pytest.approx(other.seconds / 2, rel=0.2)


def test_large_budget_lengthens_nothing(tmp_path):
    """More time than is needed is not spent."""
    assert planned([tmp_path], budget_s=1e6).seconds == planned([tmp_path]).seconds


def test_devices_count_in_the_budget(tmp_path):
    """A plan keeps its budget with device runtimes in use, too."""
    import pyopencl  # noqa: F401

    plan = planned([tmp_path], budget_s=2.0)
    assert "opencl" in plan.devices
    assert plan.seconds <= 2.0 * 1.05


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf")])
def test_bad_budget(budget_s):
    """A budget that is no time is one line."""
    with pytest.raises(UsageError, match=r"budget is .*: give seconds above 0$"):
        planned(budget_s=budget_s)


def test_planning_writes_nothing(tmp_path):
    """No file appears in a folder by planning, not even for a moment."""
    before = tmp_path.stat().st_mtime_ns
    plan = planned([tmp_path], environ={"HOME": str(tmp_path)})
    assert plan.write_bytes > 0 and list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before


def test_bytes_are_capped(tmp_path):
    """A file system gets at most 5 % of its free space and some small files, 260 MiB in all."""
    row = planned([tmp_path]).paths[0]
    assert row.write_bytes <= 260 * 2**20
    assert row.write_bytes <= row.target.free_bytes / 20 + 4 * 2**20
