"""The file system behind a path: its type, its source, and whether it lies in memory or afar."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perfkit.records.tiers import Target
from perfkit.system.files import read

__all__ = ["backing", "dio_alignment", "is_network", "target_of"]

_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"}
_MEMORY_DEVICE = re.compile(r"/dev/(zram|ram|pmem)\d")
_NETWORK = re.compile(
    r"(nfs\d?|lustre|beegfs.*|fhgfs|gpfs|cifs|smb\d?|smbfs|ceph|9p|virtiofs|afs|coda|orangefs|pvfs2"
    r"|panfs|wekafs|glusterfs|ocfs2|gfs2|daos|moosefs|quobyte"
    r"|fuse\.(sshfs|ceph.*|glusterfs|s3fs|rclone|gcsfuse|goofys|juicefs|mfs.*|quobyte.*|dfuse|nfs.*"
    r"|cvmfs.*|lizardfs|seaweedfs|mount-s3|blobfuse2?))"
)
_STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000
_LUSTRE_PLAIN = {0x0BD10BD0, 0x0BD30BD0}
_LUSTRE_COMPOSITE = 0x0BD60BD0


def is_network(fstype: str) -> bool:
    """Does a file system of this type lie on other machines?"""
    return bool(_NETWORK.fullmatch(fstype))


class _Mount(NamedTuple):
    st_dev: str
    point: str
    options: str
    fstype: str
    source: str


def target_of(path: str | Path, root: str | Path = "/") -> Target:
    """The mount that holds `path`, symbolic links resolved; `Target.path` is the real path.

    Sizes in bytes, as far as statvfs tells: it knows no quota on many file systems. `root` stands
    for `/`, so that recorded trees can be judged. Raises OSError where the path cannot be read.
    """
    root = Path(root)
    real = (root / str(path).lstrip("/") if root != Path("/") else Path(path)).resolve(strict=True)
    name = "/" / real.relative_to(root.resolve())
    mount = _mount_of(root, name, _st_dev(real) if root == Path("/") else "")
    space = os.statvfs(real)
    return Target(
        path=str(name),
        fstype=mount.fstype,
        source=mount.source,
        # A recorded tree does not lie on the device that it tells of.
        st_dev=_st_dev(real) if root == Path("/") else mount.st_dev,
        mount_options=mount.options,
        memory_backed=_in_memory(root, mount),
        network=is_network(mount.fstype),
        stripe=_stripe(real) if mount.fstype == "lustre" else None,
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
    )


def _st_dev(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 6 or len(kind) < 2:
            continue
        words = [*place[5].split(","), *(kind[2].split(",") if len(kind) > 2 else ())]
        options = ",".join(dict.fromkeys(words))
        yield _Mount(place[2], _plain(place[4]), options, kind[0], _plain(kind[1]))


def _plain(text: str) -> str:
    """The kernel writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _mount_of(root: Path, name: Path, st_dev: str) -> _Mount:
    """The deepest mount above `name`, the later one where two lie on one point.

    Mounts with the path's own device number come first: btrfs and some overlays show others.
    """
    above = [mount for mount in _mounts(root) if name.is_relative_to(mount.point)]
    same = [mount for mount in above if mount.st_dev == st_dev]
    nothing = _Mount(st_dev, "", "", "unknown", "")
    found = nothing
    for mount in same or above:
        if len(mount.point) >= len(found.point):
            found = mount
    return found


def _in_memory(root: Path, mount: _Mount) -> bool:
    """True for file systems in RAM, and for those whose disk or upper folder lies in one."""
    if mount.fstype in _IN_MEMORY or _MEMORY_DEVICE.match(mount.source):
        return True
    below = backing(mount.source, root) or _upper_folder(mount)
    if not below:
        return False
    with suppress(OSError, RuntimeError):
        return target_of(below, root).memory_backed
    return False


def _upper_folder(mount: _Mount) -> str:
    """Where an overlay writes. A container may show the host's path, which leads nowhere here."""
    found = re.search(r"(?:^|,)upperdir=([^,]+)", mount.options)
    return _plain(found[1]) if mount.fstype == "overlay" and found else ""


def backing(source: str, root: str | Path = "/") -> str:
    """The file behind a loop device; empty for any other source."""
    found = re.fullmatch(r"/dev/(loop\d+)", source)
    return read(Path(root) / f"sys/block/{found[1]}/loop/backing_file") if found else ""


def _stripe(real: Path) -> str | None:
    """How Lustre spreads new files of a folder; None where the folder does not say."""
    try:
        layout = os.getxattr(real, "lustre.lov")
        magic = struct.unpack_from("<I", layout)[0]
        if magic == _LUSTRE_COMPOSITE:
            return "composite layout"
        size, count = struct.unpack_from("<IH", layout, 24)
    except (OSError, struct.error):
        return None
    if magic not in _LUSTRE_PLAIN:
        return None
    targets = "all targets" if count == 0xFFFF else f"{count} targets"
    return f"{size // 1024} KiB over {targets}"


def dio_alignment(fd: int) -> int | None:
    """Bytes to which offsets of direct reads of this file must be aligned.

    0: the file system says that it has no direct reads; None: it says nothing (Linux < 6.1, tmpfs).
    """
    answer = ctypes.create_string_buffer(256)
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:
        return None
    if statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0:
        return None
    mask: int = struct.unpack_from("=I", answer.raw)[0]
    align: int = struct.unpack_from("=I", answer.raw, 0x9C)[0]
    return align if mask & _STATX_DIOALIGN else None
