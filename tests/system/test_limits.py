"""The limits of a process, read from made-up trees of /proc and /sys."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from perfkit.records.machine import Limits
from perfkit.system.limits import group_memory, read_limits, read_throttling

V1_UNLIMITED = str(2**63 - 4096)


def status(cpus):
    return f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t1\n"


def v2(cpu="", memory="", group="job"):
    """The files of one group under version 2."""
    place = f"sys/fs/cgroup/{group}".rstrip("/")
    files = {f"{place}/cpu.max": cpu, f"{place}/memory.max": memory}
    return {name: text + "\n" for name, text in files.items() if text}


def v1(quota="-1", period="100000", memory=V1_UNLIMITED, group="job"):
    """The files of one group under version 1."""
    top = "sys/fs/cgroup"
    return {
        f"{top}/cpu,cpuacct/{group}/cpu.cfs_quota_us": quota + "\n",
        f"{top}/cpu,cpuacct/{group}/cpu.cfs_period_us": period + "\n",
        f"{top}/memory/{group}/memory.limit_in_bytes": memory + "\n",
    }


V1_GROUPS = "4:memory:/{0}\n3:cpu,cpuacct:/{0}\n2:cpuset:/{0}\n1:name=systemd:/user.slice\n"


def test_version_2(tree):
    """Version 2: quota over period, and the memory limit in bytes."""
    root = tree({"proc/self/cgroup": "0::/job\n", **v2("150000 100000", "2147483648")})
    limits = read_limits(root)
    assert (limits.quota_cpus, limits.cpus, limits.memory_bytes) == (1.5, 1.5, 2**31)
    assert limits.affinity_cpus is None and limits.reason == "CPU quota 1.5"


def test_version_2_at_the_root(tree):
    """In a container the group is often the root of what can be seen."""
    root = tree({"proc/self/cgroup": "0::/\n", **v2("50000 100000", "1000000", group="")})
    assert read_limits(root).quota_cpus == 0.5
    assert read_limits(root).memory_bytes == 1_000_000


def test_version_2_hidden_group(tree):
    """A group whose folder is not mounted leaves those above it."""
    files = v2("300000 100000", "4096", group="")
    root = tree({"proc/self/cgroup": "0::/host/only/path\n", **files})
    assert (read_limits(root).quota_cpus, read_limits(root).memory_bytes) == (3.0, 4096)


def test_version_2_without_limit(tree):
    """The word max is no limit."""
    root = tree({"proc/self/cgroup": "0::/job\n", **v2("max 100000", "max")})
    assert read_limits(root) == Limits(reason="no limit readable")


def test_version_1(tree):
    """Version 1: quota and period in files of their own, memory under its own controller."""
    root = tree({"proc/self/cgroup": V1_GROUPS.format("job"), **v1("250000", memory="1048576")})
    limits = read_limits(root)
    assert (limits.quota_cpus, limits.memory_bytes) == (2.5, 2**20)


@pytest.mark.parametrize("name", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_version_1_mounts(tree, name):
    """The cpu controller is found under each name that systems mount it by."""
    place = f"sys/fs/cgroup/{name}/job"
    files = {f"{place}/cpu.cfs_quota_us": "50000", f"{place}/cpu.cfs_period_us": "100000"}
    root = tree({"proc/self/cgroup": f"3:{name}:/job\n", **files})
    assert read_limits(root).quota_cpus == 0.5


def test_version_1_link(tree):
    """The controllers cpu and cpuacct together may be mounted as cpu alone."""
    place = "sys/fs/cgroup/cpu/job"
    files = {f"{place}/cpu.cfs_quota_us": "50000", f"{place}/cpu.cfs_period_us": "100000"}
    root = tree({"proc/self/cgroup": "3:cpu,cpuacct:/job\n", **files})
    assert read_limits(root).quota_cpus == 0.5


def test_version_1_in_docker(tree):
    """In a container of version 1 the group's name is the host's and its files lie at the top."""
    root = tree({"proc/self/cgroup": V1_GROUPS.format("docker/1f"), **v1("200000", group="")})
    assert read_limits(root).quota_cpus == 2.0


def test_version_1_without_limit(tree):
    """A quota of -1 and a number near 2**63 are no limits."""
    root = tree({"proc/self/cgroup": V1_GROUPS.format("job"), **v1()})
    assert read_limits(root) == Limits(reason="no limit readable")


def test_hybrid(tree):
    """Controllers of version 1 beside a tree of version 2: each limit is found where it is."""
    memory = "sys/fs/cgroup/unified/job/memory.max"
    groups = "3:cpu,cpuacct:/job\n0::/job\n"
    root = tree({"proc/self/cgroup": groups, **v1("100000"), memory: "8192\n"})
    limits = read_limits(root)
    assert (limits.quota_cpus, limits.memory_bytes) == (1.0, 8192)


def test_ancestor_is_stricter(tree):
    """The strictest of a group and those above it counts, for each limit by itself."""
    root = tree(
        {
            "proc/self/cgroup": "0::/slice/job/step\n",
            **v2("400000 100000", "1000", group="slice/job/step"),
            **v2("100000 100000", "9000", group="slice/job"),
            **v2("200000 100000", "max", group="slice"),
        }
    )
    assert (read_limits(root).quota_cpus, read_limits(root).memory_bytes) == (1.0, 1000)


def test_ancestor_is_stricter_in_version_1(tree):
    """The same holds under version 1."""
    files = {**v1("400000", group="slice/job"), **v1("50000", memory="4096", group="slice")}
    root = tree({"proc/self/cgroup": V1_GROUPS.format("slice/job"), **files})
    assert (read_limits(root).quota_cpus, read_limits(root).memory_bytes) == (0.5, 4096)


def test_sibling_does_not_count(tree):
    """A group that does not hold the process limits nothing."""
    files = {**v2("800000 100000"), **v2("10000 100000", "1", group="other")}
    limits = read_limits(tree({"proc/self/cgroup": "0::/job\n", **files}))
    assert (limits.quota_cpus, limits.memory_bytes) == (8.0, None)


@pytest.mark.parametrize(
    ("cpus", "count"), [("0-7", 8), ("3", 1), ("0,2,4", 3), ("0-1,4-5,9", 5), ("0-127", 128)]
)
def test_affinity_list(tree, cpus, count):
    """The affinity mask is counted from its list of ranges."""
    limits = read_limits(tree({"proc/self/status": status(cpus)}))
    assert limits.affinity_cpus == limits.cpus == count
    assert limits.reason == f"affinity mask {count} CPUs"


@pytest.mark.parametrize(("quota", "cpus"), [("150000", 1.5), ("900000", 4)])
def test_the_smaller_counts(tree, quota, cpus):
    """Usable processors are the smaller of quota and mask, and both are told."""
    files = {"proc/self/status": status("0-3"), "proc/self/cgroup": "0::/job\n"}
    limits = read_limits(tree({**files, **v2(f"{quota} 100000")}))
    assert limits.cpus == cpus
    assert "CPU quota" in limits.reason and "affinity mask 4 CPUs" in limits.reason


def test_nothing_to_read(tmp_path):
    """Where nothing can be read every limit is None, and none is invented from this machine."""
    assert read_limits(tmp_path) == Limits(reason="no limit readable")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max",
        "-1",
        "abc def",
        "100000",
        "100000 0",
        "1.5 100000",
        "0 100000",
        b"\xff\xfe 1",
        "²",
    ],
    ids=repr,
)
def test_strange_quota(tree, text):
    """A quota that makes no sense is no quota, and no error."""
    root = tree({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": text})
    assert read_limits(root).quota_cpus is None


@pytest.mark.parametrize(
    "text", ["", "lots", "-5", "1.5", "12 34", b"\xff\xfe", "²", "0x10"], ids=repr
)
def test_strange_memory(tree, text):
    """A memory limit that makes no sense is no limit, and no error."""
    root = tree({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": text})
    assert read_limits(root).memory_bytes is None


@pytest.mark.parametrize("cpus", ["", "abc", "-", "7-3", "0-x"], ids=repr)
def test_strange_mask(tree, cpus):
    """A mask that makes no sense is not known, and no error."""
    assert read_limits(tree({"proc/self/status": status(cpus)})).affinity_cpus is None


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "0:", "::", b"\xff\xff:cpu:/x\n"], ids=repr)
def test_strange_groups(tree, text):
    """A list of groups that makes no sense is no error."""
    root = tree({"proc/self/cgroup": text, "proc/self/status": status("0-1")})
    assert read_limits(root).affinity_cpus == 2


def test_unreadable_files(tree):
    """A folder where a file should be cannot be read, and is passed over."""
    root = tree({"proc/self/cgroup": "0::/job\n", **v2("100000 100000")})
    (root / "sys/fs/cgroup/job/memory.max").mkdir()
    limits = read_limits(root)
    assert (limits.quota_cpus, limits.memory_bytes) == (1.0, None)


def test_group_outside_the_mount(tree):
    """A group above what is mounted, as a namespace may show it, leaves the top of the tree."""
    root = tree({"proc/self/cgroup": "0::/../other\n", **v2("200000 100000", group="")})
    assert read_limits(root).quota_cpus == 2.0


def test_hub_variables_stand_in(tree):
    """JupyterHub's limits count where no control group tells, and only there."""
    said = {"CPU_LIMIT": "1.5", "MEM_LIMIT": "2147483648"}
    bare = tree({"proc/self/status": status("0-7")})
    limits = read_limits(bare, said)
    assert (limits.quota_cpus, limits.cpus, limits.memory_bytes) == (1.5, 1.5, 2**31)
    assert "CPU_LIMIT 1.5" in limits.reason and "MEM_LIMIT" in limits.reason
    told = tree({"proc/self/cgroup": "0::/job\n", **v2("300000 100000", "4096")})
    assert (read_limits(told, said).quota_cpus, read_limits(told, said).memory_bytes) == (3, 4096)


