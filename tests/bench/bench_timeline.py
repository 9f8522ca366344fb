"""Figures of the timeline: the truth, planted causes, speed beside HTA, and the recorder's cost."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figures import figure, spread

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))
TRACES = ROOT.parent / "shared" / "traces"
HTA = ROOT / ".venv" / "hta"
ROUNDS = 7
MILLION = 1_000_000

OURS = """
import resource, sys, time
import numpy
from perfkit.timeline.busy import busy_of
from perfkit.timeline.trace import Timeline, _read
from pathlib import Path
begin = time.perf_counter()
columns = _read(Path(sys.argv[1]))
for device in columns.devices():
    busy_of(columns, columns.on_device(device))
breakdown = time.perf_counter() - begin
events = Timeline(columns).report.events
full = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(breakdown, full, peak, events)
"""
THEIRS = """
import resource, sys, time
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
breakdown = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(breakdown, breakdown, peak, 0)
"""


def child(source, path, packages=""):
    """Seconds to the breakdown and to the full analysis, peak MiB, and events, of one process."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return [float(word) for word in done.stdout.split()[-4:]]


def bench_truth():
    """Span, busy and compute of real traces against brute force."""
    from timeline.traces import TRUTH_US

    from perfkit.timeline.trace import read_timeline

    for name, (_, *truth) in TRUTH_US.items():
        path = TRACES / f"{name}.json.gz"
        if not path.exists():
            print(f"the real trace {name} is not here")
            continue
        (device,) = read_timeline(path).devices
        found = [1e6 * s for s in (device.span_s, device.busy_s, device.compute_s)]
        off = max(abs(a - b) for a, b in zip(found, truth, strict=True))
        figure(f"{name}: span, busy, compute off by at most", f"{off:.2g} µs", "2 µs", off <= 2)


def bench_planted():
    """Idle time that goes to the planted cause."""
    from timeline.planted import CAUSES, planted

    from perfkit.timeline.gaps import find_gaps

    for cause in CAUSES:
        shares = []
        for seed in range(20):
            columns = planted(cause, seed=seed).columns
            found = find_gaps(columns, columns.on_device(columns.devices()[0]))
            shares.append(sum(row.share for row in found.causes if row.cause == cause))
        figure(
            f"planted {cause}: share, lowest of 20",
            f"{min(shares):.3f}",
            ">= 0.90",
            min(shares) >= 0.9,
        )


def bench_hta():
    """Reading and breakdown of one real trace, in turns with HTA; imports are left out."""
    path = TRACES / "training-a100.json.gz"
    if not path.exists() or not HTA.exists():
        print("HTA or the real trace is not here: no comparison (make bench installs HTA)")
        return
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(child(OURS, path, ROOT))
        theirs.append(child(THEIRS, path, HTA))
    pairs = list(zip(ours, theirs, strict=True))
    breakdown = [other[0] / own[0] for own, other in pairs]
    full = [other[0] / own[1] for own, other in pairs]
    memory = [own[2] / other[2] for own, other in pairs]
    seconds = f"{median(o[0] for o in ours):.2f} s against {median(t[0] for t in theirs):.2f} s"
    figure("breakdown, HTA over ours", spread(breakdown), ">= 10", median(breakdown) >= 10, seconds)
    figure("full analysis, HTA's breakdown over it", spread(full), ">= 5", median(full) >= 5)
    figure("peak memory of the process over HTA's", spread(memory), "<= 0.5", median(memory) <= 0.5)


