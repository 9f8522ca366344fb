"""What a body reads and writes: the kernel's counters, on real files and recorded trees."""

import mmap
import os
import subprocess
import sys
import threading
from contextlib import closing

import pytest

import perfkit
from perfkit.errors import UsageError
from perfkit.measure import io as room
from perfkit.measure.io import IoMeasurement, read_counters, time_io
from perfkit.records.tiers import IoTime
from perfkit.system.mounts import target_of

MIB = 2**20
SIZE = 8 * MIB
ROOT = "27 1 254:0 / / rw - ext4 /dev/vda rw"


@pytest.fixture
def data(tmp_path):
    """A file of 8 MiB that is on its device; `drop` takes it out of the page cache."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(SIZE))
    drop(path)
    return path


def drop(path):
    """Take a file out of the page cache."""
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def is_on_disk(path):
    """Does the file system count what it reads from a device?"""
    target = target_of(path)
    return not target.memory_backed and target.source.startswith("/dev/")


class Tree:
    """A recorded /proc, whose counters a body moves."""

    def __init__(self, root, *mounts, counts=True):
        self.root, self.folder = root, root / "proc/self"
        self.folder.mkdir(parents=True)
        (self.folder / "mountinfo").write_text("\n".join([ROOT, *mounts]))
        if counts:
            self.move()

    def move(self, rchar=0, read_bytes=0, wchar=0):
        names = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
        values = (rchar, wchar, 10, 10, read_bytes, 0)
        lines = [f"{name}: {value}" for name, value in zip(names, values, strict=True)]
        (self.folder / "io").write_text("\n".join([*lines, "cancelled_write_bytes: 0"]))

    def run(self, **moves):
        measurement = IoMeasurement(label="x", root=self.root)
        for _ in measurement.runs():
            if moves:
                self.move(**moves)
        return measurement.record


def mount(fstype):
    """A line of mountinfo."""
    return f"40 27 0:50 / /far rw - {fstype} server:/x rw"


def test_warm_read(data):
    """A file that was just read comes from the page cache: all of it was asked for, nothing came
    from a device.
    """
    data.read_bytes()
    record = time_io(data.read_bytes)
    assert record.state == "page cache" and record.cached_share > 0.95
    assert SIZE <= record.read_requested_bytes < SIZE + 65536
    assert record.read_device_bytes < SIZE / 20 and record.quality.status == "valid"


def test_cold_read(data):
    """A file that is not in the page cache comes from the device, where there is one."""
    record = time_io(data.read_bytes)
    assert SIZE <= record.read_requested_bytes < SIZE + 65536
    if is_on_disk(data):
        assert record.state == "device" and record.read_device_bytes > 0.95 * SIZE
    else:
        assert record.state in ("page cache", "unknown") and record.read_device_bytes == 0


def test_half_cold_read(data):
    """A file of which half is in the page cache is neither."""
    with data.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(SIZE // 2)
    record = time_io(data.read_bytes)
    if is_on_disk(data):
        assert record.state == "mixed" and 0.2 < record.cached_share < 0.8
    else:
        assert record.read_device_bytes == 0


def test_writes(tmp_path):
    """Written bytes are counted, and are no reads."""
    record = time_io(lambda: (tmp_path / "new").write_bytes(bytes(SIZE)))
    assert SIZE <= record.write_requested_bytes < SIZE + 65536
    assert record.state == "none" and record.read_requested_bytes < 65536
    assert record.write_calls >= 1


def test_nothing():
    """A body without I/O has neither bytes nor calls: what the measurement reads is left out."""
    record = time_io(lambda: None)
    assert (record.read_requested_bytes, record.read_calls) == (0, 0)
    assert (record.write_requested_bytes, record.write_calls) == (0, 0)
    assert record.state == "none" and record.cached_share is None


def test_mapped_read(data):
    """What is read through a memory map is not asked for, and is seen at the device."""

    def touch():
        with data.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            return sum(memory[::4096])

    record = time_io(touch)
    assert record.read_requested_bytes < 65536
    if is_on_disk(data):
        assert record.mapped_read_bytes > 0.9 * SIZE and record.state == "device"
        assert record.major_faults > 0


def test_threads_count(data):
    """Reads of all threads are counted, those of threads that have ended as well."""
    data.read_bytes()

    def both():
        crew = [threading.Thread(target=data.read_bytes) for _ in range(2)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()

    assert 2 * SIZE <= time_io(both).read_requested_bytes < 2 * SIZE + 65536


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_error_keeps_what_was_seen(data, error):
    """An error comes through, and what was read by then is `last()`."""

    def read():
        data.read_bytes()
        raise error

    with pytest.raises(error):
        time_io(read)
    record = perfkit.last()
    assert record.stopped and record.read_requested_bytes >= SIZE
    assert record.quality.status == "suspect" and "stopped" in record.quality.reasons[0]


def test_done_is_told_after_an_error():
    """`done` has the record once, after an error as well."""
    told = []
    measurement = IoMeasurement(label="x", done=told.append)
    with pytest.raises(ZeroDivisionError), closing(measurement.runs()) as runs:
        for _ in runs:
            raise ZeroDivisionError
    assert told == [measurement.record] and told[0].stopped


@pytest.mark.parametrize("thing", [3, "open('x')", None])
def test_not_a_function(thing):
    """What cannot be called is one line."""
    with pytest.raises(UsageError, match="wrap it in lambda:") as found:
        time_io(thing)
    assert "\n" not in str(found.value)


def test_label(data):
    """The record is named after the function; one without a name after its type."""
    from functools import partial

    assert "read_bytes" in time_io(data.read_bytes).label
    assert time_io(partial(len, "")).label == "partial"


def test_round_trip(data):
    """The record is one line of JSON and comes back equal."""
    record = time_io(data.read_bytes)
    assert IoTime.from_json(record.to_json()) == record == perfkit.last()


def test_counters_agree_with_the_kernel():
    """The counters are those of /proc/self/io, and grow."""
    first, second = read_counters(), read_counters()
    assert second.rchar > first.rchar > 0 and second.syscr > first.syscr
    assert second.read_bytes >= first.read_bytes and second.major_faults >= first.major_faults


def test_kernel_does_not_count(tmp_path):
    """Without /proc/self/io the record is refused with the reason, and figures are None."""
    record = Tree(tmp_path, counts=False).run()
    assert record.quality.status == "refused" and "/proc/self/io" in record.quality.reasons[0]
    assert record.read_requested_bytes is record.read_calls is record.cached_share is None
    assert record.state == "unknown" and record.wall_s > 0


@pytest.mark.parametrize("text", ["", "rchar: x", "rchar: 1", "rchar: 1\nwchar", "\0"])
def test_broken_counters(tmp_path, text):
    """Counters that cannot be read are as if there were none."""
    tree = Tree(tmp_path)
    (tree.folder / "io").write_text(text)
    assert read_counters(tmp_path) is None
    assert tree.run().quality.status == "refused"


@pytest.mark.parametrize(
    ("moves", "state"),
    [
        ({"rchar": 100 * MIB}, "page cache"),
        ({"rchar": 100 * MIB, "read_bytes": 100 * MIB}, "device"),
        ({"rchar": 100 * MIB, "read_bytes": 130 * MIB}, "device"),
        ({"rchar": 100 * MIB, "read_bytes": 50 * MIB}, "mixed"),
        ({"read_bytes": 100 * MIB}, "device"),
        ({"rchar": 4096}, "none"),
        ({"wchar": 100 * MIB}, "none"),
        ({}, "none"),
    ],
)
def test_states(tmp_path, moves, state):
    """Where the bytes came from follows from the counters alone, on a machine with local disks."""
    record = Tree(tmp_path).run(**moves)
    assert record.state == state and record.quality.status == "valid"


@pytest.mark.parametrize(
    "fstype",
    [
        "nfs",
        "nfs4",
        "lustre",
        "beegfs",
        "cifs",
        "ceph",
        "9p",
        "fuse.sshfs",
        "gpfs",
        "virtiofs",
        "afs",
        "panfs",
        "wekafs",
        "glusterfs",
        "orangefs",
    ],
)
def test_network_mounts(tmp_path, fstype):
    """With a network's file system mounted, missing device bytes prove no cache: it is said."""
    record = Tree(tmp_path, mount(fstype)).run(rchar=100 * MIB)
    assert record.state == "unknown" and record.quality.status == "suspect"
    assert fstype in record.quality.reasons[0]


