"""Lesson 13: thread counts that come back, what a library takes, six trees, both exercises."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import perfkit
from perfkit.lessons import check, machines, quota
from perfkit.records.doctor import Diagnosis, Finding
from perfkit.records.machine import Limits

RIGHT = {
    "pod": 1,
    "hub": 2.5,
    "both versions": 1.5,
    "nested pod": 2,
    "batch job": 6,
    "laptop": 8,
}
TWO = Limits(cpus=2, affinity_cpus=2)


def stub(*_):
    raise NotImplementedError


def counts():
    """Threads of each library of this process."""
    return [(found["filepath"], found["num_threads"]) for found in threadpool_info()]


def masks():
    """The mask of every thread of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {tuple(sorted(os.sched_getaffinity(int(task.name)))) for task in tasks}


def usable(root, *, v1=True, above=True, mask=True, quotas=True):
    """The right answer, or one that leaves something out."""
    found = [quota.TREES[root.name.replace("-", " ")].machine]
    if mask:
        listed = re.search(r"Cpus_allowed_list:(.*)", quota.read(root / "proc/self/status"))[1]
        found.append(quota.count(listed))
    for line in quota.read(root / "proc/self/cgroup").splitlines() * quotas:
        _, controllers, group = line.split(":", 2)
        if controllers and not v1:
            continue
        folder = root / "sys/fs/cgroup" / controllers / group.lstrip("/")
        for each in (folder, *(folder.parents if above else ())):
            given, _, period = quota.read(each / "cpu.max").partition(" ")
            given = given or quota.read(each / "cpu.cfs_quota_us")
            period = period or quota.read(each / "cpu.cfs_period_us")
            if given.isdigit():
                found.append(int(given) / int(period))
    return min(found)


def told(answer, number="13.1"):
    """The message of a wrong answer."""
    judged = check(number, answer)
    assert judged.status == "wrong"
    return judged.message


# -- the experiment ----------------------------------------------------------------------------


def test_counts_come_back():
    """Every library of this process has as many threads after the experiment as before."""
    before = counts()
    quota.experiment((1, 2, 3), budget_s=0.1, limits=TWO)
    assert before and counts() == before


def test_counts_come_back_after_an_error(monkeypatch):
    """The same if it is interrupted."""
    before, during = counts(), []

    def product():
        during.append(counts())
        raise KeyboardInterrupt

    monkeypatch.setattr(quota, "_product", lambda: product)
    with pytest.raises(KeyboardInterrupt):
        quota.experiment((len(os.sched_getaffinity(0)) + 1,), limits=Limits(cpus=99))
    assert during[0] != before == counts()


def test_more_threads_than_cpus():
    """With more threads than this machine has CPUs a product takes at least twice as long."""
    asked = 4 * len(os.sched_getaffinity(0))
    trial = quota.experiment((1, asked), budget_s=0.5, limits=Limits(cpus=asked))
    assert trial[asked] > 2
    assert list(trial) == [1, asked]


@pytest.mark.parametrize(
    ("cpus", "capped"), [(0.2, {2, 4, 16}), (0.5, {4, 16}), (1, {16}), (2.5, {16}), (4, set())]
)
def test_cap(cpus, capped):
    """No more than four threads for each usable CPU, and one always; the rest says why not."""
    trial = quota.experiment(budget_s=0.0, limits=Limits(cpus=cpus))
    assert {run.asked for run in trial.runs if "more than 4 for each" in run.reason} == capped
    assert 1 in trial and 16 not in trial
    for shown in (repr(trial), trial._repr_html_(), repr(trial.why(16))):
        assert "n/a (capped)" in shown
    with pytest.raises(KeyError):
        trial[16]


def test_time_used_up():
    """A machine that needs all the time for the first count is not asked for the others."""
    trial = quota.experiment((1, 2, 4), budget_s=0.0, limits=TWO)
    assert list(trial) == [1]
    assert "capped: its time was used up" in repr(trial)


def test_quota_takes_long_turns():
    """Under a quota a turn is longer than its period: shorter ones would pass between its stops."""
    assert quota._stopped_by(Limits(quota_cpus=1, affinity_cpus=64, cpus=1))
    assert not quota._stopped_by(Limits(affinity_cpus=2, cpus=2))
    assert not quota._stopped_by(Limits(quota_cpus=4, affinity_cpus=2, cpus=2))


