"""Containers, virtual machines, batch jobs and hubs, each by its own signs."""

import pytest

from perfkit.records.doctor import Surroundings
from perfkit.system.surroundings import read_surroundings


@pytest.mark.parametrize(
    ("files", "environ", "name"),
    [
        ({".dockerenv": ""}, {}, "Docker"),
        ({"run/.containerenv": ""}, {}, "Podman"),
        ({".singularity.d/x": ""}, {}, "Apptainer or Singularity"),
        ({}, {"APPTAINER_CONTAINER": "a.sif"}, "Apptainer"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes pod"),
        ({"proc/1/environ": "A=1\0container=lxc\0"}, {}, "lxc"),
        ({"proc/self/cgroup": "0::/kubepods.slice/pod7\n"}, {}, "Kubernetes pod"),
        ({"proc/self/cgroup": "3:cpu:/docker/1f\n"}, {}, "Docker"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_containers(tree, files, environ, name):
    """Each kind is known by its own sign; a pod that runs Docker's image is a pod."""
    assert read_surroundings(tree(files), environ).container == name


def test_hypervisors(tree):
    """The processor's flag says that there is one, the board its name."""
    flag = {"proc/cpuinfo": "flags\t: fpu hypervisor lm\n"}
    assert read_surroundings(tree(flag)).hypervisor == "yes"
    named = tree({**flag, "sys/class/dmi/id/sys_vendor": "QEMU\n"})
    assert read_surroundings(named).hypervisor == "QEMU"
    assert read_surroundings(tree({"proc/cpuinfo": "flags : nohypervisor"})).hypervisor == ""


def test_wsl(tree):
    """Windows' Linux is known by its kernel."""
    files = {"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}
    assert read_surroundings(tree(files)).hypervisor == "WSL"


@pytest.mark.parametrize(
    ("environ", "batch", "granted"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4"}, "Slurm job 7", 4),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "16"}, "Slurm job 7", 16),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "16(x2)"}, "Slurm job 7", None),
        ({"PBS_JOBID": "9.host", "NCPUS": "8"}, "PBS job 9.host", 8),
        ({"JOB_ID": "5", "SGE_TASK_ID": "undefined", "NSLOTS": "20"}, "SGE job 5", 20),
        ({"LSB_JOBID": "3", "LSB_DJOB_NUMPROC": "2"}, "LSF job 3", 2),
        ({"JOB_ID": "5"}, "", None),
        ({"NSLOTS": "20"}, "", None),
    ],
)
def test_batch(tmp_path, environ, batch, granted):
    """The scheduler, the job, and what it granted; a lone JOB_ID is nobody's."""
    seen = read_surroundings(tmp_path, environ)
    assert (seen.batch, seen.cpus_granted) == (batch, granted)


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/x/"}, "JupyterHub"),
        ({"JUPYTERHUB_API_URL": "u", "BINDER_LAUNCH_HOST": "h"}, "Binder"),
        ({"COLAB_RELEASE_TAG": "r"}, "Google Colab"),
        ({}, ""),
    ],
)
def test_hubs(tmp_path, environ, hub):
    """Binder is a JupyterHub, and is called Binder."""
    assert read_surroundings(tmp_path, environ).hub == hub


def test_names_of_nobody(tmp_path):
    """No user's name and no address gets into the record."""
    environ = {"JUPYTERHUB_USER": "ada", "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}
    assert "ada" not in repr(read_surroundings(tmp_path, environ))


def test_another_tree_has_no_environment(tmp_path, monkeypatch):
    """Variables of this process say nothing of a recorded machine."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert read_surroundings(tmp_path) == Surroundings()
