"""Where bytes came from: judged from made-up counts, and seen on files of this machine."""

import errno
import mmap
import os
import subprocess
from contextlib import ExitStack

import pytest

from perfkit.records.tiers import Target
from perfkit.system.mounts import target_of
from perfkit.tiers import cache
from perfkit.tiers.cache import bypass, cache_state, drop, read_bytes, resident_share

DISK = Target(fstype="ext4", source="/dev/vda")
NFS = Target(fstype="nfs4", source="server:/x", network=True)
TMPFS = Target(fstype="tmpfs", source="tmpfs", memory_backed=True)
OVERLAY = Target(fstype="overlay", source="overlay")
ZFS = Target(fstype="zfs", source="pool/home")
FUSE = Target(fstype="fuse.thing", source="thing")


@pytest.mark.parametrize(
    ("target", "from_device", "resident", "state"),
    [
        (DISK, 1000, None, "uncached"),
        (DISK, 1100, 0.0, "uncached"),
        (DISK, 950, 0.0, "uncached"),
        (DISK, 940, 0.0, "mixed"),
        (DISK, 60, 0.9, "mixed"),
        (DISK, 50, 1.0, "page cache"),
        (DISK, 0, None, "page cache"),
        (DISK, None, 1.0, "page cache"),
        (DISK, None, 0.0, "unknown"),
        (OVERLAY, 1000, 0.0, "uncached"),
        (OVERLAY, 0, 1.0, "page cache"),
        (TMPFS, 0, 1.0, "memory"),
        (TMPFS, 1000, 0.0, "memory"),
        (NFS, 0, 0.0, "unknown"),
        (NFS, 0, 1.0, "page cache"),
        (NFS, 1000, 0.0, "uncached"),
        (NFS, 500, 1.0, "unknown"),
        (FUSE, 0, None, "unknown"),
        (ZFS, 1000, 0.0, "unknown"),
    ],
)
def test_state(target, from_device, resident, state):
    """What counts and residency prove, and where they prove nothing."""
    found = cache_state(target, asked=1000, from_device=from_device, resident_before=resident)
    assert found.state == state
    assert found.device_share == (None if from_device is None else from_device / 1000)


def test_nothing_read():
    """No bytes asked for prove nothing."""
    assert cache_state(DISK, asked=0, from_device=0).state == "unknown"


@pytest.mark.parametrize(("dio", "state"), [("1", "uncached"), ("0", "unknown")])
def test_loop_device(monkeypatch, dio, state):
    """Below a loop device that reads its file through the page cache nothing is proven."""
    monkeypatch.setattr(cache, "backing", lambda source: "/image")
    monkeypatch.setattr(cache, "read", lambda path: dio)
    target = Target(fstype="ext4", source="/dev/loop0")
    assert cache_state(target, asked=10, from_device=10).state == state


@pytest.fixture
def file(tmp_path):
    """A written file of 4 MiB: its descriptor."""
    fd = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, os.urandom(2**22), 0)
    yield fd
    os.close(fd)


def is_dropped(file, tmp_path):
    """Where the file lies in memory its pages are all there is."""
    drop(file)
    return 0.0 if not target_of(tmp_path).memory_backed else 1.0


def test_resident_share(file, tmp_path):
    """All of a file that was written is resident, none after it was dropped, then what is read."""
    assert resident_share(file) == 1.0
    assert resident_share(file) >= is_dropped(file, tmp_path) == resident_share(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(file, 2**20, 0)
    assert resident_share(file, 2**20) == 1.0 and 0.25 <= resident_share(file) <= 1.0


def test_mapped_pages_stay(file, tmp_path):
    """Pages that someone has mapped are not dropped, and that is seen."""
    with mmap.mmap(file, 0) as mapped:
        assert mapped[::4096]
        drop(file)
        assert resident_share(file) > 0.5


def test_resident_share_of_nothing(tmp_path):
    """An empty file has no share."""
    with (tmp_path / "empty").open("w+") as empty:
        assert resident_share(empty.fileno()) is None


def test_resident_share_of_others(file, monkeypatch):
    """The kernel answers "all" for files that one may not write: that is no answer."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert resident_share(file) is None


def test_counter(file, tmp_path):
    """A cold read is counted for thread and process, a warm one is not."""
    counts = []
    for _ in range(2):
        before = read_bytes("thread-self"), read_bytes()
        if not counts:
            is_dropped(file, tmp_path)
        os.pread(file, 2**22, 0)
        counts.append((read_bytes("thread-self") - before[0], read_bytes() - before[1]))
    counted = cache._BLOCK_BACKED.fullmatch(target_of(tmp_path).fstype)
    assert not counted or min(counts[0]) >= 2**22
    assert counts[1][0] == 0


def test_no_counter(monkeypatch):
    """Where the kernel keeps no count there is none."""
    monkeypatch.setattr(cache, "read", lambda path: "rchar: 5")
    assert read_bytes() is None


@pytest.mark.parametrize("refused_at", ["open", "read", "nowhere"])
def test_bypass(file, tmp_path, monkeypatch, refused_at):
    """O_DIRECT is used where it is taken; where not, the file is dropped before each pass."""
    true_open, true_preadv = os.open, os.preadv

    def opened(path, flags, *rest, **more):
        if refused_at == "open" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return true_open(path, flags, *rest, **more)

    def preadv(fd, buffers, offset, flags=0):
        if refused_at == "read" and fd != file:
            raise OSError(errno.EINVAL, "refused")
        return true_preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "preadv", preadv)
    with ExitStack() as stack:
        way = bypass(file, stack)
        assert refused_at != "nowhere" or way.direct or way.dio_align is None
        assert refused_at == "nowhere" or not way.direct
        assert bool(way.notes) is not way.direct
        assert way.prepare(random=True) == is_dropped(file, tmp_path)


def test_overlay(tmp_path):
    """On an overlay cold and warm are told apart as on the file system below it."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    folder = tmp_path / "merged"
    mount = ["mount", "-t", "overlay", "-o", layers, "overlay", folder]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        target = target_of(folder)
        assert not mounted or target.fstype == "overlay"
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR)
        os.pwrite(fd, os.urandom(2**22), 0)
        assert resident_share(fd) == 1.0
        assert is_dropped(fd, tmp_path) == resident_share(fd)
        os.close(fd)
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)