def test_stable_output(monkeypatch):
    """Figures that vary are masked on request, counts are not."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    trial = quota.Trial((quota.Run(1, 1, 0.25, 1.0), quota.Run(4, 4, 0.5, 2.0)), "title")
    assert "2" not in repr(trial) and "#" in repr(trial)


# -- what the library takes --------------------------------------------------------------------


def test_starts():
    """The mask counts at the start alone: an export does not pass it, a call at run time does."""
    before = counts(), masks(), dict(os.environ)
    found = quota.starts()
    assert (found.bound, found.told) == (1, quota.ASKED)
    assert found.mask == len(os.sched_getaffinity(0))
    assert found.plain == found.kept
    assert (counts(), masks(), dict(os.environ)) == before
    assert found.pinned[2] > 2


def test_start_without_the_export(monkeypatch):
    """What is exported here does not tell what the library takes on its own."""
    plain = quota.starts().plain
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert quota.starts().plain == plain


def test_no_pinning(monkeypatch):
    """A system that pins nothing says so, and every figure is n/a."""
    monkeypatch.delattr(os, "sched_setaffinity")
    found = quota.starts()
    assert "pins no process" in repr(found) and "n/a" in found._repr_html_()
    assert 2 not in found.pinned and "n/a" in repr(found.pinned.why(2))


# -- the trees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_perfkit_agrees(name, tmp_path):
    """What perfkit reads of each tree is what was worked out by hand."""
    assert perfkit.machine(root=quota.trees(tmp_path)[name]).limits.cpus == RIGHT[name]
    assert quota.TREES[name].cpus == RIGHT[name]


@pytest.mark.parametrize("root", [Path("/"), *quota.trees().values()], ids=str)
def test_lines_are_the_kernels(root):
    """This machine's files and the trees' have lines of the same form."""
    online = (root / "sys/devices/system/cpu/online").read_text()
    status = (root / "proc/self/status").read_text()
    assert re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*\n", online)
    bits = re.search(r"^Cpus_allowed:\t([\da-f]{1,8}(?:,[\da-f]{8})*)$", status, re.M)[1]
    listed = re.search(r"^Cpus_allowed_list:\t([\d,-]+)$", status, re.M)[1]
    assert int(bits.replace(",", ""), 16).bit_count() == quota.count(listed)
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        assert re.fullmatch(r"\d+:[\w,=]*:/.*", line)
    mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    groups = [line for line in mounts if " - cgroup" in line]
    assert groups
    for line in groups:
        assert re.fullmatch(
            r"\d+ \d+ \d+:\d+ /\S* /\S+ r[ow]\S*( \S+)* - cgroup2? \S+ r[ow]\S*", line
        )


def test_mask_in_words():
    """A mask in words of 32 CPUs, as kernels of 2, 16, 64 and 128 CPUs write it."""
    written = [machines._bits(*each) for each in (("0-1", 2), ("0-15", 16), ("63", 64), ("0", 128))]
    last = "00000000,00000000,00000000,00000001"
    assert written == ["3", "ffff", "80000000,00000000", last]


def test_show(tmp_path):
    """Groups from the leaf upwards, without the folder in which the tree happens to lie."""
    shown = repr(quota.show(quota.trees(tmp_path)["nested pod"]))
    places = [shown.index(line) for line in ("0-63", "0::/", "400000", "200000", "max 100000")]
    assert places == sorted(places)
    assert str(tmp_path) not in shown
    assert "Cpus_allowed_list" in repr(quota.show("/"))


def test_trees_are_separate():
    """Spoiling a tree spoils neither another call's nor the judge's."""
    (quota.trees()["pod"] / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert usable(quota.trees()["pod"]) == 1
    assert check("13.1", usable).status == "right"


# -- the exercises -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["13.1", "13.2"])
def test_stub_is_not_attempted(name):
    """A stub is neither right nor wrong."""
    assert check(name, stub).status == "not attempted"


@pytest.mark.parametrize(
    "answer",
    [
        usable,
        lambda root: np.float64(usable(root)),
        lambda root: perfkit.machine(root=root).limits.cpus,
    ],
)
def test_right_cpus(answer):
    """The learner's way, NumPy's numbers, and perfkit's own reading are right."""
    assert check("13.1", answer).status == "right"