def write_million(path):
    """A training of a million events: launches, kernels with long names, operators, steps."""
    head = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n'
    name = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params {})"
    with path.open("w") as file:
        file.write(head)
        for i in range(MILLION // 4):
            at = 1661203462598738 + 40 * i
            args = f'"External id": {i}, "correlation": {i + 1}'
            rows = [
                f'{{"ph":"X","cat":"cpu_op","name":"aten::op{i % 50}","pid":9,"tid":9,"ts":{at},'
                f'"dur":30,"args":{{"External id": {i}, "Input Dims": [[64, 64], [64, 64], []]}}}}',
                f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,'
                f'"ts":{at + 8},"dur":9,"args":{{{args}, "cbid": 211}}}}',
                f'{{"ph":"s","id":{i},"pid":9,"tid":9,"ts":{at + 8},"cat":"ac2g","name":"ac2g"}}',
                f'{{"ph":"X","cat":"kernel","name":"{name.format(i % 90)}","pid":0,"tid":7,'
                f'"ts":{at + 20 + i % 7},"dur":{18 + i % 9},"args":{{{args}, "device": 0, '
                f'"stream": 7, "registers per thread": 90, "grid": [8, 4, 1]}}}}',
            ]
            file.write(",\n".join(rows) + (",\n" if i + 1 < MILLION // 4 else "\n"))
        file.write("]}")


def bench_million():
    """A million events: read and judged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "million.json")
        write_million(path)
        rounds = [child(OURS, path, ROOT) for _ in range(3)]
        size = path.stat().st_size / 2**20
    full, peak = [r[1] for r in rounds], [r[2] for r in rounds]
    note = f"{size:.0f} MiB of JSON, {rounds[0][3]:,.0f} intervals"
    figure("1,000,000 events", f"{median(full):.2f} s", "<= 4 s", median(full) <= 4, note)
    figure("their peak memory", f"{max(peak):.0f} MiB", "<= 1024 MiB", max(peak) <= 1024)


def training():
    """A JAX loop of some 10 ms a step, 60 steps, and how long it ran."""
    import jax
    import jax.numpy as jnp

    weights = jnp.ones((500, 500))

    @jax.jit
    def step(weights):
        for _ in range(6):
            weights = jnp.tanh(weights @ weights)
        return weights

    step(weights).block_until_ready()
    lasted = []

    def loop():
        begin, out = time.perf_counter(), weights
        for _ in range(60):
            out = step(out)
        out.block_until_ready()
        lasted.append(time.perf_counter() - begin)

    return loop, lasted


def bench_cost():
    """The same loop under JAX's profiler alone and under ours, in turns."""
    import jax

    from perfkit.measure.timeline import record_timeline

    loop, lasted = training()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    bodies, wholes = [], []
    for _ in range(9):
        times = []
        for ours in (False, True):
            begin = time.perf_counter()
            if ours:
                record_timeline(loop, backend="jax")
            else:
                with tempfile.TemporaryDirectory() as folder:
                    with jax.profiler.trace(folder, profiler_options=options):
                        loop()
            times.append((lasted[-1], time.perf_counter() - begin))
        bodies.append(times[1][0] / times[0][0])
        wholes.append(times[1][1] / times[0][1])
    figure(
        "%%timeline over jax.profiler: the cell", spread(bodies), "<= 1.1", median(bodies) <= 1.1
    )
    figure("the same with start, end and analysis", spread(wholes), "<= 1.1", median(wholes) <= 1.1)


def bench_real_loads():
    """A sleep under annotate("load") is named as the cause of its gaps, on PoCL and JAX."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pyopencl as cl

    import perfkit

    matrix = jnp.ones((400, 400))
    product = jax.jit(lambda a: jnp.tanh(a @ a) @ a)
    product(matrix).block_until_ready()
    context = cl.Context([cl.get_platforms()[-1].get_devices()[0]])
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(context, properties=profiling)
    data = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 << 18)
    cl.enqueue_copy(queue, data, np.ones(1 << 18, np.float32))
    source = "__kernel void f(__global float* x) { int i = get_global_id(0); x[i] += 1; }"
    kernel = cl.Program(context, source).build().f

    def on_jax():
        product(matrix).block_until_ready()

    def on_opencl():
        kernel(queue, (1 << 18,), None, data)
        queue.finish()

    for name, work in (("jax", on_jax), ("opencl", on_opencl)):

        def loop(work=work):
            for _ in range(12):
                with perfkit.annotate("load"):
                    time.sleep(0.01)
                work()

        loop()
        (device,) = perfkit.record_timeline(loop, backend=name).devices
        share = sum(c.share for c in device.causes if c.host == "load")
        figure(f"{name}: idle time that is `load`", f"{share:.3f}", ">= 0.90", share >= 0.9)


if __name__ == "__main__":
    for bench in (
        bench_truth,
        bench_planted,
        bench_hta,
        bench_million,
        bench_cost,
        bench_real_loads,
    ):
        bench()
