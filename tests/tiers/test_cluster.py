"""The same probe on several ranks at once: figures, proofs, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.ranks import RankError, local, mpi
from perfkit.ranks.mpi import find_mpiexec, mpi_environment
from perfkit.records.tiers import Target, TierProbe
from perfkit.tiers import cluster
from perfkit.tiers.cluster import probe_together

MIB = 2**20


@pytest.mark.parametrize(("kind", "n"), [(local, 4), (mpi, 2)])
def test_alone_against_together(kind, n, tmp_path):
    """Four records: write and read alone, write and read of all ranks with the neighbour's file."""
    with kind(n) as ranks:
        probes = probe_together(tmp_path, ranks, nbytes=8 * MIB)
    assert [probe.probe for probe in probes] == ["storage.write", "storage.read"] * 2
    assert [probe.job.tasks for probe in probes] == [1, 1, n, n]
    for probe in probes[2:]:
        assert probe.job.access == "file-per-process" and probe.job.clients_per_node == n
        assert probe.io_bytes == n * 8 * MIB and 0 <= probe.start_skew_s < 0.5
        assert probe.bw_first_done_Bps > 0 and probe.bw_last_done_Bps > 0
        assert "the bandwidth of one alone" in probe.notes[0]
    assert probes[3].job.reorder_tasks == 1
    assert not list(tmp_path.iterdir())
    assert TierProbe.from_json(probes[3].to_json()) == probes[3]


def test_one_rank_has_no_neighbour(tmp_path):
    """A single rank reads its own file, and says that there was no other."""
    with local(1) as ranks:
        probes = probe_together(tmp_path, ranks, nbytes=MIB)
    assert probes[3].job.reorder_tasks == 0 and probes[3].start_skew_s is None


def test_memory_is_shown_as_memory():
    """A file system in memory is named so, on every figure."""
    with local(2) as ranks:
        probes = probe_together("/dev/shm", ranks, nbytes=MIB)
    assert {probe.tier for probe in probes} == {probe.cache.state for probe in probes} == {"memory"}


def moves(begin_s, *ends_s, bs=MIB):
    """One rank's transfers, with the times in seconds."""
    stamps = [int(1e9 * time_s) for time_s in (begin_s, *ends_s)]
    return cluster._Moves(bs, stamps, True, bs * len(ends_s), 0.0)


def phases(host, read):
    return cluster._Phases(host, (moves(0, 1), moves(0, 1)), moves(0, 1), read, True)


TARGET = Target(path="/x", fstype="ext4", source="/dev/x")


def test_first_and_last_done():
    """Bytes until the first rank is done and until the last is, and who that was."""
    seen = [phases("a", moves(10, 11, 12)), phases("a", moves(10.25, 12, 14))]
    read = cluster._records(seen, TARGET, 2 * MIB, 2.5)[3]
    assert read.bw_first_done_Bps == pytest.approx(3 * MIB / 2)
    assert read.bw_last_done_Bps == pytest.approx(4 * MIB / 4)
    assert read.start_skew_s == pytest.approx(0.25)
    assert any(note.startswith("straggler: rank 1 on a, 1.88 x") for note in read.notes)
    assert read.quality.status == "suspect" and "ms apart" in read.quality.reasons[0]


def test_clocks_of_several_hosts():
    """Each host has a clock of its own: only starts on one host are compared."""
    seen = [phases(host, moves(at, at + 1)) for host, at in (("a", 5), ("b", 900), ("b", 900.001))]
    read = cluster._records(seen, TARGET, MIB, 2.5)[3]
    assert read.start_skew_s == pytest.approx(0.001) and read.job.clients_per_node == 2
    assert read.bw_last_done_Bps == pytest.approx(3 * MIB / 1.001)


def test_files_never_fill_a_disk():
    """All files together take at most 5 % of what is free, in whole pages."""
    assert cluster._file_size(64 * MIB, 2**40, 4) == 64 * MIB
    assert 4 * cluster._file_size(64 * MIB, 1000 * MIB, 4) <= 50 * MIB
    assert cluster._file_size(64 * MIB, 0, 4) == 8 * 4096


@pytest.mark.parametrize("path", ["/no/such/folder", __file__])
def test_wrong_folder(path):
    """A folder that cannot be probed is one line, before any process starts."""
    with local(2) as ranks, pytest.raises(UsageError, match="name"):
        probe_together(path, ranks)


def when_it_writes(folder, then):
    """Call `then` with the process of rank 1 as soon as that writes its file."""

    def watch():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for file in folder.glob(".perfkit-*/rank-1"):
                if (pid := owner_of(file)) is not None:
                    then(pid)
                    return
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def owner_of(file):
    """The process that has a file open; None if there is none."""
    for link in Path("/proc").glob("[1-9]*/fd/*"):
        try:
            if str(link.readlink()) == str(file):
                return int(link.parts[2])
        except OSError:
            continue
    return None


@pytest.mark.parametrize("kind", [local, mpi])
def test_killed_rank_leaves_no_file(kind, tmp_path):
    """A rank that dies in the middle of its file is named, and all files are gone."""
    thread = when_it_writes(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
    with kind(2) as ranks, pytest.raises(RankError, match="rank 1 of 2"):
        probe_together(tmp_path, ranks, nbytes=256 * MIB, quick=False)
    thread.join()
    assert not list(tmp_path.iterdir())


def test_interrupt_leaves_no_file(tmp_path):
    """KeyboardInterrupt in the middle leaves neither files nor the folder."""
    thread = when_it_writes(tmp_path, lambda pid: os.kill(os.getpid(), signal.SIGINT))
    with local(2) as ranks, pytest.raises(KeyboardInterrupt):
        probe_together(tmp_path, ranks, nbytes=256 * MIB, quick=False)
    thread.join()
    assert not list(tmp_path.iterdir())


def program(folder, nbytes):
    """A program under mpiexec that probes together with its own ranks."""
    code = f"""
        from perfkit.tiers.cluster import main_rank
        probes = main_rank({str(folder)!r}, nbytes={nbytes}, quick={nbytes < 64 * MIB})
        print(probes and [probe.job.tasks for probe in probes])
    """
    command = [find_mpiexec(), "-n", "2", sys.executable, "-c", textwrap.dedent(code)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=mpi_environment(2), stdout=pipe, stderr=pipe, text=True)


def test_under_mpiexec(tmp_path):
    """Under plain mpiexec rank 0 gets the records and the others None."""
    said, errors = program(tmp_path, MIB).communicate(timeout=60)
    assert sorted(said.splitlines()) == ["None", "[1, 1, 2, 2]"], errors
    assert not list(tmp_path.iterdir())


def test_killed_rank_under_mpiexec_leaves_no_file(tmp_path):
    """Mpiexec ends the program when a rank dies; the other ranks remove the files."""
    thread = when_it_writes(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
    process = program(tmp_path, 256 * MIB)
    process.communicate(timeout=60)
    thread.join()
    assert process.returncode != 0 and not list(tmp_path.iterdir())


def test_death_of_this_process_leaves_no_file(tmp_path):
    """When the process that probes is killed, its ranks remove their files and the folder."""
    code = f"""
        from perfkit.ranks import local
        from perfkit.tiers.cluster import probe_together
        with local(2) as ranks: probe_together({str(tmp_path)!r}, ranks, quick=False)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    when_it_writes(tmp_path, lambda pid: process.kill()).join()
    process.wait()
    until = time.monotonic() + 6
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL and not list(tmp_path.iterdir())
