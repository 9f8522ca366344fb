"""The tier table: rows from probes, what is said of doubt, and what is left after an error."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

import perfkit
from perfkit.errors import UsageError
from perfkit.records.base import Quality
from perfkit.records.machine import Limits
from perfkit.records.tiers import (
    CacheState,
    Job,
    PlannedPath,
    Plateau,
    Summary,
    Target,
    Tier,
    TierProbe,
    TierTable,
)
from perfkit.system.caches import allowed_cpus, last_levels_bytes
from perfkit.tiers import answers, rows
from perfkit.tiers import table as room
from perfkit.tiers.latency import LARGEST_BYTES
from perfkit.tiers.plan import plan_tiers
from perfkit.tiers.reference import NAME, reference_tiers
from perfkit.tiers.table import TierSurvey
from perfkit.tiers.turns import turn

DISK = Target(path="/data", fstype="ext4", source="/dev/sda1", st_dev="8:1", total_bytes=10**12)
TMPFS = Target(path="/dev/shm", fstype="tmpfs", source="tmpfs", st_dev="0:24", memory_backed=True)


def figure(median):
    """A figure of five equal samples."""
    return Summary(median=median, min=median, max=median, n=5)


def reading(rw="read", Bps=1e9, readers=1, state="uncached", status="valid", target=DISK, **fields):
    """A probe of storage reads."""
    reasons = () if status == "valid" else (f"{rw} is {status}",)
    fields = {"iops": figure(Bps / 4096), "latency_s": figure(1e-4)} | fields
    return TierProbe.of(
        probe="storage.read",
        target=target,
        job=Job(rw=rw, numjobs=readers, direct=state != "page cache"),
        bandwidth_Bps=figure(Bps),
        cache=CacheState(state=state),
        quality=Quality(status=status, reasons=reasons),
        **fields,
    )


def writing(Bps=5e8, status="valid"):
    """A probe of writes with fsync."""
    quality = Quality(status=status, reasons=() if status == "valid" else (f"write {status}",))
    return TierProbe.of(
        probe="storage.write", target=DISK, bandwidth_Bps=figure(Bps), quality=quality
    )


def rows_of(probes, target=DISK, name="data"):
    """The rows that a folder's probes make."""
    path = PlannedPath(path=target.path, name=name, why="", target=target)
    return list(rows.storage_rows(path, probes))


def disk(name, read, write, **fields):
    """A row of a disk."""
    return Tier(name=name, kind="storage", path=name, read_Bps=read, write_Bps=write, **fields)


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    """No probe outside these tests waits for one in here."""
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    """One real probe of a folder and of what is well known here: the folder and the table."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "TMPDIR", "SCRATCH"):
            patch.setenv(name, str(folder))
        patch.setenv("PERFKIT_RESULTS", str(tmp_path_factory.mktemp("ledger") / "results.jsonl"))
        patch.setenv("PERFKIT_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield folder, perfkit.probe_tiers([folder], budget_s=2)


@pytest.fixture
def known_memory(survey, monkeypatch):
    """Memory is not measured again where only the disks matter: its probes are the survey's."""
    probes = survey[1].probes
    bandwidths = [probe for probe in probes if probe.probe == "memory.bandwidth"]
    (latency,) = [probe for probe in probes if probe.probe == "memory.latency"]
    monkeypatch.setattr(room, "probe_bandwidth", lambda **_: bandwidths)
    monkeypatch.setattr(room, "probe_latency", lambda **_: latency)


def interrupted_at(words, *paths, error=KeyboardInterrupt):
    """What `last()` is after an interrupt at the first step whose name has these words."""

    def tick(said, part):
        assert 0 <= part <= 1
        if words in said:
            raise error

    before = threading.active_count()
    with pytest.raises(error):
        TierSurvey(plan_tiers(paths, environ={}, budget_s=0.3), tick=tick).run()
    assert threading.active_count() == before
    return perfkit.last()


# -- a real one ------------------------------------------------------------------------------------


def test_kinds_of_rows(survey):
    """There are memory, the folder and a memory file system, each once and of the right kind."""
    folder, table = survey
    names = [tier.name for tier in table.tiers]
    assert len(set(names)) == len(names) and "CPU memory" in names
    assert table.tier("shared memory").kind == table.tier("CPU memory").kind == "memory"
    (mine,) = [t for t in table.tiers if t.path == str(folder) and t.kind != "cache"]
    assert mine.kind == ("memory" if table.plan.paths[0].target.memory_backed else "storage")


