"""Figures of the other devices: JAX against block_until_ready, cold against warm caches."""

import time
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import pyopencl as cl
from figures import figure, spread

import perfkit
from perfkit.system.facts import last_level_cache_bytes

AXPY = """
__kernel void axpy(__global const float *x, __global float *y) {
    int i = get_global_id(0);
    y[i] = 2.0f * x[i] + y[i];
}
"""


def bench_jax():
    """A jitted product of about 200 ms, by hand and by perfkit in turn; then 70 dropped results."""
    size = 2000
    product = jax.jit(lambda x: x @ x @ x)
    x = jnp.ones((size, size)) / size
    product(x).block_until_ready()
    naive, wall, truths = [], [], []
    for _ in range(15):
        start = time.perf_counter()
        product(x).block_until_ready()
        truths.append(time.perf_counter() - start)
        timing = perfkit.time_call(lambda: product(x))
        naive.append(timing.naive_s / truths[-1])
        wall.append(timing.wall_s / truths[-1])
    print(f"      by hand, s: {spread(truths)}")
    figure("JAX: naive over block_until_ready", spread(naive), "< 0.1", max(naive) < 0.1)
    off = abs(median(wall) - 1)
    figure("  wall over block_until_ready", spread(wall), "1 +- 0.05", off <= 0.05)
    least = 0.5 * min(truths)
    early = sum(perfkit.time_call(lambda: product(x)).wall_s < least for _ in range(70))
    figure("  early readings in 70 runs", early, "0", early == 0)


def cold_over_warm(body):
    """Ratios of cold to warm medians, taken in turn, and the flush's share of the cold sample."""
    ratios = []
    for _ in range(7):
        warm = perfkit.time_call(body, repeat=15)
        cold = perfkit.time_call(body, repeat=15, cold=True)
        ratios.append(cold.wall_s / warm.wall_s)
    return ratios, cold


def bench_cold():
    """A memory-bound body whose data fit the last-level cache, on the host and on PoCL."""
    nbytes = (last_level_cache_bytes() or 2**25) // 8
    data = np.ones(nbytes // 4, "f4")
    out = np.empty_like(data)
    ratios, _ = cold_over_warm(lambda: np.multiply(data, 2.0, out=out))
    figure("cold over warm, host", spread(ratios), "> 1.1", median(ratios) > 1.1)

    platform = next(p for p in cl.get_platforms() if "Portable" in p.name)
    context = cl.Context(platform.get_devices())
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(context, properties=profiling)
    kernel = cl.Kernel(cl.Program(context, AXPY).build(), "axpy")
    x, y = (cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2))
    ratios, cold = cold_over_warm(lambda: kernel(queue, (nbytes // 4,), (256,), x, y))
    figure("cold over warm, PoCL", spread(ratios), "> 1.1", median(ratios) > 1.1)
    start = time.perf_counter()
    once = perfkit.time_call(lambda: kernel(queue, (nbytes // 4,), (256,), x, y), cold=True)
    share = once.wall_s / (time.perf_counter() - start)
    figure("  sample over the call with its flush", f"{share:.3f}", "< 0.5", share < 0.5)
    print(f"      {cold.notes[0]}")


if __name__ == "__main__":
    bench_jax()
    bench_cold()
