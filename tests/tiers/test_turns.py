"""One probe at a time on a file system: who waits, who is told, and what frees a lock."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from perfkit.errors import NotSupportedHere
from perfkit.records.tiers import Target
from perfkit.tiers import turns
from perfkit.tiers.turns import turn

TARGET = Target(path="/x", st_dev="77:7")
HOLD = """
import sys, time
from perfkit.records.tiers import Target
from perfkit.tiers.turns import turn
with turn(Target(path="/x", st_dev="77:7")) as waited_s:
    begin = time.monotonic()
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
    print(begin, time.monotonic(), waited_s, flush=True)
"""


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    """A folder of locks of its own."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv("PERFKIT_LOCKS", str(folder))
    return folder


@pytest.fixture
def holder():
    """Start a process that holds the lock for so many seconds."""
    started = []

    def start(seconds, **environment):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def is_free():
    """Can the lock be had at once?"""
    try:
        with turn(TARGET, most_s=0.0):
            return True
    except NotSupportedHere:
        return False


def test_alone():
    """Without another probe there is no waiting and nobody is told of any."""
    told = []
    with turn(TARGET, told.append) as waited_s:
        assert waited_s < 1.0 and told == []
        assert not is_free()
    assert is_free()


def test_second_process_waits_and_is_told(holder):
    """The second one is told, again and again, how long it waits, and then has its turn."""
    told = []
    assert holder(1.0).stdout.readline() == "held\n"
    with turn(TARGET, told.append) as waited_s:
        assert waited_s >= told[-1] >= 0
    assert len(told) >= 2 and told == sorted(told) and waited_s > 0.2


def test_killed_holder_frees_it(holder):
    """The lock of a process that was killed is free at once."""
    process = holder(60)
    process.stdout.readline()
    assert not is_free()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_free()


def test_patience_has_an_end(holder):
    """Who waits too long is told so in one line."""
    holder(60).stdout.readline()
    with pytest.raises(NotSupportedHere, match="try again later") as found:
        turn(TARGET, most_s=0.3).__enter__()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_frees_it(error):
    """An error or an interrupt inside frees the lock and comes through."""
    with pytest.raises(error), turn(TARGET):
        raise error
    assert is_free()


def test_interrupt_while_waiting(holder):
    """An interrupt while waiting leaves no descriptor open."""
    holder(60).stdout.readline()
    before = len(list(Path("/proc/self/fd").iterdir()))

    def told(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), turn(TARGET, told):
        pytest.fail("the lock is held by another process")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_file_systems_do_not_wait_for_each_other(locks):
    """Each file system has a lock of its own, in the folder that PERFKIT_LOCKS names."""
    with turn(TARGET), turn(Target(path="/y", st_dev="77:8"), most_s=0.0):
        assert len(list(locks.iterdir())) == 2


def test_threads_take_turns():
    """Two threads of one process exclude each other as well."""
    inside, most = [], []

    def work():
        with turn(TARGET):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.1)
            inside.pop()

    crew = [threading.Thread(target=work) for _ in range(3)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert most == [1, 1, 1]


def test_four_processes_take_turns(holder):
    """Of four processes at once no two hold the lock at the same time."""
    crew = [holder(0.2) for _ in range(4)]
    lines = [process.communicate(timeout=30)[0].splitlines()[1] for process in crew]
    spans = sorted(tuple(map(float, line.split()))[:2] for line in lines)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert sum(float(line.split()[2]) > 0.1 for line in lines) >= 3


@pytest.mark.parametrize("folder", ["/no/such/folder", "/proc", "/dev/null"])
def test_nowhere_to_put_a_lock(monkeypatch, folder):
    """Without a folder for locks the probe goes on, without waiting."""
    monkeypatch.setenv("PERFKIT_LOCKS", folder)
    with turn(TARGET) as waited_s:
        assert waited_s == 0.0


def test_others_may_lock_too(locks):
    """The lock file is open to all who share the machine, whatever the umask."""
    old = os.umask(0o077)
    try:
        with turn(TARGET):
            (file,) = locks.iterdir()
            assert file.stat().st_mode & 0o666 == 0o666
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(old)


def test_file_of_another_user(locks, monkeypatch):
    """In a sticky folder the kernel refuses O_CREAT on another's file: it is opened without."""
    with turn(TARGET):
        (file,) = locks.iterdir()
    opened = os.open

    def as_protected_regular(path, flags, *rest, **more):
        if str(path) == str(file) and flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", as_protected_regular)
    with turn(TARGET):
        fd = opened(file, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


def test_link_in_place_of_a_lock(locks, tmp_path):
    """A link that somebody has put there does not make a file elsewhere."""
    with turn(TARGET):
        (file,) = locks.iterdir()
    file.unlink()
    file.symlink_to(tmp_path / "victim")
    with turn(TARGET):
        assert not (tmp_path / "victim").exists()


def test_own_temporary_folders_share_a_lock(holder, monkeypatch, tmp_path):
    """Without PERFKIT_LOCKS jobs with a TMPDIR each, as batch systems give, take turns as well."""
    monkeypatch.delenv("PERFKIT_LOCKS")
    (tmp_path / "job").mkdir()
    assert turns.FOLDER == "PERFKIT_LOCKS"
    holder(60, TMPDIR=str(tmp_path / "job")).stdout.readline()
    assert not is_free()
