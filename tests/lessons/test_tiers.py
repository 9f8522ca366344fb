"""Lesson 10: its file, the rows that it reads from a table, and both exercises."""

import gc
import os
import threading

import msgspec
import pytest

from perfkit.lessons import check, tiers
from perfkit.records.base import Quality
from perfkit.records.tiers import Job, Summary, Target, Tier, TierProbe, TierTable
from perfkit.system.facts import machine
from perfkit.tiers.cache import cache_state

RIGHT = {
    "A": "disk",
    "B": "memory",
    "C": "page cache",
    "D": "unknown",
    "E": "unknown",
    "F": "disk",
    "G": "page cache",
    "H": "memory",
}
STATES = {"uncached": "disk", "page cache": "page cache", "memory": "memory"}


def stub(*_):
    raise NotImplementedError


def labels(rule):
    """An answer to 10.1 that gives each probe the label of a rule."""
    return lambda: {name: rule(probe) for name, probe in tiers.PROBES.items()}


def epochs(copy, whole=lambda exact: int(exact) + 1):
    """An answer to 10.2 with this cost of the copy in seconds per GB, and this rounding."""

    def answer(slow, fast, write):
        return None if fast <= slow else whole(copy(slow, write) / (1 / slow - 1 / fast))

    return answer


def summary(value):
    return Summary(median=value, min=value, max=value, n=9)


def probe(rw, readers=1, curve=(), name="storage.read"):
    """A probe of the disk in `table`, with 1000 operations per second for each reader."""
    return TierProbe.of(
        probe=name,
        target=Target(path="/data"),
        job=Job(rw=rw, numjobs=readers),
        iops=summary(1000.0 * readers),
        curve=curve,
    )


def table(*probes, read_Bps=2e9):
    """A table with memory, a disk at /data and these probes."""
    rows = (
        Tier(name="CPU memory", kind="memory", read_Bps=20e9, latency_s=1e-7),
        Tier(name="home", kind="storage", path="/data", read_Bps=read_Bps, latency_s=1e-4),
    )
    return TierTable.of(tiers=rows, probes=probes, machine=machine(), quality=Quality())


def test_file_is_read_whole(tmp_path):
    """The file has no name, is read to its end after it was forgotten, and goes with its user."""
    file = tiers.OwnFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    file.forget()
    assert file.read() == file.nbytes >= 2**20
    fd = file.fd
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_zeros_take_no_room(tmp_path):
    """A file of zeros has a length and no blocks."""
    file = tiers.OwnFile(tmp_path, zeros=True)
    assert file.read() == file.nbytes
    assert os.fstat(file.fd).st_blocks == 0


def test_direct_read(tmp_path, monkeypatch):
    """A direct read is one line; where there is no such folder, that is the line."""
    monkeypatch.setattr(tiers, "MOST_BYTES", 4 * 2**20)
    assert str(tmp_path) in tiers.direct_read(tmp_path)
    assert "not here" in tiers.direct_read(tmp_path / "missing")


def test_rows_of_a_table():
    """Memory and disk are the table's own rows where they have their figures."""
    seen = table()
    assert tiers.memory(seen).name == "CPU memory"
    assert tiers.disk(seen).name == "home"


def test_rows_from_elsewhere():
    """Where a figure is missing the row says that it is not yours."""
    seen = table(read_Bps=None)
    assert "not yours" in tiers.disk(seen).name
    assert "not yours" in tiers.memory(msgspec.structs.replace(seen, tiers=())).name


def test_readers():
    """The curve and the small reads are the disk's; one reader of each is among them."""
    curve = ((1.0, 2e9), (4.0, 3e9))
    seen = tiers.readers(
        table(probe("read", curve=curve), probe("randread"), probe("randread", 32))
    )
    assert seen == ("home", {1: 2e9, 4: 3e9}, {1: 1000, 32: 32_000})
    elsewhere = tiers.readers(table())
    assert {1, 32} <= elsewhere.iops.keys() and "not yours" in elsewhere.place


def test_small_files():
    """Each thing done to small files has its rate."""
    seen = table(probe("create", name="storage.metadata"), probe("stat", name="storage.metadata"))
    assert tiers.small_files(seen) == {"create": 1000, "stat": 1000}


