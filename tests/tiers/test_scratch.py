"""Scratch files and folders: gone afterwards, small enough, random, and swept when left behind."""

import errno
import os
import subprocess
import sys
import zlib
from itertools import islice
from pathlib import Path

import pytest

from perfkit.errors import NotSupportedHere
from perfkit.records.machine import Limits
from perfkit.records.tiers import Target
from perfkit.tiers import scratch
from perfkit.tiers.scratch import (
    file_cap,
    pages,
    plain_errors,
    scratch_file,
    scratch_folder,
    small_files_cap,
    sweep,
)

GIB = 2**30


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch):
    """With files that never have a name, and on file systems that know none."""
    if request.param == "named":
        true_open = os.open

        def refusing(path, flags, *rest, **more):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "no nameless files")
            return true_open(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", refusing)
    return request.param


def test_file_has_no_name(tmp_path, way):
    """A scratch file is never seen in its folder, and can be written, read and opened again."""
    with scratch_file(tmp_path) as fd:
        assert list(tmp_path.iterdir()) == []
        os.pwrite(fd, b"perfkit", 0)
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        assert os.read(again, 99) == b"perfkit"
        os.close(again)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_file_is_closed_on_error(tmp_path, way):
    """An exception closes the file and leaves nothing."""
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    with pytest.raises(KeyboardInterrupt), scratch_file(tmp_path):
        raise KeyboardInterrupt
    assert len(list(open_files.iterdir())) == before and list(tmp_path.iterdir()) == []


def test_folder_is_removed(tmp_path):
    """A scratch folder goes with all that is in it, on errors too."""
    with pytest.raises(RuntimeError), scratch_folder(tmp_path) as folder:
        assert folder.name.startswith(".perfkit-") and f"-{os.getpid()}-" in folder.name
        (folder / "below").mkdir()
        (folder / "below/file").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_interrupted_removal_is_finished(tmp_path, monkeypatch):
    """A KeyboardInterrupt while the folder is removed does not leave the rest of it."""
    true_rmtree, calls = scratch.shutil.rmtree, []

    def rmtree(path, **more):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        true_rmtree(path, **more)

    monkeypatch.setattr(scratch.shutil, "rmtree", rmtree)
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path) as folder:
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def left_behind(folder, body="os.kill(os.getpid(), 9)"):
    """Another process makes a scratch folder in `folder` and runs `body` in it: that process."""
    code = (
        "import os, sys\nfrom perfkit.tiers.scratch import scratch_folder\n"
        f"with scratch_folder(sys.argv[1]) as own:\n    (own / 'x').touch()\n    {body}"
    )
    return subprocess.Popen([sys.executable, "-c", code, folder], stdin=subprocess.PIPE)


def test_sweep_takes_what_the_dead_left(tmp_path):
    """A folder of a process that was killed is removed."""
    with left_behind(tmp_path) as process:
        assert process.wait() == -9
    [folder] = tmp_path.iterdir()
    assert sweep(tmp_path) == [folder] and not folder.exists()


def test_sweep_leaves_the_living(tmp_path):
    """A folder of a process that lives stays, this one's too."""
    with scratch_folder(tmp_path) as own:
        other = left_behind(tmp_path, "print('ready', file=sys.stderr); sys.stdin.read()")
        while len(list(tmp_path.iterdir())) < 2:
            assert other.poll() is None
        assert sweep(tmp_path) == [] and own.exists()
        other.communicate()


def test_sweep_leaves_what_is_not_its_own(tmp_path):
    """Folders of other hosts, other names, links and files stay."""
    here, dead = scratch._here(), 2**22 + 1
    names = [f".perfkit-other-{dead}-x", f"perfkit-{here}-{dead}-x", f".perfkit-{here}-x-y"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / f".perfkit-{here}-{dead}-file").touch()
    (tmp_path / f".perfkit-{here}-{dead}-link").symlink_to(tmp_path / names[0])
    assert sweep(tmp_path) == [] and len(list(tmp_path.iterdir())) == 5
    assert sweep(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("free", "memory", "cap"),
    [
        (1000 * GIB, 64 * GIB, 256 * 2**20),
        (2**30, 64 * GIB, 2**30 // 20 // 4096 * 4096),
        (1000 * GIB, 2**30, 2**27),
        (0, 2**30, 4096),
    ],
)
def test_file_cap(monkeypatch, free, memory, cap):
    """The least of 256 MiB, 5 % of the free space and 12.5 % of the memory, in whole pages."""
    monkeypatch.setattr(scratch, "read_limits", lambda: Limits(memory_bytes=memory))
    monkeypatch.setattr(scratch, "_total_memory", lambda: 10**15)
    assert file_cap(Target(free_bytes=free)) == cap


@pytest.mark.parametrize(
    ("free", "total", "cap"), [(10**6, 10**7, 1000), (500, 10**7, 5), (0, 0, 1000)]
)
def test_small_files_cap(monkeypatch, free, total, cap):
    """At most 1000, or 1 % of the free inodes; btrfs counts none."""
    space = os.statvfs_result((4096, 4096, 1, 1, 1, total, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    assert small_files_cap("/") == cap


def test_pages_are_random_and_differ():
    """No two pages are alike, and none can be compressed."""
    seen = b"".join(bytes(block) for block in islice(pages(2**16), 4))
    each = {seen[at : at + 4096] for at in range(0, len(seen), 4096)}
    assert len(each) == len(seen) // 4096
    assert all(len(zlib.compress(page)) >= 4096 for page in each)


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "ESTALE"])
def test_plain_errors(name):
    """What a file system refuses becomes one line with the folder, the reason and what to do."""
    with pytest.raises(NotSupportedHere) as found, plain_errors("/scratch"):
        raise OSError(getattr(errno, name), "as the kernel says it")
    said = str(found.value)
    assert said.startswith("/scratch: ") and name in said and "; " in said and "\n" not in said


def test_other_errors_pass():
    """An error that is no answer of a file system stays what it is."""
    with pytest.raises(OSError, match="bad"), plain_errors("/scratch"):
        raise OSError(errno.EBADF, "bad descriptor")
