"""The processors of recorded machines, and of this one."""

import os
from pathlib import Path

import pytest

from perfkit.system.processor import read_processor

CPUINFO = """processor\t: 0
model name\t: Xeon 8481C
flags\t\t: fpu sse4_2 avx fma avx2 avx512f amx_bf16 hypervisor

processor\t: 1
model name\t: Xeon 8481C
"""


def server(sockets=2, cores=2, threads=2):
    """The files of a machine: CPUs of one core are numbered apart, as Linux does."""
    cpus = sockets * cores * threads
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/online": f"0-{cpus - 1}\n",
    }
    for cpu in range(cpus):
        core = cpu % (sockets * cores)
        place = f"sys/devices/system/cpu/cpu{cpu}"
        siblings = ",".join(str(core + i * sockets * cores) for i in range(threads))
        socket = core // cores
        files[f"{place}/topology/physical_package_id"] = f"{socket}\n"
        files[f"{place}/topology/core_id"] = f"{core % cores}\n"
        files[f"{place}/topology/thread_siblings_list"] = f"{siblings}\n"
        files[f"sys/devices/system/node/node{socket}/cpulist"] = "x"
        for index, (level, size, sharers) in enumerate(
            [(1, "48K", siblings), (3, "8192K", ",".join(map(str, range(socket, cpus, 2))))]
        ):
            cache = f"{place}/cache/index{index}"
            files |= {
                f"{cache}/level": f"{level}",
                f"{cache}/size": size,
                f"{cache}/type": "Data",
                f"{cache}/shared_cpu_list": sharers,
            }
    return files


def test_a_server(tree):
    """Sockets, cores, SMT, nodes and caches are counted over all CPUs."""
    seen = read_processor(tree(server()))
    assert (seen.cpus, seen.cores, seen.sockets, seen.threads_per_core) == (8, 4, 2, 2)
    assert (seen.numa_nodes, seen.memory_bytes) == (2, 2**24)
    assert seen.model == "Xeon 8481C" and seen.reasons == ()
    assert seen.isa == ("sse4_2", "avx", "fma", "avx2", "avx512f", "amx_bf16")
    l1, l3 = seen.caches
    assert (l1.level, l1.size_bytes, l1.shared_by_cpus, l1.instances) == (1, 48 * 1024, 2, 4)
    assert (l3.level, l3.size_bytes, l3.shared_by_cpus, l3.instances) == (3, 2**23, 4, 2)


def test_without_smt(tree):
    """One thread a core."""
    seen = read_processor(tree(server(1, 4, 1)))
    assert (seen.cpus, seen.cores, seen.sockets, seen.threads_per_core) == (4, 4, 1, 1)


def test_arm(tree):
    """ARM names its vectors under another key and may have no model name."""
    files = {"proc/cpuinfo": "processor : 0\nFeatures : fp asimd sve bf16\n"}
    assert read_processor(tree(files)).isa == ("asimd", "sve", "bf16")


def test_cpuinfo_alone(tree):
    """Without /sys the CPUs are counted in cpuinfo, and the rest is not invented."""
    seen = read_processor(tree({"proc/cpuinfo": CPUINFO}))
    assert (seen.cpus, seen.cores, seen.sockets) == (2, None, None)
    assert "cannot be read" in " ".join(seen.reasons)


@pytest.mark.parametrize("text", ["", "\n", "no colon", b"\xff\xfe:\xff", "flags"], ids=repr)
def test_strange_text(tree, text):
    """Nonsense gives None and a reason, and no error."""
    files = {"proc/cpuinfo": text, "proc/meminfo": text, "sys/devices/system/cpu/online": text}
    seen = read_processor(tree(files))
    assert (seen.cpus, seen.memory_bytes, seen.isa) == (None, None, ())
    assert seen.reasons


def test_nothing_of_this_machine(tmp_path):
    """Another tree is not filled up from this machine."""
    seen = read_processor(tmp_path)
    assert (seen.model, seen.cpus, seen.memory_bytes, seen.caches) == ("", None, None, ())


def test_this_machine():
    """The machine at hand has as many CPUs as Python says, and each is in some cache."""
    seen = read_processor(Path("/"))
    assert seen.cpus == os.cpu_count()
    assert seen.memory_bytes > 2**28
