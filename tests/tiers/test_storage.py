"""Storage probes: what is proven of each figure, and that nothing stays whatever happens."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perfkit.errors import NotSupportedHere, UsageError
from perfkit.records.tiers import TierProbe
from perfkit.system.mounts import target_of
from perfkit.tiers import files, storage
from perfkit.tiers.scratch import scratch_file
from perfkit.tiers.storage import probe_reads, write_file

STEPS = ["write", "read", "read again", "read, 2 readers", "random read", "random read, 32 readers"]


def free(folder):
    """Bytes free for anyone."""
    return os.statvfs(folder).f_bfree * os.statvfs(folder).f_frsize


@pytest.fixture
def tmpfs(tmp_path):
    """A tmpfs of its own, so that its free bytes tell; where mounting is refused, a folder."""
    folder = tmp_path / "mount"
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", "size=64m", "perfkit-test", folder]
    mounted = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", folder], check=True)


def quick(folder, **more):
    """The probes of a folder in a third of a second."""
    return probe_reads(folder, budget_s=0.3, readers=(1, 2), **more)


def test_what_it_gives(tmp_path):
    """Write, sequential, random, buffered: each with its job, samples and state."""
    steps = []
    probes = quick(tmp_path, tick=steps.append)
    assert steps[: len(STEPS) - 3] == STEPS[:3] and list(tmp_path.iterdir()) == []
    write, read, *_ = probes
    assert (write.probe, write.job.end_fsync, write.bandwidth_Bps.n > 0) == (
        "storage.write",
        True,
        1,
    )
    assert (read.job.rw, read.job.bs, read.job.numjobs) == ("read", 2**20, 1)
    assert read.cache.second_pass_ratio > 0 and read.target.path == str(tmp_path)
    jobs = {(probe.job.rw, probe.job.numjobs) for probe in probes}
    assert {("write", 1), ("read", 1), ("randread", 1), ("randread", 32)} <= jobs
    assert all(TierProbe.from_json(probe.to_json()) == probe for probe in probes)


def test_curve_answers_the_question(tmp_path):
    """The first read holds bytes per second over the number of readers, and the sentence."""
    read = probe_reads(tmp_path, budget_s=1.5, readers=(2, 4))[1]
    assert [count for count, _ in read.curve] == [1, 2, 4] and read.curve_unit == "readers, B/s"
    assert any("reader" in note for note in read.notes)


def test_percentiles_are_in_order(tmp_path):
    """Latencies rise with the percentile, and lie between the extremes."""
    for probe in quick(tmp_path)[1:]:
        values = [value for _, value in probe.percentiles_s]
        assert values == sorted(values)
        assert all(probe.latency_s.min <= value <= probe.latency_s.max for value in values)


def test_every_figure_has_its_proof(tmp_path):
    """A figure whose bytes did not come from the device is refused or goes by another name."""
    for probe in quick(tmp_path)[1:]:
        share, state = probe.cache.device_share, probe.cache.state
        honest = share is not None and share >= 0.95 and state == "uncached"
        assert honest or probe.tier or probe.quality.status in ("suspect", "refused")


def test_warm_read_is_page_cache(tmp_path):
    """The warm read goes under the page cache's name, never the disk's."""
    last = quick(tmp_path)[-1]
    assert last.tier in ("page cache", "memory") and last.cache.state in ("page cache", "memory")
    assert last.job.direct is False or last.tier == "memory"


def test_memory_is_not_storage(tmpfs):
    """On a file system in memory every figure says so, though O_DIRECT is taken there."""
    in_memory = target_of(tmpfs).memory_backed
    for probe in quick(tmpfs):
        assert (probe.tier == "memory" and probe.cache.state == "memory") or not in_memory
        assert any("memory, not storage" in note for note in probe.notes) or not in_memory


def test_direct_refused(tmp_path, monkeypatch):
    """Without O_DIRECT the reads are buffered, said to be, and proven by the same counts."""
    true_open = os.open

    def opened(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return true_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    for probe in quick(tmp_path)[1:]:
        assert probe.job.direct is False
        assert any("O_DIRECT is refused here" in note for note in probe.notes)
        assert probe.tier or probe.cache.device_share is None or probe.cache.device_share >= 0.95


def test_ignored_direct_is_refused(tmp_path, monkeypatch):
    """Where O_DIRECT is taken and no byte comes from the device, the figure is no disk's."""
    monkeypatch.setattr(files, "read_bytes", lambda of: 0)
    monkeypatch.setattr(storage, "check_path", lambda path: known)
    known = files.Target(path=str(tmp_path), fstype="ext4", source="/dev/vda", free_bytes=2**30)
    read = quick(tmp_path)[1]
    assert read.quality.status == "refused" and read.tier == "page cache"
    assert "0 % of these bytes came from the device: this is the page cache" in str(read.quality)