def test_variables_are_not_of_another_tree(tree, monkeypatch):
    """What the environment of this process says holds for this process alone."""
    monkeypatch.setenv("CPU_LIMIT", "1")
    assert read_limits(tree({"proc/self/status": status("0-7")})).quota_cpus is None
    assert read_limits().quota_cpus is not None


@pytest.mark.parametrize("text", ["", "lots", "-1", "0", "nan", "inf", "1e99"])
def test_strange_variables(tree, text):
    """A variable that makes no sense is no limit."""
    limits = read_limits(tree({}), {"CPU_LIMIT": text, "MEM_LIMIT": text})
    assert limits == Limits(reason="no limit readable")


def test_high_memory_limit(tree):
    """memory.high slows down to a crawl before memory.max kills: the lower one counts."""
    root = tree({"proc/self/cgroup": "0::/job\n", **v2(memory="9000")})
    (root / "sys/fs/cgroup/job/memory.high").write_text("5000\n")
    assert read_limits(root).memory_bytes == 5000
    (root / "sys/fs/cgroup/job/memory.high").write_text("max\n")
    assert read_limits(root).memory_bytes == 9000


def test_memory_used(tree):
    """Of the group that is nearest to its limit, without files that can be dropped."""
    place = "sys/fs/cgroup/a"
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{place}/memory.max": "1000",
            f"{place}/memory.current": "900",
            f"{place}/memory.stat": "anon 600\ninactive_file 250\n",
            f"{place}/b/memory.max": "5000",
            f"{place}/b/memory.current": "800",
        }
    )
    assert group_memory(root) == (650, 1000)