def test_turns_are_taken(tmp_path):
    """Each waits at least as long as those before it need."""
    waits = tiers.take_turns(tmp_path, people=3, seconds=0.1)
    assert len(waits) == 3
    assert waits[2] > waits[1] > 0.05
    assert threading.active_count() < 10


def test_recorded_probes_are_judged_as_perfkit_does():
    """What is right in the exercise is what perfkit itself would say of these eight."""
    for name, p in tiers.PROBES.items():
        target = Target(
            fstype=p.fstype,
            source=p.source,
            memory_backed=p.fstype == "tmpfs" or p.source.startswith("/dev/ram"),
            network=p.fstype == "lustre",
        )
        found = cache_state(target, asked=p.asked, from_device=p.from_device)
        assert STATES.get(found.state, "unknown") == RIGHT[name]


def test_probes_are_shown():
    """The table has a line for each probe."""
    _, *lines = tiers.shown_probes().splitlines()
    assert [line[0] for line in lines] == list(tiers.PROBES)


@pytest.mark.parametrize("name", ["10.1", "10.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


def test_right_labels():
    """The right labels pass."""
    assert check("10.1", lambda: RIGHT).status == "right"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (labels(lambda p: "disk" if p.GBps < 4 else "page cache"), "by speed alone"),
        (labels(lambda p: "disk" if p.GBps < 4 else "memory"), "by speed alone"),
        (labels(lambda p: "disk" if p.direct else "page cache"), "took O_DIRECT for a proof"),
        (labels(tiers._by_counter), "by the counter alone"),
        (lambda: RIGHT | {"B": "page cache"}, "7 of 8 are right. Look at B again: tmpfs"),
        (lambda: RIGHT | {"B": "disk"}, "Look at B again: tmpfs lies in memory"),
        (lambda: RIGHT | {"D": "page cache"}, "does not count what comes over a network"),
        (lambda: RIGHT | {"D": "disk"}, "Look at D again"),
        (lambda: RIGHT | {"E": "page cache"}, "the speed is neither's"),
        (lambda: RIGHT | {"H": "disk"}, "/dev/ram0 is a piece of memory"),
        (lambda: {"A": "disk"}, "one label for each of A, B"),
        (lambda: RIGHT | {"A": "ssd"}, "['ssd'] are not among disk"),
        (lambda: None, "TypeError"),
    ],
)
def test_wrong_labels(answer, told):
    """Each wrong answer is told why; the three short cuts by name."""
    judged = check("10.1", answer)
    assert judged.status == "wrong"
    assert told in judged.message


def test_stage_by_hand():
    """One GB at 1 GB/s, there 4, written at 0.5: the copy takes 2 s, each epoch then 0.25 s."""
    assert tiers.stage(8, slow=1.0, fast=4.0, write=0.5) == (8.0, 2.0 + 2.0)


def test_right_epochs():
    """The formula passes, and so does adding up epoch by epoch."""
    assert check("10.2", epochs(lambda s, w: 1 / min(s, w))).status == "right"
    assert check("10.2", by_adding_up).status == "right"


def by_adding_up(slow, fast, write):
    if fast <= slow:
        return None
    return next(n for n in range(1, 1000) if tiers.stage(n, slow, fast, write)[1] < n / slow)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (epochs(lambda s, w: 1 / s), "forgot how fast the copy can be written"),
        (epochs(lambda s, w: 1 / w), "no faster than its source"),
        (epochs(lambda s, w: 1 / s + 1 / w), "the slower counts, not the sum"),
        (epochs(lambda s, w: 1 / min(s, w), int), "you rounded down"),
        (epochs(lambda s, w: 1 / min(s, w), round), "you rounded to the nearest"),
        (epochs(lambda s, w: 0), "did not count the copy"),
        (lambda s, f, w: int(1 / min(s, w) / (1 / s - 1 / f)) + 1, "it never pays, so give None"),
        (lambda s, f, w: 5 if f > s else 0, "you gave 0"),
        (lambda s, f, w: None, "pays from epoch 4 on, you gave None"),
        (lambda s, f, w: 1 / 0, "a division by zero"),
    ],
)
def test_wrong_epochs(answer, told):
    """Each wrong answer is told why."""
    judged = check("10.2", answer)
    assert judged.status == "wrong"
    assert told in judged.message