def test_figures_are_known_or_none(survey):
    """Every figure is positive or None, never 0; that of what is measured is there."""
    _, table = survey
    for tier in table.tiers:
        figures = (tier.read_Bps, tier.write_Bps, tier.latency_s, tier.iops, tier.capacity_bytes)
        assert all(value is None or value > 0 for value in figures), tier
    assert table.tier("CPU memory").read_Bps > 1e8
    latency_s = table.tier("CPU memory").latency_s
    # A cache that is larger than what a quick run walks through leaves the memory's unknown.
    is_walked = (last_levels_bytes(sorted(allowed_cpus())) or 0) < LARGEST_BYTES
    assert 1e-9 < latency_s < 1e-5 if is_walked else latency_s is None


def test_page_cache_is_apart(survey):
    """What the page cache gave has a row of its own, whose name is not the disk's."""
    _, table = survey
    caches = [tier for tier in table.tiers if tier.kind == "cache" and tier.path]
    assert all(tier.name.startswith("page cache of ") for tier in caches)
    for cache in caches:
        of = next(t for t in table.tiers if cache.name == f"page cache of {t.name}")
        assert of.kind == "storage" and of.read_Bps != cache.read_Bps


def test_proof_behind_the_rows(survey):
    """A storage row's figures are those of probes that did not come from the page cache."""
    _, table = survey
    for tier in table.tiers:
        if tier.kind == "storage" and tier.read_Bps:
            source = [p for p in table.probes if p.bandwidth_Bps and p.target.path == tier.path]
            states = {p.cache.state for p in source if p.bandwidth_Bps.median == tier.read_Bps}
            assert states and "page cache" not in states


def test_nothing_stays(survey):
    """No file is left in the folder, and the whole took no longer than a few budgets."""
    folder, table = survey
    # PoCL keeps its compiled kernels in the home folder, which this is.
    assert [each for each in folder.iterdir() if each.name != ".cache"] == []
    assert table.spent_s < 10
    assert table.stopped == "" and table.waited_s < table.spent_s
    assert not list(Path("/dev/shm").glob(".perfkit-*"))


def test_same_file_system_is_said(survey):
    """Folders on one file system have one row."""
    folder, table = survey
    assert sum(tier.path == str(folder) and tier.kind != "cache" for tier in table.tiers) == 1


def test_reference_rows(survey):
    """The deck's rows stand beside yours, none of them as if it were measured here."""
    _, table = survey
    assert table.reference == reference_tiers() and table.reference_name == NAME
    assert {tier.figures for tier in table.reference} == {"nominal", "elsewhere"}
    assert [t.name for t in table.reference if t.figures == "elsewhere"] == [
        "home",
        "global scratch",
        "group area",
    ]
    assert {tier.figures for tier in table.tiers} <= {"measured", "absent"}


def test_round_trip(survey):
    """The table is one line of JSON that comes back equal; so is each of its probes."""
    _, table = survey
    assert TierTable.from_json(table.to_json()) == table
    lines = table.json_lines().splitlines()
    assert tuple(map(TierProbe.from_json, lines)) == table.probes
    assert {"memory.bandwidth", "memory.latency", "storage.read"} <= {p.probe for p in table.probes}


def test_bad_path():
    """A named folder that cannot be probed is one line, before anything is measured."""
    with pytest.raises(UsageError, match="does not exist"):
        perfkit.probe_tiers(["/no/such/folder"])


# -- rows from probes ------------------------------------------------------------------------------


def test_best_of_several_reads():
    """The row has the fastest sequential read and the most IOPS; latency is that of one reader."""
    probes = [
        reading(Bps=1e9),
        reading(Bps=3e9, readers=4),
        reading("randread", 2e7, latency_s=figure(1e-4)),
        reading("randread", 2e8, readers=32, latency_s=figure(9e-4)),
        writing(),
    ]
    row = rows_of(probes)[0]
    assert (row.read_Bps, row.write_Bps, row.latency_s) == (3e9, 5e8, 1e-4)
    assert row.iops == pytest.approx(2e8 / 4096)
    assert "read by 4 readers" in row.note and "IOPS with 32 readers" in row.note


def test_cached_reads_are_not_the_disk():
    """Where all reads came from the page cache the disk has no read figure, and says so."""
    row, cache = rows_of([reading(Bps=1e10, state="page cache")])
    assert (row.read_Bps, row.latency_s, row.iops) == (None, None, None)
    assert row.quality.status == "refused" and row.quality.reasons
    assert (cache.name, cache.kind, cache.read_Bps) == ("page cache of data", "cache", 1e10)


def test_memory_file_system():
    """A file system in memory is memory, which neither persists nor is shared nor has a cache."""
    (row,) = rows_of([reading(Bps=1e10, state="memory", target=TMPFS)], TMPFS)
    assert (row.kind, row.persistent, row.shared, row.read_Bps) == ("memory", "no", "no", 1e10)