@pytest.mark.parametrize("unit", ["throttled_usec 2500000", "throttled_time 2500000000"])
def test_throttling(tree, unit):
    """Version 2 counts microseconds, version 1 nanoseconds; the most stopped group counts."""
    place = "sys/fs/cgroup/a"
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{place}/cpu.stat": f"nr_periods 100\nnr_throttled 40\n{unit}\n",
            f"{place}/b/cpu.stat": "usage_usec 7\nnr_periods 10\nnr_throttled 0\nodd line here\n",
        }
    )
    stops = read_throttling(root)
    assert (stops.periods, stops.throttled) == (100, 40)
    assert stops.stopped_s == pytest.approx(2.5)


def test_no_throttling_is_told(tree):
    """None, not 0, where the kernel does not count."""
    assert read_throttling(tree({"proc/self/cgroup": "0::/a\n"})) is None
    assert group_memory(tree({})) is None


def test_real_control_group():
    """In a group that this machine lets be made, the limit of an ancestor is the one found."""
    groups = [
        top
        for top in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
        if (top / "cgroup.procs").exists() and os.access(top, os.W_OK)
    ]
    code = "import perfkit; print(perfkit.machine().limits.quota_cpus)"
    own = f"perfkit-test-{os.getpid()}"
    with ExitStack() as stack:
        for top in groups:
            try:
                leaf = _made(stack, top / own)
            except OSError:
                continue
            assert _inside(leaf, code) == "0.5"
            return
    # Nobody may make one here: then at least the reading of this process's own must not fail.
    assert read_limits(Path("/")).reason


def _made(stack, parent):
    """A group of half a CPU, in it one without a limit, both gone at the end. OSError if not."""
    parent.mkdir()
    stack.callback(parent.rmdir)
    if (parent / "cpu.cfs_quota_us").exists():
        (parent / "cpu.cfs_quota_us").write_text("50000")
    else:
        (parent / "cpu.max").write_text("50000 100000")
    leaf = parent / "leaf"
    leaf.mkdir()
    stack.callback(leaf.rmdir)
    return leaf


def _inside(group, code):
    """What Python prints when it runs in `group`."""
    join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); {code}"
    ran = subprocess.run([sys.executable, "-c", join], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_this_machine():
    """On the machine at hand there is at least a part of one processor."""
    limits = read_limits(Path("/"))
    assert limits.cpus is None or limits.cpus > 0
    assert limits.affinity_cpus is None or limits.cpus <= limits.affinity_cpus
