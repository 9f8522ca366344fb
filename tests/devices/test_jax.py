"""JAX on the processor: a real asynchronous device without events or a synchronize."""

import time
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfkit
from perfkit.devices.jax import JaxDevice

SIZE = 1500


@pytest.fixture(scope="module")
def product():
    """A jitted product that takes long, compiled, and its input."""
    fn = jax.jit(lambda x: jnp.tanh(x @ x) @ x)
    x = jnp.ones((SIZE, SIZE))
    fn(x).block_until_ready()
    return lambda: fn(x)


def by_hand(call):
    """Seconds of a call until its result is ready."""
    start = time.perf_counter()
    call().block_until_ready()
    return time.perf_counter() - start


def test_wall_is_the_truth(product):
    """The stopwatch says under a tenth of what the call takes; wall time says what it takes."""
    ratios = []
    for _ in range(5):
        truth_s = by_hand(product)
        timing = perfkit.time_call(product)
        assert timing.naive_s < 0.1 * timing.wall_s
        ratios.append(timing.wall_s / truth_s)
    assert 0.5 < median(ratios) < 2


def test_backend_is_named(product):
    """The record names JAX, says what is not known by None, and is valid."""
    timing = perfkit.time_call(product)
    assert timing.backends == ("jax",)
    assert timing.device_s is None
    assert timing.verdict is None
    assert timing.launches is None


def test_barrier_is_never_early(product):
    """After synchronize the last result is ready, also when earlier ones were dropped."""
    device = JaxDevice()
    device.synchronize()
    early = 0
    for _ in range(70):
        product()
        last = jnp.ones(3) + 1
        device.synchronize()
        early += not last.is_ready()
    assert early == 0


def test_dropped_result_is_waited_for(product):
    """Work whose result nobody keeps is behind the barrier too."""
    device = JaxDevice()
    device.synchronize()
    alone_s = by_hand(product)
    start = time.perf_counter()
    product()
    device.synchronize()
    assert time.perf_counter() - start > 0.3 * alone_s


@pytest.mark.parametrize(
    "wait", [float, lambda y: y.block_until_ready(), bool, str, lambda y: y.tolist()]
)
def test_waits_are_seen(wait):
    """What blocks for a value counts as waiting, not as host time."""
    fn = jax.jit(lambda x: (jnp.tanh(x @ x) @ x).sum())
    x = jnp.ones((SIZE, SIZE))
    fn(x).block_until_ready()
    timing = perfkit.time_call(lambda: wait(fn(x)))
    assert timing.naive_s > 0.5 * timing.wall_s
    assert timing.host_s < 0.5 * timing.naive_s


def test_unseen_wait_is_not_host_time(product):
    """NumPy reads an array through its buffer and waits unseen: host time is then not known."""
    kept = []
    timing = perfkit.time_call(lambda: kept.append(np.asarray(product())))
    assert timing.naive_s > 0.5 * timing.wall_s
    assert timing.host_s is None


def test_compiling_is_split_out():
    """The first call of a new program shows its compile time, later calls have none."""
    fn = jax.jit(lambda x: jnp.sin(x) * 3 + jnp.cos(x))
    x = jnp.ones(1000)
    timing = perfkit.time_call(lambda: fn(x).block_until_ready(), repeat=3)
    assert 0 < timing.compile_s <= timing.first_s
    assert timing.recompiles == 0


def test_recompiles_are_counted():
    """A shape that changes compiles again in every sample, and the report says so."""
    fn = jax.jit(lambda x: jnp.sin(x) * 5)
    sizes = iter(range(100, 200))
    timing = perfkit.time_call(lambda: fn(np.ones(next(sizes))), repeat=3, warmup=1)
    assert timing.recompiles == 3
    from perfkit.render.timing import text

    assert "compiled 3 times while sampling" in text(timing)


def test_numpy_stays_synchronous():
    """With JAX loaded a plain cell is still the host's."""
    timing = perfkit.time_call(lambda: sum(range(1000)), repeat=20)
    assert timing.verdict == "synchronous"


def test_hooks_are_put_back(product):
    """After a measurement, also one that failed, JAX is as it was."""
    from jaxlib import _jax

    names = ("block_until_ready", "_value", "__dlpack__")
    before = [vars(_jax.ArrayImpl)[name] for name in names] + [_jax.batched_block_until_ready]
    perfkit.time_call(product)
    with pytest.raises(ZeroDivisionError):
        perfkit.time_call(lambda: 1 / 0)
    after = [vars(_jax.ArrayImpl)[name] for name in names] + [_jax.batched_block_until_ready]
    assert before == after


def test_retained_memory(product):
    """What a call keeps on the device is counted; what it drops is not."""
    box = []
    assert perfkit.time_call(lambda: box.append(product())).device_retained_bytes == 4 * SIZE**2
    assert perfkit.time_call(lambda: (product(), None)[1]).device_retained_bytes == 0


def test_owns_without_waiting(product):
    """A result is recognised while it is still being computed."""
    y = product()
    assert JaxDevice().owns(y)
    assert not y.is_ready()
    assert not JaxDevice().owns(np.ones(1))
    y.block_until_ready()


def test_profile_gives_device_time(product):
    """The profiler's intervals lie inside the run and cover most of it."""
    device = JaxDevice()
    device.synchronize()
    start = time.perf_counter()
    with device.profile(time.perf_counter) as rows:
        product().block_until_ready()
        end = time.perf_counter()
    assert rows
    first, last = min(row.start_s for row in rows), max(row.end_s for row in rows)
    assert start <= first <= last <= end + 0.01
    assert last - first > 0.3 * (end - first)


def test_import_inside_the_body_is_said():
    """A runtime that the body imports is named: the first call includes the import."""
    import subprocess
    import sys

    code = "import perfkit\nt = perfkit.time_call(lambda: __import__('jax'))\nprint(t.notes)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "jax was imported inside the body" in done.stdout