@pytest.mark.parametrize(
    ("leaves_out", "name", "right", "words"),
    [
        ({"above": False}, "nested pod", 5, "Its own group allows 4, a group above it less"),
        ({"mask": False}, "batch job", 5, "no quota, but a mask of 6 CPUs"),
        ({"v1": False}, "hub", 4, "a quota too, of version 1, in two files: cpu,cpuacct/"),
        ({"quotas": False}, "pod", 2, "There is a quota too, of version 2: cpu.max"),
    ],
)
def test_what_was_left_out(leaves_out, name, right, words):
    """Leaf only and quota only fail one tree each; the tree and the omission are named."""
    message = told(lambda root: usable(root, **leaves_out))
    assert message.startswith(name) and words in message
    assert f"You have {right} of 6 right" in message


def test_cpu_count_fails_five():
    """What os.cpu_count() says on each of the machines is right on the laptop alone."""
    message = told(lambda root: usable(root, mask=False, quotas=False))
    assert "what os.cpu_count() says on each machine: it is right on 1 of 6" in message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda root: os.cpu_count(), "os.cpu_count() counts the CPUs of the one that runs it"),
        (lambda root: 77, "read the files below root, not below /"),
        (lambda root: int(usable(root)), "hub: 2 is not it. A part of a CPU counts"),
        (lambda root: round(usable(root) + 0.4), "hub: 3 is not it. A part of a CPU counts"),
        (lambda root: None, "pod: None is not it. Give a number of CPUs"),
        (lambda root: str(usable(root)), "Give a number"),
        (lambda root: usable(root) + 20, "Look at quota.show(roots['pod'])"),
        (lambda root: usable(root, mask=False) if usable(root) < 6 else float("inf"), "batch job"),
        (lambda root: (root / "sys/fs/cgroup/cpu.max").read_text() and 1, "hub: your code raised"),
    ],
)
def test_wrong_cpus(answer, words):
    """Other wrong answers are told apart."""
    assert words in told(answer)


def test_error_hides_the_folder():
    """An error of the learner's code names the file below root."""
    message = told(lambda root: (root / "sys/fs/cgroup/cpu.max").read_text() and 1)
    assert "'root/sys/fs/cgroup/cpu.max'" in message


@pytest.mark.parametrize(
    "answer",
    [
        lambda cpus, workers: max(1, int(cpus // workers)),
        lambda cpus, workers: max(1, np.int64(cpus / workers)),
    ],
)
def test_right_threads(answer):
    """Rounded down, and one at least."""
    assert check("13.2", answer).status == "right"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda cpus, workers: int(cpus // workers), "0 threads each is not it. A worker has one"),
        (lambda cpus, workers: -int(-cpus // workers), "9 threads, more than there are CPUs"),
        (lambda cpus, workers: max(1, round(cpus / workers)), "8 CPUs for 3 workers: 3 threads"),
        (lambda cpus, workers: max(1, int(cpus)), "32 threads, more than there are CPUs"),
        (lambda cpus, workers: 1, "4 threads, and CPUs are left over"),
        (lambda cpus, workers: max(1, cpus // workers), "OMP_NUM_THREADS takes no fraction"),
        (lambda cpus, workers: cpus / workers, "OMP_NUM_THREADS takes no fraction"),
        (lambda cpus, workers: None, "Give a number"),
    ],
)
def test_wrong_threads(answer, words):
    """Zero, rounding up, leaving the workers out, and what cannot be exported: each is told."""
    assert words in told(answer, "13.2")


# -- the learner's own -------------------------------------------------------------------------


@pytest.mark.parametrize(("cpus", "workers", "threads"), [(2.5, 1, 2), (2.5, 4, 1), (8, 4, 2)])
def test_export(cpus, workers, threads):
    """The line sets every library to the same whole number."""
    line = quota.export(cpus, workers)
    assert re.findall(r"(\w+)_NUM_THREADS=(\d+)", line) == [
        (library, str(threads)) for library in ("OMP", "OPENBLAS", "MKL")
    ]


def test_first():
    """The worst finding with its fix, and the export line of the machine that was examined."""
    machine = perfkit.machine()
    finding = Finding(
        id="x", severity="problem", title="9 threads", evidence="quota 2", fix="do it"
    )
    limits = Limits(quota_cpus=2, cpus=2)
    shown = quota.first(Diagnosis.of(machine=machine, limits=limits, findings=(finding,)))
    assert list(shown) == ["9 threads (quota 2)", "do it", quota.export(2)]
    assert quota.first(Diagnosis.of(machine=machine, limits=limits))[0] == "nothing to put right"
