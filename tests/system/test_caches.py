"""Cache sizes from recorded trees of /sys."""

import os
import resource

import pytest

from perfkit.system.caches import (
    Cache,
    allowed_cpus,
    last_levels_bytes,
    one_cpu_per_core,
    read_caches,
    spare_memory_bytes,
)


@pytest.fixture
def tree(tmp_path):
    """A machine of 8 CPUs: two threads a core, one 32 MiB level for every four CPUs."""
    for cpu in range(8):
        pair, four = cpu // 2 * 2, cpu // 4 * 4
        rows = [
            (1, "Data", "32K", f"{pair}-{pair + 1}"),
            (1, "Instruction", "32K", f"{pair}-{pair + 1}"),
            (2, "Unified", "1024K", f"{pair},{pair + 1}"),
            (3, "Unified", "32M", f"{four}-{four + 3}"),
        ]
        for index, row in enumerate(rows):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "size", "shared_cpu_list"), row, strict=True):
                (folder / name).write_text(f"{text}\n")
    return tmp_path


def test_caches_nearest_first(tree):
    """Data and unified caches count, with their sizes in bytes and who shares them."""
    assert read_caches(5, tree) == (
        Cache(1, 2**15, frozenset({4, 5})),
        Cache(2, 2**20, frozenset({4, 5})),
        Cache(3, 2**25, frozenset({4, 5, 6, 7})),
    )


def test_last_levels_are_added(tree):
    """Threads on both halves have both last levels; those on one half have one."""
    assert last_levels_bytes([0, 1, 3], tree) == 2**25
    assert last_levels_bytes(range(8), tree) == 2 * 2**25


def test_one_cpu_per_core(tree):
    """A core's second thread goes, and the order stays."""
    assert one_cpu_per_core([3, 2, 1, 0, 7], tree) == [3, 1, 7]


def test_kernel_that_does_not_tell(tmp_path):
    """Without the files there are no caches, no sizes, and every CPU counts."""
    assert read_caches(0, tmp_path) == ()
    assert last_levels_bytes([0], tmp_path) is None
    assert one_cpu_per_core([0, 1], tmp_path) == [0, 1]


@pytest.mark.parametrize("text", ["", "K", "many", "0K"])
def test_strange_sizes(tree, text):
    """A size that is no number is no cache."""
    (tree / "sys/devices/system/cpu/cpu0/cache/index2/size").write_text(text)
    assert [cache.level for cache in read_caches(0, tree)] == [1, 3]


def test_allowed_cpus():
    """All CPUs of the mask, once each."""
    assert sorted(allowed_cpus()) == sorted(os.sched_getaffinity(0))


def test_spare_memory(tmp_path):
    """The least of the group's limit and what the system has available counts."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000 kB\nMemAvailable:    3000 kB\n")
    assert spare_memory_bytes(tmp_path) == 3000 * 1024
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    assert spare_memory_bytes(tmp_path) == 1_000_000


def test_spare_memory_under_a_limit_of_addresses(tmp_path, monkeypatch):
    """A limit of address space counts too, and no limit at all is None."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert spare_memory_bytes(tmp_path) is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5_000_000, 0))
    assert spare_memory_bytes(tmp_path) == 5_000_000
