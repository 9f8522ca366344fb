"""Which folders may be probed, and how a file is read."""

import ctypes
import os
import subprocess
import threading
from contextlib import contextmanager

import pytest

from perfkit.errors import UsageError
from perfkit.tiers import files
from perfkit.tiers.files import Reading, Reads, check_path, read_file


@pytest.fixture
def mounted(tmp_path):
    """Mount a tmpfs with these options: the folder, or None where that is not allowed."""

    @contextmanager
    def mount(options):
        folder = tmp_path / "mount"
        folder.mkdir()
        asked = ["mount", "-t", "tmpfs", "-o", options, "perfkit-test", folder]
        done = subprocess.run(asked, capture_output=True, check=False).returncode == 0
        try:
            yield folder if done else None
        finally:
            if done:
                subprocess.run(["umount", folder], check=True)

    return mount


def refusal(path):
    """The one line that a path is refused with."""
    with pytest.raises(UsageError) as found:
        check_path(path)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_good_folder(tmp_path):
    """A folder with space is taken, also by a relative name and one with a link."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert check_path(tmp_path).path == check_path(str(tmp_path / "link")).path == str(tmp_path)
    assert check_path(os.path.relpath(tmp_path)).path == str(tmp_path)


def test_missing(tmp_path):
    """What does not exist, leads nowhere or has no name is said to."""
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert "does not exist; name a folder that does" in refusal(tmp_path / "nothing")
    assert f"is a symbolic link to {tmp_path}/gone" in refusal(tmp_path / "dangling")
    assert "name a folder" in refusal("") and "circle" in refusal(tmp_path / "circle")


@pytest.mark.parametrize("path", ["a\0b", "~nobody-of-this-name/x", "x" * 5000], ids=ascii)
def test_strange_names(path):
    """Names that no system takes are refused as well."""
    assert "name a folder" in refusal(path)


def test_file(tmp_path):
    """A file is refused with the folder that it lies in, through a link as well."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert refusal(tmp_path / "file") == f"{tmp_path}/file is a file; name its folder: {tmp_path}"
    assert f"link (which is {tmp_path}/file) is a file" in refusal(tmp_path / "link")


def test_read_only(mounted, monkeypatch, tmp_path):
    """A read-only file system is told."""
    with mounted("ro,size=20m") as folder:
        if folder is None:
            monkeypatch.setattr(os, "ST_RDONLY", -1)
        assert "is on a read-only file system" in refusal(folder or tmp_path)


def test_not_writable(tmp_path, monkeypatch):
    """A folder of others is told; root may write anywhere, so the answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "is not writable for you" in refusal(tmp_path)


def test_three_megabytes_free(mounted, monkeypatch, tmp_path):
    """Less than 16 MiB free is refused before anything is written."""
    with mounted("size=3m") as folder:
        if folder is None:
            monkeypatch.setattr(files, "LEAST_FREE", 2**60)
        said = refusal(folder or tmp_path)
        assert "free, a probe needs" in said
        assert folder is None or "has 3.00 MiB free, a probe needs 16.0 MiB" in said


@pytest.fixture
def written(tmp_path):
    """A file of 64 pages that is open for reading."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(64 * 4096))
    with path.open("rb") as file:
        yield file.fileno()


@pytest.mark.parametrize("readers", [1, 2, 8])
@pytest.mark.parametrize("random", [False, True])
def test_each_block_once(written, monkeypatch, readers, random):
    """However many readers there are, each block is read once."""
    seen, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, b, at, flags: seen.append(at) or preadv(fd, b, at))
    reads = read_file(written, Reading(bs=4096, readers=readers, random=random, once=True))
    assert sorted(seen) == list(range(0, 64 * 4096, 4096))
    assert (reads.count, reads.nbytes, len(reads.latencies_s())) == (64, 64 * 4096, 64)
    assert readers > 1 or (seen == sorted(seen)) is not random


def test_ends_by_the_clock(written):
    """Without `once` the file is read again and again until the time is over."""
    reads = read_file(written, Reading(bs=4096, readers=2, seconds=0.05))
    assert reads.count > 64 and reads.seconds >= 0.05


def test_length(written):
    """With a length only the blocks below it are read."""
    assert read_file(written, Reading(bs=4096, once=True, length=3 * 4096)).count == 3


def test_error_joins_the_readers(written, monkeypatch):
    """What one reader meets ends all of them and is raised."""
    monkeypatch.setattr(os, "preadv", lambda *asked: 1)
    before = threading.active_count()
    with pytest.raises(OSError, match="came back short"):
        read_file(written, Reading(bs=4096, readers=4, seconds=60))
    assert threading.active_count() == before


def test_interrupt_joins_the_readers(written, monkeypatch):
    """A KeyboardInterrupt while the caller waits ends the readers before it goes on."""
    join, calls = threading.Thread.join, []

    def interrupted(thread):
        calls.append(thread)
        if len(calls) == 1:
            raise KeyboardInterrupt
        join(thread)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_file(written, Reading(bs=4096, readers=3, seconds=60))
    assert not any(thread.is_alive() for thread in calls)


def seen(*stamps_ns):
    """Reads of 1000 bytes with these stamps."""
    return Reads(
        bs=1000, stamps_ns=stamps_ns, device_bytes=None, cpu_s=0.0, user_s=0.0, wait_s=None
    )


def test_rates():
    """Rates are bytes over time in stretches of as many reads each."""
    reads = seen([*range(0, 4001, 1000), *range(6000, 12001, 2000)])
    assert reads.rates_Bps() == pytest.approx([1e9, 0.5e9])
    assert reads.mean_Bps == pytest.approx(8000 / 12e-6)
    assert reads.latencies_s() == pytest.approx([1e-6] * 4 + [2e-6] * 4)


def test_rates_of_nothing():
    """No read has no rate, and the mean is zero."""
    assert seen([5], [7]).rates_Bps() == [] and seen([5]).mean_Bps == 0


@pytest.mark.parametrize(("nbytes", "align"), [(4096, 4096), (2**19, 4096), (2**20, 2**21)])
def test_buffers_are_aligned(nbytes, align):
    """Buffers of a MiB and more begin on a huge page, all others on a page."""
    with files._buffer(nbytes) as buffer:
        place = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        assert place % align == 0 and len(buffer) == nbytes
