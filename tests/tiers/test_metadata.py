"""Probes of small files: what they count, how they are limited, and that nothing stays."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from perfkit.errors import NotSupportedHere
from perfkit.system.mounts import target_of
from perfkit.tiers import metadata
from perfkit.tiers.metadata import probe_metadata
from perfkit.tiers.scratch import small_files_cap

WORDS = ["create", "stat", "read", "remove"]


def test_what_it_gives(tmp_path):
    """One record for each of mdtest's words, in order, with operations per second."""
    steps = []
    probes = probe_metadata(tmp_path, tick=steps.append)
    assert steps == [probe.job.rw for probe in probes] == WORDS
    assert all(probe.probe == "storage.metadata" and probe.iops.n > 0 for probe in probes)
    assert all(probe.job.file_bytes == 4096 and probe.bandwidth_Bps is None for probe in probes)
    assert probes[0].job.items <= 1000 and list(tmp_path.iterdir()) == []


def test_state_is_said(tmp_path):
    """What was just written is warm, and its data came from memory of one kind or other."""
    _, stat, read, _ = probe_metadata(tmp_path)
    assert "metadata warm" in stat.notes and "metadata warm" in read.notes
    assert read.cache.state in ("page cache", "memory", "unknown")


def test_memory_is_not_storage():
    """On /dev/shm every figure goes by the name of memory."""
    in_memory = target_of("/dev/shm").memory_backed
    for probe in probe_metadata("/dev/shm", budget_s=0.05):
        assert (probe.tier == "memory" and "not storage" in str(probe.notes)) or not in_memory


def test_ends_by_the_clock(tmp_path, monkeypatch):
    """A slow file system gets few files, which are said to be few; all of them are removed."""
    now = [0.0]
    monkeypatch.setattr(
        metadata.time, "perf_counter", lambda: now.__setitem__(0, now[0] + 1) or now[0]
    )
    create, *rest = probe_metadata(tmp_path, budget_s=8.0)
    assert create.job.items == 5 and create.quality.reasons == ("few operations: 5",)
    assert all(probe.job.items <= 5 for probe in rest) and list(tmp_path.iterdir()) == []


def test_count_is_capped(tmp_path, monkeypatch):
    """No more files than the free inodes allow, down to none."""
    for cap in (0, 1, 30):
        monkeypatch.setattr(metadata, "small_files_cap", lambda folder, cap=cap: cap)
        assert [probe.job.items for probe in probe_metadata(tmp_path)] == [cap] * 4
    assert small_files_cap(tmp_path) <= 1000


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT"])
def test_full_disk(tmp_path, monkeypatch, name):
    """A disk or quota that is used up in the middle gives one line; no file stays."""
    true_write, calls = os.write, []

    def write(fd, data):
        calls.append(fd)
        if len(calls) > 20:
            raise OSError(getattr(errno, name), "refused")
        return true_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(NotSupportedHere, match=name):
        probe_metadata(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", WORDS)
def test_interrupt_at_any_step(tmp_path, step):
    """A KeyboardInterrupt at any step leaves no file."""

    def tick(name):
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_metadata(tmp_path, tick=tick)
    assert list(tmp_path.iterdir()) == []


def test_what_the_killed_left_is_swept(tmp_path):
    """A kill leaves the folder; the next probe on the same host removes it."""
    code = (
        "import sys\nfrom perfkit.tiers.metadata import probe_metadata\n"
        "def tick(step):\n"
        "    if step == 'stat':\n        print(flush=True); sys.stdin.read()\n"
        "probe_metadata(sys.argv[1], tick=tick)"
    )
    asked = [sys.executable, "-c", code, tmp_path]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 1
    probe_metadata(tmp_path, budget_s=0.05)
    assert list(tmp_path.iterdir()) == []