def test_link_is_said(tmp_path):
    """A probe through a symbolic link says where it leads."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert f"{tmp_path}/link leads to {tmp_path}" in quick(tmp_path / "link")[0].notes


def test_wrong_readers(tmp_path):
    """Readers below one are refused before anything is written."""
    with pytest.raises(UsageError, match="whole numbers from 1"):
        probe_reads(tmp_path, readers=(0, 2))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_exception_at_any_step(tmpfs, step, error):
    """Whatever is raised, at whatever step: no file, no space, no thread, no descriptor stays."""
    before = free(tmpfs), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    def tick(name):
        if name == step:
            raise error

    with pytest.raises(error):
        probe_reads(tmpfs, budget_s=2.0, readers=(1, 2), tick=tick)
    after = free(tmpfs), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    assert list(tmpfs.iterdir()) == [] and after[1:] == before[1:]
    assert after[0] == before[0] or not tmpfs.is_mount()


PROBE = """
import sys, threading, time
from perfkit.tiers.storage import probe_reads
try:
    probe_reads(sys.argv[1], budget_s=4.0, tick=lambda step: print(step, flush=True))
except KeyboardInterrupt:
    # A thread that has been told to end may need a moment on a busy machine.
    end_s = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < end_s:
        time.sleep(0.01)
    print("threads", threading.active_count(), flush=True)
"""


@pytest.mark.parametrize("step", ["write", "read", "random read, 32 readers"])
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_killed(tmpfs, step, with_signal):
    """A probe that is killed or interrupted in the middle leaves no file and frees the space."""
    before = free(tmpfs)
    asked = [sys.executable, "-c", PROBE, tmpfs]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as process:
        # Long steps: the signal comes while threads read.
        for line in process.stdout:
            if line.strip() == step:
                process.send_signal(with_signal)
                break
        rest = process.stdout.read()
    assert list(tmpfs.iterdir()) == []
    assert free(tmpfs) == before or not tmpfs.is_mount()
    assert with_signal == signal.SIGKILL or rest.endswith("threads 1\n")


def test_full_disk(tmpfs, monkeypatch):
    """A disk that fills up in the middle gives one line, and its space back."""
    if not tmpfs.is_mount():
        monkeypatch.setattr(os, "pwrite", lambda *asked: (_ for _ in ()).throw(OSError(28, "full")))
    monkeypatch.setattr(storage, "file_cap", lambda target: 2**30)
    before = free(tmpfs)
    with pytest.raises(NotSupportedHere, match=r"the file system is full.*\(ENOSPC\)"):
        probe_reads(tmpfs, budget_s=30.0)
    assert list(tmpfs.iterdir()) == [] and (free(tmpfs) == before or not tmpfs.is_mount())


@pytest.mark.parametrize("name", ["EDQUOT", "EROFS", "EIO"])
def test_refused_while_written(tmp_path, monkeypatch, name):
    """A quota, a file system that turns read-only, a broken disk: one line each."""

    def fsync(fd):
        raise OSError(getattr(errno, name), "refused")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NotSupportedHere, match=name):
        quick(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_slow_disk_ends_by_the_clock(tmp_path, monkeypatch):
    """Where fsync is slow, less is written: the clock decides, and a first stretch is kept."""
    now = [0.0]
    monkeypatch.setattr(storage.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda fd: now.__setitem__(0, now[0] + 10))
    with scratch_file(tmp_path) as fd:
        assert write_file(fd, 2**28, 1.0) == [(2**22, 10.0)]


def test_small_file(tmp_path):
    """A file below one block is written and counted as it is."""
    with scratch_file(tmp_path) as fd:
        [(nbytes, took_s)] = write_file(fd, 8192, 1.0)
        assert nbytes == os.fstat(fd).st_size == 8192 and took_s > 0
