"""Products of `--bench` against a plain timing of the same, and how long the doctor takes."""

import subprocess
import sys
import time
from statistics import median

import numpy as np
from figures import figure, spread
from threadpoolctl import threadpool_limits

from perfkit.measure.products import measure_products
from perfkit.system.limits import read_limits

ROUNDS = 7
SAMPLES = 15
NEW_PROCESS = (
    "import numpy, time, perfkit\ns = time.perf_counter()\n{}\nprint(time.perf_counter() - s)"
)


def directly(product):
    """Seconds of the same product, the median of plain timings after one that is not counted."""
    a, b, c = (np.random.default_rng(1).random((product.n,) * 2, product.dtype) for _ in range(3))
    times_s = []
    with threadpool_limits(product.threads):
        for _ in range(SAMPLES + 1):
            start_s = time.perf_counter()
            np.matmul(a, b, out=c)
            times_s.append(time.perf_counter() - start_s)
    return median(times_s[1:])


def bench_products():
    """Each product in turns with a plain timing: ratio of the operations a second."""
    threads = max(1, int(read_limits().cpus or 1))
    ratios, of_peak = {}, {}
    for _ in range(ROUNDS):
        for product in measure_products(threads, budget_s=1.5):
            key = f"{product.dtype}, {product.threads} of {threads} threads"
            ratios.setdefault(key, []).append(directly(product) / product.seconds)
            of_peak.setdefault(key, []).append(product.of_peak or 0)
    for key, found in ratios.items():
        part = f"{100 * median(of_peak[key]):.0f} % of the peak"
        holds = 0.95 <= median(found) <= 1.05
        figure(f"product, {key}", spread(found), "0.95 to 1.05", holds, part)


def bench_seconds():
    """From a new process with NumPy imported: the call alone."""
    for call, bound_s in (("perfkit.diagnose()", 2), ("perfkit.diagnose(bench=True)", 10)):
        code = NEW_PROCESS.format(call)
        run = [sys.executable, "-c", code]
        found = [float(subprocess.check_output(run, text=True)) for _ in range(3)]
        figure(call, f"{spread(found)} s", f"<= {bound_s} s", max(found) <= bound_s)


if __name__ == "__main__":
    bench_products()
    bench_seconds()