def test_worst_quality_wins():
    """A row is as good as the worst figure in it, with the reasons of all."""
    row = rows_of([reading(), reading("randread", status="suspect"), writing(status="refused")])[0]
    assert row.quality.status == "refused"
    assert any("randread is suspect" in reason for reason in row.quality.reasons)
    assert any("write refused" in reason for reason in row.quality.reasons)


def test_refused_reads_are_not_forgotten():
    """Where reads were refused the row says why it has no read figure, though writes are good."""
    row = rows_of([reading(status="refused"), writing()])[0]
    assert row.read_Bps is None and row.write_Bps == 5e8
    assert row.quality.status != "valid"
    assert any("read is refused" in reason for reason in row.quality.reasons)


def test_nodes():
    """BeeOND's row is multiplied by nodes, is shared, and does not persist."""
    row = rows_of([reading()], name="BeeOND")[0]
    assert (row.multiplier, row.shared, row.persistent) == ("nodes", "yes", "no")
    assert rows_of([reading()])[0].multiplier == ""


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ({}, "no"),
        ({"fstype": "lustre", "source": "10.0.0.1@tcp:/l", "network": True}, "yes"),
        ({"fstype": "overlay", "source": "overlay"}, "unknown"),
    ],
)
def test_sharing(fields, shared):
    """A local disk is not shared, a network's is, and of an overlay nobody knows."""
    target = msgspec.structs.replace(DISK, **fields)
    assert rows_of([reading(target=target)], target)[0].shared == shared


def test_memory_rows():
    """Caches and memory come from the chase's plateaus: the last one is memory's latency."""
    plateaus = (
        Plateau(level="L1", seconds=1e-9, end_bytes=2**15, nominal_bytes=2**15),
        Plateau(level="memory", seconds=1e-7),
    )
    chase = TierProbe.of(probe="memory.latency", plateaus=plateaus)
    found = {row.name: row for row in rows.memory_rows([], chase)}
    assert list(found) == ["L1 cache", "CPU memory"]
    assert found["L1 cache"].latency_s == 1e-9 and found["L1 cache"].capacity_bytes == 2**15
    assert found["CPU memory"].latency_s == 1e-7 and found["CPU memory"].read_Bps is None


def test_no_memory_figures():
    """Without any figure memory's row is refused or has its reason, and has no 0."""
    (row,) = rows.memory_rows([], None)
    assert row.quality.status == "refused" and row.quality.reasons
    assert row.read_Bps is row.latency_s is None


def test_memory_limit(monkeypatch):
    """Under a memory limit neither capacity nor free memory is more than the limit."""
    monkeypatch.setattr(rows, "read_limits", lambda: Limits(memory_bytes=2**28))
    (row,) = rows.memory_rows([], None)
    assert row.capacity_bytes == 2**28
    assert row.free_bytes <= 2**28


# -- advice ----------------------------------------------------------------------------------------


def staging(*tiers):
    """The sentences on moving a data set."""
    return [line for line in rows.advice(tiers) if "epoch" in line]


def test_staging_pays():
    """Copying to a disk twice as fast pays after the epochs that it saves."""
    slow, fast = disk("group", 1e9, 1e9), disk("scratch", 2e9, 2e9)
    assert staging(slow, fast) == [
        "100 GB are read in 100 s from group and in 50.0 s from scratch; copying them there takes "
        "100 s and pays from epoch 3 on"
    ]


def test_staging_is_held_up_by_writes():
    """Slow writes put the gain off: the copy takes as long as they do."""
    slow, fast = disk("group", 1e9, 1e9), disk("scratch", 2e9, 1e8)
    assert staging(slow, fast) == [
        "100 GB are read in 100 s from group and in 50.0 s from scratch; copying them there takes "
        "1,000 s and pays from epoch 21 on"
    ]


@pytest.mark.parametrize(
    "goal",
    [
        disk("scratch", 1e9, 1e9),
        disk("scratch", 1.1e9, 1e9),
        disk("scratch", 2e9, None),
        disk("scratch", None, 1e9),
        disk("scratch", 2e9, 1e9, quality=Quality(status="refused", reasons=("x",))),
        Tier(name="cache", kind="cache", read_Bps=9e9, write_Bps=9e9),
    ],
    ids=["equal", "hardly faster", "no write", "no read", "refused", "cache"],
)
def test_staging_never_pays(goal):
    """There is no advice to move what would not be read faster, or on figures that are missing."""
    assert not [line for line in staging(disk("group", 1e9, 1e9), goal) if "pays from" in line]


def test_staging_needs_room():
    """Nobody is told to copy 100 GB to where they do not fit."""
    fast = disk("scratch", 2e9, 2e9, free_bytes=10 * 2**30)
    assert not [line for line in staging(disk("group", 1e9, 1e9), fast) if "100 GB" in line]


