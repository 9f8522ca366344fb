"""The file system behind a path, read from made-up trees and from this machine."""

import errno
import os
import struct
from pathlib import Path

import pytest

from perfkit.system.mounts import backing, dio_alignment, target_of

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard"


@pytest.fixture
def tree(tmp_path):
    """Make a root whose table of mounts has these lines, and these folders below it."""

    def make(*lines, folders=("/data/x",), files=()):
        for name, text in {"/proc/self/mountinfo": "\n".join(lines), **dict(files)}.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for folder in folders:
            (tmp_path / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return tmp_path

    return make


def test_deepest_mount_wins(tree):
    """The mount with the longest point above the path counts, whatever the order."""
    root = tree("40 27 8:1 / /data rw - xfs /dev/sda1 rw,noatime", ROOT)
    target = target_of("/data/x", root)
    assert (target.fstype, target.source, target.st_dev) == ("xfs", "/dev/sda1", "8:1")
    assert target.mount_options == "rw,noatime" and target.path == "/data/x"


def test_name_is_not_a_prefix(tree):
    """/database does not lie on /data."""
    root = tree(ROOT, "40 27 8:1 / /data rw - xfs /dev/sda1 rw", folders=("/database",))
    assert target_of("/database", root).fstype == "ext4"


def test_later_mount_hides_the_earlier(tree):
    """Of two mounts on one point the later one is seen."""
    lines = ("28 27 0:24 / /data rw - devpts a rw", "29 27 0:26 / /data rw - tmpfs b rw")
    assert target_of("/data/x", tree(ROOT, *lines)).source == "b"


def test_optional_fields_and_blanks(tree):
    """Fields between options and dash may be many or none; blanks in names are octal."""
    line = r"40 27 8:1 /sub /my\040disk rw shared:1 master:2 - ext4 /dev/my\134disk rw"
    target = target_of("/my disk", tree(ROOT, line, folders=("/my disk",)))
    assert target.source == r"/dev/my\disk"


def test_symbolic_link(tree):
    """A symbolic link is followed to the mount that it leads to."""
    root = tree(ROOT, "40 27 8:1 / /data rw - xfs /dev/sda1 rw")
    (root / "link").symlink_to(root / "data/x")
    assert target_of("/link", root).fstype == "xfs"


@pytest.mark.parametrize(
    "kind", ["tmpfs tmpfs", "ramfs none", "devtmpfs udev", "ext4 /dev/zram0", "ext2 /dev/ram3"]
)
def test_memory_backed(tree, kind):
    """File systems in memory, and on disks that are memory, are told."""
    assert target_of("/data/x", tree(ROOT, f"40 27 0:9 / /data rw - {kind} rw")).memory_backed


@pytest.mark.parametrize(
    "fstype",
    [
        *("nfs", "nfs4", "lustre", "beegfs", "beegfs_nodev", "gpfs", "cifs", "smb3", "ceph", "9p"),
        *("virtiofs", "fuse.sshfs", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.rclone"),
    ],
)
def test_network(tree, fstype):
    """File systems of other machines are told."""
    target = target_of("/data/x", tree(ROOT, f"40 27 0:9 / /data rw - {fstype} server:/x rw"))
    assert target.network and not target.memory_backed


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "nfsd"])
def test_local(tree, fstype):
    """File systems of this machine are neither."""
    target = target_of("/data/x", tree(ROOT, f"40 27 0:9 / /data rw - {fstype} x rw"))
    assert not target.network and not target.memory_backed


@pytest.mark.parametrize("upper", ["/dev/shm/up", "/host/only"])
def test_overlay(tree, upper):
    """An overlay that writes to memory is memory; a host's path that is not seen here is not."""
    shm = "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw"
    layers = f"rw,lowerdir=/l,upperdir={upper},workdir=/w"
    line = f"40 27 0:9 / /data rw - overlay overlay {layers}"
    root = tree(ROOT, shm, line, folders=("/data/x", "/dev/shm/up"))
    assert target_of("/data/x", root).memory_backed == upper.startswith("/dev")


def test_loop_device_on_memory(tree):
    """A disk that is a file in memory is memory."""
    lines = ("25 24 0:23 / /dev/shm rw - tmpfs t rw", "40 27 7:0 / /data rw - ext4 /dev/loop0 rw")
    files = {"/sys/block/loop0/loop/backing_file": "/dev/shm/image", "/dev/shm/image": ""}
    root = tree(ROOT, *lines, files=files)
    assert target_of("/data/x", root).memory_backed
    assert backing("/dev/loop0", root) == "/dev/shm/image" and backing("/dev/vda", root) == ""


def layout(magic, size, count):
    """What Lustre keeps of a folder: magic, pattern, object, size, count, offset."""
    return struct.pack("<IIQQIHH", magic, 1, 0, 0, size, count, 0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (layout(0x0BD10BD0, 2**20, 4), "1024 KiB over 4 targets"),
        (layout(0x0BD30BD0, 2**20, 0xFFFF), "1024 KiB over all targets"),
        (layout(0x0BD60BD0, 0, 0), "composite layout"),
        (layout(1, 2, 3), None),
        (b"\xd0", None),
        (OSError(errno.ENODATA, "no data"), None),
    ],
    ids=["plain", "all", "composite", "unknown magic", "short", "unset"],
)
def test_lustre_stripe(tree, monkeypatch, answer, said):
    """The stripe of a Lustre folder is told where the folder has one."""

    def getxattr(path, name):
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "getxattr", getxattr)
    root = tree(ROOT, "40 27 0:9 / /data rw - lustre a@tcp:/fs rw")
    assert target_of("/data/x", root).stripe == said


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3 - x", "1 2 3 4 5 6 - ", "- - -"], ids=repr)
def test_strange_table(tree, text):
    """A table that makes no sense leaves the type unknown, and is no error."""
    target = target_of("/data/x", tree(text))
    assert target.fstype == "unknown" and target.free_bytes > 0


def test_missing_path(tree):
    """What does not exist has no file system."""
    with pytest.raises(FileNotFoundError):
        target_of("/data/nothing", tree(ROOT))


def test_this_machine(tmp_path):
    """Here the type is known, the free bytes are at most the total, and /proc is not a disk."""
    target = target_of(tmp_path)
    device = tmp_path.stat().st_dev
    assert target.st_dev == f"{os.major(device)}:{os.minor(device)}" and target.fstype != "unknown"
    assert 0 < target.free_bytes <= target.total_bytes
    assert target_of("/proc").fstype == "proc"


def test_shared_memory():
    """/dev/shm is memory."""
    assert target_of("/dev/shm").memory_backed or not Path("/dev/shm").is_mount()


def test_alignment_of_direct_reads(tmp_path):
    """The alignment is a power of two, nothing, or not told."""
    with (tmp_path / "file").open("w") as file:
        align = dio_alignment(file.fileno())
    assert align is None or align & (align - 1) == 0
    assert dio_alignment(-1) is None
