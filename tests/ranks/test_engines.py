"""ipyparallel's engines as ranks, and the configuration for sites with a batch system."""

import os
import shutil
import signal
import tempfile
import time
import types

import ipyparallel
import pytest
from ipyparallel.cluster import launcher as launchers
from ranks.processes import gone
from traitlets.config.loader import PyFileConfigLoader

from perfkit.errors import UsageError
from perfkit.ranks import RankError, RanksTimeout, engines, site_config
from perfkit.tiers.cluster import probe_together


def work(rank, wrong):
    """Fails, is late, dies or gives the kind of rank, its number and its process id."""
    if rank.number == 1 and wrong == "error":
        raise ValueError("no")
    if rank.number == 1 and wrong == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60 if rank.number == 1 and wrong == "late" else 0)
    rank.barrier()
    return type(rank).__name__, rank.number, os.getpid()


def as_in_a_notebook(fn):
    """The function as engines get it that cannot import its file: by value."""
    return types.FunctionType(fn.__code__, globals() | {"__name__": "__main__"})


def hold_to_promise(ranks, barrier):
    """Results in order after an error and a time-out, each of which names the rank."""
    body = as_in_a_notebook(work)
    with pytest.raises(RankError, match=r"rank 1 of 2 .*ValueError: no"):
        ranks.run(body, "error", timeout_s=60)
    with pytest.raises(RanksTimeout, match=r"within 1 s from .*rank 1 \(on"):
        ranks.run(body, "late", timeout_s=1)
    got = ranks.run(body, "", timeout_s=60)
    assert [(name, number) for name, number, _ in got] == [(barrier, 0), (barrier, 1)]
    return [pid for *_, pid in got]


def test_engines_of_our_own(tmp_path):
    """MPI engines are started, meet at MPI's barrier, and are gone afterwards."""
    with engines(n=2, launcher="mpi") as ranks:
        pids = hold_to_promise(ranks, "MpiRank")
        read = probe_together(tmp_path, ranks, nbytes=2**20)[3]
    assert read.job.tasks == 2 and read.job.reorder_tasks == 1
    assert gone(pids) and not list(tmp_path.iterdir())


def test_engines_of_another():
    """The engines of a Client or a Cluster are used, and left running."""
    folder = tempfile.mkdtemp()
    cluster = ipyparallel.Cluster(n=2, profile_dir=folder, load_profile=False)
    with cluster as client:
        with engines(cluster) as ranks:
            assert ranks.run(lambda rank: rank.size, timeout_s=60) == [2, 2]
        assert len(client[:].apply_sync(os.getpid)) == 2
        with engines(client) as ranks:
            pids = hold_to_promise(ranks, "TcpRank")
            with pytest.raises(RankError, match=r"rank 1 of 2 .* without a result"):
                ranks.run(as_in_a_notebook(work), "death", timeout_s=60)
        assert client[0].apply_sync(os.getpid) == pids[0]
    shutil.rmtree(folder)
    assert gone(pids)


@pytest.mark.parametrize("wrong", [{}, {"where": object(), "n": 2}, {"n": 2, "launcher": "slurm"}])
def test_engines_from_where(wrong):
    """Either engines that are there or a number to start; batch systems are configured."""
    with pytest.raises(UsageError):
        engines(**wrong)


@pytest.mark.parametrize(
    ("scheduler", "queue", "launcher"),
    [
        ("slurm", "#SBATCH --partition=long", launchers.SlurmEngineSetLauncher),
        ("pbs", "#PBS -q long", launchers.PBSEngineSetLauncher),
        ("sge", "#$ -q long", launchers.SGEEngineSetLauncher),
    ],
)
def test_site_config(scheduler, queue, launcher, tmp_path):
    """A batch script is made of it: one job, one MPI world, as many engines as asked."""
    text = site_config(scheduler, queue="long", setup=["module load openmpi"], options=["-A me"])
    (tmp_path / "ipcluster_config.py").write_text(text)
    config = PyFileConfigLoader("ipcluster_config.py", path=str(tmp_path)).load_config()
    made = launcher(
        config=config, work_dir=str(tmp_path), profile_dir=str(tmp_path), cluster_id="x"
    )
    made.write_batch_script(n=8)
    script = (tmp_path / made.batch_file).read_text().splitlines()
    assert script[0] == "#!/bin/sh" and queue in script and "module load openmpi" in script
    assert script[-1].startswith("exec mpiexec -n 8 ") and script[-1].endswith(" --mpi")
    assert "ipyparallel.engine" in script[-1] and any(line.endswith("-A me") for line in script)
    assert config.Cluster.controller_ip == "*" and config.Cluster.engine_launcher_class == scheduler


def test_unknown_scheduler():
    """Other schedulers are refused with the names of those that are known."""
    with pytest.raises(UsageError, match="slurm, pbs, sge"):
        site_config("lsf")