@pytest.mark.parametrize("fstype", ["fuse.lxcfs", "fusectl", "nfsd", "tmpfs", "xfs", "fuseblk"])
def test_local_mounts(tmp_path, fstype):
    """File systems of this machine do not put the page cache in doubt, a file server's nfsd among
    them.
    """
    record = Tree(tmp_path, mount(fstype)).run(rchar=100 * MIB)
    assert (record.state, record.quality.status) == ("page cache", "valid")


def test_network_does_not_matter_for_device_reads(tmp_path):
    """What came from a device came from a device, whatever else is mounted."""
    moves = {"rchar": 100 * MIB, "read_bytes": 100 * MIB}
    assert Tree(tmp_path, mount("nfs4")).run(**moves).quality.status == "valid"


@pytest.mark.parametrize("noisy", range(5))
def test_other_threads_only_add(tmp_path, monkeypatch, noisy):
    """What another thread reads during any reading of the counters is never taken from the body's
    bytes.
    """
    seen = {"rchar": 0, "calls": 0}

    def counters(path):
        names = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
        text = "".join(f"{n}: {seen['rchar'] if n == 'rchar' else 0:020d}\n" for n in names)
        seen["rchar"] += len(text) + (8 if seen["calls"] == noisy else 0)
        seen["calls"] += 1
        return text if path.name == "io" else ""

    monkeypatch.setattr(room, "read", counters)
    measurement = IoMeasurement(label="x", root=tmp_path)
    for _ in measurement.runs():
        seen["rchar"] += SIZE
    assert SIZE <= measurement.record.read_requested_bytes <= SIZE + 64


def test_children_count(data):
    """What a child process read counts once it has ended and was waited for."""
    data.read_bytes()
    code = f"open({str(data)!r}, 'rb').read()"
    record = time_io(lambda: subprocess.run([sys.executable, "-S", "-c", code], check=True))
    assert record.read_requested_bytes >= SIZE
