"""Which samples count, and when a figure is refused."""

import os
import threading

import pytest

from perfkit.tiers import samples as subject
from perfkit.tiers.samples import Samples, Surroundings, Team, Watch, origin
from perfkit.units import seconds


def filled(clean, disturbed=()):
    samples = Samples()
    for value in clean:
        samples.add(value, clean=True)
    for value in disturbed:
        samples.add(value, clean=False)
    return samples


def test_summary_is_of_the_clean_ones():
    """Disturbed samples are counted and kept beside, and move nothing."""
    samples = filled([1.0, 2.0, 3.0, 4.0], [100.0] * 6)
    summary = samples.summary()
    assert (summary.median, summary.min, summary.max, summary.n) == (2.5, 1.0, 4.0, 4)
    assert samples.all_median_over_clean() == 40.0


def test_nothing_is_none():
    """Without a clean sample there is no figure."""
    samples = filled([], [1.0])
    assert samples.summary() is None and samples.all_median_over_clean() is None
    assert samples.quality(seconds).status == "refused"


def test_few_clean_samples_are_refused():
    """Nineteen are too few, twenty will do."""
    assert filled([1.0] * 19).quality(seconds).status == "refused"
    assert filled([1.0] * 20).quality(seconds).status == "valid"


def test_scatter_is_refused():
    """The reason has the range that the samples lie in, in the unit of the figure."""
    quality = filled([k * 1e-3 for k in range(1, 102)]).quality(seconds)
    assert quality.status == "refused"
    assert "p10-p90 of the clean samples is 11.0 ms to 91.0 ms" in quality.reasons[0]


def test_one_pause_is_no_scatter():
    """A pause that no counter of the guest saw does not speak for a hundred samples."""
    assert filled([1.0] * 100 + [500.0]).quality(seconds).status == "valid"


def test_reasons_make_it_suspect():
    """A busy machine and what the caller says are reasons; refusal is stronger."""
    busy = filled([1.0] * 20, [2.0] * 30).quality(seconds)
    assert busy.status == "suspect" and "30 of 50" in busy.reasons[0]
    assert filled([1.0] * 20).quality(seconds, reasons=["small"]).reasons == ("small",)
    assert filled([1.0]).quality(seconds, reasons=["small"]).status == "refused"


def test_watch_sees_a_switch(monkeypatch):
    """A count that moved means that the core was lost, once."""
    switches = iter([3, 3, 4, 4])
    monkeypatch.setattr(subject, "_switches", lambda: next(switches))
    monkeypatch.setattr(subject.RunQueueWait, "read_s", lambda _: 0.0)
    watch = Watch()
    assert [watch.kept_core() for _ in range(3)] == [True, False, True]
    watch.close()


def test_watch_sees_a_wait(monkeypatch):
    """A long time ready without a core counts as well, a short one does not."""
    waits = iter([0.0, 0.0, 10.0, 10.0, 11.0])
    monkeypatch.setattr(subject.RunQueueWait, "read_s", lambda _: next(waits))
    monkeypatch.setattr(subject, "_switches", lambda: 0)
    watch = Watch()
    assert [watch.kept_core() for _ in range(2)] == [False, True]
    assert watch.wait_share > 0
    watch.close()


def test_throttling_is_counted(tmp_path):
    """What the quota did between the making and the asking, in all groups of this process."""
    stat, pressure = tmp_path / "sys/fs/cgroup/job/cpu.stat", tmp_path / "proc/pressure/cpu"
    for path in (stat, pressure, tmp_path / "proc/self/cgroup"):
        path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    stat.write_text("nr_periods 9\nnr_throttled 5\n")
    pressure.write_text("some avg10=0.00 total=100\nfull avg10=0.00 total=0\n")
    around = Surroundings(tmp_path)
    stat.write_text("nr_periods 99\nnr_throttled 12\n")
    pressure.write_text("some avg10=0.00 total=900\nfull avg10=0.00 total=0\n")
    noise = around.noise(filled([1.0], [2.0]))
    assert (noise.nr_throttled, noise.clean, noise.disturbed) == (7, 1, 1)
    assert noise.psi_cpu_some > 0 and noise.psi_io_some is None


def test_surroundings_that_are_not_told(tmp_path):
    """A kernel without the files gives None, not 0."""
    noise = Surroundings(tmp_path).noise(Samples())
    assert (noise.nr_throttled, noise.psi_cpu_some, noise.psi_io_some) == (None, None, None)


def test_team_is_pinned_and_the_caller_is_not():
    """Each thread is on its CPU and stays the same; the caller's mask is untouched."""
    before, cpus = os.sched_getaffinity(0), sorted(os.sched_getaffinity(0))
    with Team(cpus) as team:
        seen = team.run(lambda i: (os.sched_getaffinity(0), threading.get_ident()))
        again = team.run(lambda i: (os.sched_getaffinity(0), threading.get_ident()))
    assert seen == again and [mask for mask, _ in seen] == [{cpu} for cpu in cpus]
    assert os.sched_getaffinity(0) == before


def test_team_ends_on_an_interrupt():
    """Work that polls `stopped` ends, and no thread is left."""
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), Team([0, 0]) as team:

        def work(i):
            if i == 0:
                raise KeyboardInterrupt
            team.stopped.wait()

        team.run(work)
    assert threading.active_count() == before


def test_origin():
    """The time is UTC, the host is a salted hash."""
    fields = origin()
    assert fields["time"].endswith("Z") and len(fields["host"]) == 12
