"""Figures of ranks: how far apart they start, what a run costs, one against two on this disk."""

import tempfile
import time
from statistics import median

from figures import figure

from perfkit.ranks import engines, local, mpi
from perfkit.tiers.cluster import probe_together

BARRIERS = 50


def leave_together(rank):
    """When this rank left each barrier, on the clock that all ranks of a host share."""
    times = []
    for _ in range(BARRIERS):
        rank.barrier()
        times.append(time.perf_counter())
    return times


def skews_s(ranks):
    """Between the first and the last rank to leave, barrier by barrier."""
    turns = zip(*ranks.run(leave_together, timeout_s=60), strict=True)
    return [max(turn) - min(turn) for turn in turns]


def show_skew(name, skews, bound_s=None):
    """The median is held to the bound; the maximum is one pause of a neighbour's making."""
    text = f"median {median(skews) * 1e6:.2g}, max {max(skews) * 1e6:.3g} us"
    if bound_s is None:
        print(f"      {name}: {text}")
    else:
        figure(name, text, f"median < {bound_s * 1e6:.0f} us", median(skews) < bound_s)


def bench_skew():
    """50 barriers of 2 ranks of each kind; MPI's in five runs."""
    with mpi(2) as ranks:
        for turn in range(5):
            show_skew(f"start skew of 2 MPI ranks, run {turn + 1}", skews_s(ranks), 100e-6)
    with local(2) as ranks:
        show_skew("2 local ranks", skews_s(ranks))
    for launcher in ("local", "mpi"):
        with engines(n=2, launcher=launcher) as ranks:
            show_skew(f"2 {launcher} engines", skews_s(ranks))


def bench_start():
    """What a run of nothing takes, with the start and the end of its processes."""
    for kind in (local, mpi):
        with kind(2) as ranks:
            start = time.perf_counter()
            ranks.run(leave_together, timeout_s=60)
            print(f"      a run on {kind.__name__}(2): {time.perf_counter() - start:.2f} s")


def bench_together():
    """Alone against together on the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder, mpi(2) as ranks:
        for probe in probe_together(folder, ranks):
            first, last = probe.bw_first_done_Bps / 1e9, probe.bw_last_done_Bps / 1e9
            skew = f", start skew {probe.start_skew_s * 1e6:.1f} us" if probe.start_skew_s else ""
            who = f"{probe.job.tasks} rank(s), {probe.probe}"
            print(f"      {who}: first done {first:.2f}, last done {last:.2f} GB/s{skew}")


if __name__ == "__main__":
    bench_skew()
    bench_start()
    bench_together()