def test_memory_beside_the_slowest():
    """Memory is set beside the slowest disk, with the memory that is free."""
    memory = Tier(name="CPU memory", kind="memory", read_Bps=1e10, free_bytes=2**30)
    (line,) = rows.advice([memory, disk("a", 2e9, None), disk("b", 1e9, None)])
    assert line == ("memory reads 10.0 x as fast as b: what fits in 1.00 GiB is best kept there")


@pytest.mark.parametrize(("Bps", "free"), [(5e8, 2**30), (1e9, 2**30), (1e10, None)])
def test_no_advice_for_memory(Bps, free):
    """Memory that is not faster, or of which nobody knows what is free, is not recommended."""
    memory = Tier(name="CPU memory", kind="memory", read_Bps=Bps, free_bytes=free)
    said = list(rows.advice([memory, disk("a", 1e9, None)]))
    assert not [line for line in said if "n/a" in line or (Bps <= 1e9 and "best kept" in line)]


# -- what happens in the middle --------------------------------------------------------------------


def test_interrupt_keeps_rows(tmp_path):
    """An interrupt at a disk leaves memory's row in `last()`, no file, no lock and no thread."""
    table = interrupted_at("random", tmp_path)
    assert table.stopped and table.quality.status == "suspect"
    assert table.tier("CPU memory").read_Bps > 0
    assert [each for each in tmp_path.iterdir() if each.suffix != ".lock"] == []
    with turn(table.plan.paths[0].target, most_s=0.0) as waited_s:
        assert waited_s < 1


@pytest.mark.usefixtures("known_memory")
def test_error_keeps_rows(tmp_path):
    """So does an error that nobody expects, and it comes through."""
    table = interrupted_at("write", tmp_path, error=ZeroDivisionError)
    assert table.stopped and table.tier("CPU memory").read_Bps > 0


@pytest.mark.usefixtures("known_memory")
def test_interrupt_keeps_probes_of_the_step(tmp_path):
    """Reads that were done when the metadata probe was interrupted are kept."""
    table = interrupted_at(": create", tmp_path)
    assert {"storage.read", "storage.write"} <= {probe.probe for probe in table.probes}


def test_interrupt_in_memory_keeps_its_probes():
    """Bandwidths that were done when the chase was interrupted are kept."""
    table = interrupted_at("latency")
    assert "memory.bandwidth" in {probe.probe for probe in table.probes}


@pytest.mark.usefixtures("known_memory")
def test_vanished_folder(tmp_path):
    """A folder that is gone between plan and probe costs its own row, and is named."""
    (tmp_path / "gone").mkdir()
    plan = plan_tiers([tmp_path / "gone"], environ={}, budget_s=0.3)
    shutil.rmtree(tmp_path / "gone")
    table = TierSurvey(plan).run()
    assert table.stopped == "" and table.tier("CPU memory") and table.tier("shared memory")
    assert any(str(tmp_path / "gone") in note for note in table.notes)


@pytest.mark.usefixtures("known_memory")
def test_folder_vanishes_in_the_middle(tmp_path):
    """So does one that goes while it is probed."""
    (tmp_path / "gone").mkdir()

    def tick(words, _):
        if words.endswith(": write"):
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)

    plan = plan_tiers([tmp_path / "gone"], environ={}, budget_s=0.3)
    table = TierSurvey(plan, tick=tick).run()
    assert table.tier("shared memory").read_Bps > 0
    assert any("gone" in note for note in table.notes)


@pytest.mark.usefixtures("known_memory")
def test_disk_is_full(tmp_path, monkeypatch):
    """A disk that fills up in the middle costs its own row, in one line."""
    folder = tmp_path / "small"
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", "size=20m", "perfkit-test", folder]
    mounted = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    if not mounted:
        monkeypatch.setattr(os, "pwrite", _full)

    def tick(words, _):
        if mounted and words.endswith(": write") and "small" in words:
            (folder / "mine").write_bytes(bytes(20 * 2**20 - 8192))

    try:
        plan = plan_tiers([folder], environ={}, budget_s=0.3)
        table = TierSurvey(plan, tick=tick).run()
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)
    assert table.tier("CPU memory") and any("is full" in note for note in table.notes)
    assert all(len(note.splitlines()) == 1 for note in table.notes)
    assert mounted is False or table.tier("shared memory").read_Bps > 0


def _full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("known_memory")
def test_answers_are_applied(tmp_path):
    """What you said of a folder is in its row, in no other row, and marked as yours."""
    answers.keep(answers.parse(f"{tmp_path}:persistent=partly,shared=yes"))
    table = TierSurvey(plan_tiers([tmp_path], environ={}, budget_s=0.3)).run()
    (row,) = [t for t in table.tiers if t.path == str(tmp_path) and t.kind != "cache"]
    assert (row.persistent, row.shared) == ("partly", "yes")
    assert [tier for tier in table.tiers if tier.filled_in] == [row]
