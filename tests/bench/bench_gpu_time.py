"""Figures of %%gpu_time: bias, gap between repeats, a known kernel, verdicts, load time."""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyopencl as cl
from figures import figure, spread

import perfkit
from perfkit.measure.clock import HostClock
from perfkit.measure.plan import Plan
from perfkit.measure.timing import Measurement

ROOT = Path(__file__).parents[2]
BODY = "a = 1\nb = 2\nc = a + b\nd = c * 2\ne = d - a\nf = e + b\ng = f * c\nh = g - d\n"
SPIN = """
__kernel void spin(__global float *x, int n) {
    float a = x[get_global_id(0)];
    for (int i = 0; i < n; i++) a = a * 0.999f + 0.5f;
    x[get_global_id(0)] = a;
}
"""


def run_cell(body, plan=Plan(repeat="auto")):  # noqa: B008
    """Run a body as the cell engine does, with no runtime in use."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    code = compile(f"for _ in runs():\n    __value__ = None\n{lines}", "<cell>", "exec")
    measurement = Measurement(plan, HostClock(), find_devices=lambda names: ())
    names = {"runs": measurement.runs, "now": time.perf_counter, "times": []}
    exec(code, names)
    return measurement.timing, names["times"]


def by_hand(run, samples=300, number=1000):
    """Median seconds of `run()` in a hand-written loop, batched."""
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(number):
            run()
        times.append((time.perf_counter() - start) / number)
    return median(times)


def bench_bias():
    """Our median less the hand-written loop's, and the same for source text run by exec."""
    code, names = compile(BODY, "<cell>", "exec"), {}
    ours, texts = [], []
    for _ in range(9):
        truth = by_hand(lambda: exec(code, names))
        ours.append(1e6 * (run_cell(BODY)[0].wall_s - truth))
        texts.append(1e6 * (by_hand(lambda: exec(BODY, names), 20, 20) - truth))
    figure("bias, µs", spread(ours), "<= 0.2", abs(median(ours)) <= 0.2)
    figure("  beside it, exec of source text (CuPy's %gpu_timeit)", spread(texts), "none", True)


def bench_gap():
    """Time between the end of one repeat and the start of the next."""
    for name, work in (("batched", "pass"), ("single", "while now() < t + 6e-4: pass")):
        body = f"t = now()\n{work}\ntimes.append((t, now()))"
        _, times = run_cell(body, Plan(repeat=200, budget_s=2.0))
        gaps = [1e6 * (b[0] - a[1]) for a, b in pairwise(times[50:])]
        figure(f"gap between repeats, {name}, µs", spread(gaps), "<= 2", median(gaps) <= 2)


class Planted:
    """PoCL with a spin kernel of a wanted duration."""

    def __init__(self):
        platforms = [p for p in cl.get_platforms() if "Portable" in p.name]
        self.context = cl.Context(platforms[0].get_devices())
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, properties=profiling)
        self.kernel = cl.Kernel(cl.Program(self.context, SPIN).build(), "spin")
        self.buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 256)
        self.launch(1000).wait()
        event = self.launch(2_000_000)
        event.wait()
        self.per_s = 2_000_000 / (1e-9 * (event.profile.end - event.profile.start))
        self.host = np.zeros(2**24, "f4")
        self.big = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, self.host.nbytes)

    def launch(self, n):
        return self.kernel(self.queue, (64,), (32,), self.buffer, np.int32(n))

    def cells(self):
        """One cell for each verdict."""

        def host():
            for _ in range(10):
                self.launch(0.002 * self.per_s).wait()
                time.sleep(0.02)

        def transfer():
            cl.enqueue_copy(self.queue, self.big, self.host)
            cl.enqueue_copy(self.queue, self.host, self.big)

        return {
            "synchronous": lambda: np.sort(self.host[:100_000]),
            "launch": lambda: [self.launch(10) for _ in range(500)],
            "device": lambda: self.launch(0.2 * self.per_s),
            "transfer": transfer,
            "host": host,
        }


def bench_kernel(planted):
    """A 200 ms kernel against the queue's own event and a hand-synchronised run, interleaved."""
    events, naive, device, wall = [], [], [], []

    def body():
        events.append(planted.launch(0.2 * planted.per_s))

    for _ in range(9):
        start = time.perf_counter()
        body()
        planted.queue.finish()
        by_hand_s = time.perf_counter() - start
        timing = perfkit.time_call(body)
        profile = events[-1].profile
        naive.append(timing.naive_s / timing.wall_s)
        device.append(timing.device_s / (1e-9 * (profile.end - profile.start)))
        wall.append(timing.wall_s / by_hand_s)
    figure("200 ms kernel: naive over wall", spread(naive), "< 0.1", max(naive) < 0.1)
    off = max(abs(ratio - 1) for ratio in device)
    figure("  device over the queue's own event", spread(device), "1 +- 0.02", off <= 0.02)
    figure(
        "  wall over a hand-synchronised run",
        spread(wall),
        "1 +- 0.05",
        abs(median(wall) - 1) <= 0.05,
    )


def bench_verdicts(planted):
    """Each planted cell gets its verdict, five times."""
    for verdict, cell in planted.cells().items():
        seen = [perfkit.time_call(cell, repeat=3).verdict for _ in range(5)]
        figure(
            f"planted {verdict}", f"{seen.count(verdict)} of 5", "5 of 5", set(seen) == {verdict}
        )


def bench_load():
    """Milliseconds of %load_ext perfkit in a fresh process that has IPython."""
    code = (
        "import time; from IPython.core.interactiveshell import InteractiveShell as S;"
        "s = S.instance(); t = time.perf_counter(); s.run_line_magic('load_ext', 'perfkit');"
        "print(1e3 * (time.perf_counter() - t))"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(9)]
    figure("%load_ext perfkit, ms", spread(times), "<= 50", median(times) <= 50)


def bench_lesson():
    """Seconds of lesson 31, kernel start included."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "nbconvert", "--log-level=ERROR", "--execute", "--to=notebook",
             f"--output-dir={folder}", str(ROOT / "notebooks/31_stopwatch.ipynb")],
            check=True, env={**os.environ, "PERFKIT_RESULTS": f"{folder}/results.jsonl"},
        )  # fmt: skip
        seconds = time.perf_counter() - start
    figure("lesson 31, s", f"{seconds:.1f}", "<= 60", seconds <= 60)


if __name__ == "__main__":
    bench_bias()
    bench_gap()
    planted = Planted()
    bench_kernel(planted)
    bench_verdicts(planted)
    bench_load()
    bench_lesson()
