"""What every kind of ranks promises, over real processes: local ones and MPI's."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from ranks.processes import gone

from perfkit.errors import UsageError
from perfkit.ranks import Caps, RankError, RanksTimeout, local, mpi

both = pytest.mark.parametrize("kind", [local, mpi])


def leave_pid(folder):
    """Leave this process's id in a folder, as the name of an empty file."""
    Path(folder, f"pid-{os.getpid()}").touch()


@pytest.mark.parametrize(("kind", "n"), [(local, 1), (local, 4), (mpi, 3)])
def test_results_come_in_order(kind, n, pids):
    """One result a rank, in the order of the ranks, from as many processes; none is left."""

    def fn(rank, folder, factor):
        leave_pid(folder)
        time.sleep(0.05 * (rank.size - rank.number))
        return rank.number, rank.size, rank.host, factor * rank.number

    with kind(n) as ranks:
        results = ranks.run(fn, pids.folder, 10, timeout_s=60)
    assert [(number, size) for number, size, _, _ in results] == [(i, n) for i in range(n)]
    assert [value for *_, value in results] == [10 * i for i in range(n)]
    assert len(pids(n)) == n and gone(pids())


@both
def test_error_is_carried_home(kind, pids):
    """The first line says which rank and what; its traceback follows; the others are ended."""

    def fn(rank, folder):
        leave_pid(folder)
        rank.barrier()
        if rank.number == 1:
            raise ValueError("no such thing")
        rank.barrier()

    with kind(2) as ranks, pytest.raises(RankError) as caught:
        ranks.run(fn, pids.folder, timeout_s=60)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("rank 1 of 2 on ") and first.endswith(": ValueError: no such thing")
    assert caught.value.rank == 1 and "in fn" in "\n".join(rest)
    assert gone(pids(2))


@both
def test_killed_rank_is_named(kind, pids):
    """A rank that dies of SIGKILL is an error that names it and the signal; the others end."""

    def fn(rank, folder):
        leave_pid(folder)
        rank.barrier()
        if rank.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rank.barrier()

    with kind(2) as ranks, pytest.raises(RankError, match=r"rank 1 .*(SIGKILL|signal 9)") as caught:
        ranks.run(fn, pids.folder, timeout_s=60)
    assert caught.value.rank == 1
    assert gone(pids(2))


@pytest.mark.parametrize(("kind", "seconds"), [(local, 2), (mpi, 3)])
def test_timeout_ends_all(kind, seconds, pids):
    """A time-out names who is late, and runs the `finally` of every rank."""

    def fn(rank, folder):
        leave_pid(folder)
        try:
            if rank.number == 1:
                time.sleep(60)
            rank.barrier()
        finally:
            Path(folder, f"finally-{rank.number}").touch()

    with kind(2) as ranks, pytest.raises(RanksTimeout, match=r"within . s from rank 0 .*, rank 1 "):
        ranks.run(fn, pids.folder, timeout_s=seconds)
    assert gone(pids(2))
    assert len(list(pids.folder.glob("finally-*"))) == 2


@both
def test_interrupt_ends_all(kind, pids):
    """KeyboardInterrupt reaches the caller after all ranks have ended."""

    def fn(rank, folder):
        leave_pid(folder)
        time.sleep(60)

    def interrupt():
        pids(2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with kind(2) as ranks, pytest.raises(KeyboardInterrupt):
        ranks.run(fn, pids.folder, timeout_s=60)
    thread.join()
    assert gone(pids(2))


def test_stubborn_rank_is_killed(pids):
    """A rank that will not be interrupted is killed after its grace, with what it started."""

    def fn(rank, folder):
        import subprocess
        import sys

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(folder, f"pid-{child.pid}").touch()
        leave_pid(folder)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        while True:
            time.sleep(60)

    with local(1) as ranks, pytest.raises(RanksTimeout):
        ranks.run(fn, pids.folder, timeout_s=2)
    assert gone(pids(2))


@both
def test_barrier_holds(kind):
    """No rank leaves a barrier before the last has come, 50 times, and they leave together."""

    def fn(rank):
        times = []
        for turn in range(50):
            time.sleep(0.002 * (turn % rank.size == rank.number))
            before = time.perf_counter()
            rank.barrier()
            times.append((before, time.perf_counter()))
        return times

    with kind(2) as ranks:
        turns = list(zip(*ranks.run(fn, timeout_s=60), strict=True))
    assert all(max(b for b, _ in turn) <= min(a for _, a in turn) for turn in turns)
    skews = sorted(max(a for _, a in turn) - min(a for _, a in turn) for turn in turns)
    assert skews[25] < 0.1


def test_output_is_kept():
    """What ranks print is not lost, nor mixed into what this process prints."""
    with local(2) as ranks:
        ranks.run(lambda rank: print(f"hello from {rank.number}"))
    assert sorted(ranks.output.splitlines()) == ["hello from 0", "hello from 1"]


def test_memory_cap():
    """A rank beyond its memory cap sees MemoryError, which comes home."""
    with local(2, caps=Caps(memory_bytes=2**30)) as ranks:
        assert ranks.run(lambda rank: len(bytearray(2**20))) == [2**20] * 2
        with pytest.raises(RankError, match=r"rank \d .*MemoryError"):
            ranks.run(lambda rank: len(bytearray(2**31)))


def test_processor_cap():
    """A rank beyond its processor time dies of SIGXCPU, and the error says so."""

    def fn(rank):
        while True:
            pass

    with local(1, caps=Caps(cpu_s=1)) as ranks, pytest.raises(RankError, match="SIGXCPU"):
        ranks.run(fn, timeout_s=30)


def test_result_that_cannot_travel():
    """A result that cannot be pickled is that rank's error, not a hang."""
    with local(2) as ranks, pytest.raises(RankError, match=r"rank \d of 2 .*pickle"):
        ranks.run(lambda rank: threading.Lock(), timeout_s=30)


@pytest.mark.parametrize("wrong", [lambda: local(0), lambda: mpi(0)])
def test_no_ranks_is_an_error(wrong):
    """At least one rank is needed."""
    with pytest.raises(UsageError, match="at least one rank"):
        wrong()
