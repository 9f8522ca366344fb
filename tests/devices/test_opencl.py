"""Real OpenCL commands: what time_call says of them against their own events."""

import time

import pytest

from perfkit.measure.timing import time_call

MIB = 2**20
LONG_S = 0.2


def own_s(event):
    """Seconds from start to end of a command, from its event."""
    return (event.profile.end - event.profile.start) * 1e-9


@pytest.fixture
def queue(opencl):
    return opencl.queue()


@pytest.fixture
def spin(opencl, queue):
    """Give the queue a kernel of about so many seconds; its event."""
    return lambda seconds: opencl.spin(queue, seconds)


# -- against the queue's own events ------------------------------------------------------------


def test_device_time_is_the_events(spin):
    """Device time is the event's own within 2 %, and busy time is the same for one kernel."""
    events = []
    timing = time_call(lambda: events.append(spin(LONG_S)))
    assert timing.device_s == pytest.approx(own_s(events[0]), rel=0.02)
    assert timing.device_busy_s == timing.device_s <= timing.wall_s
    assert timing.quality.source == "host clock and device events"


def test_device_time_of_medians(spin):
    """Over several samples device time is the median of the events', the first call left out."""
    events = []
    timing = time_call(lambda: events.append(spin(0.02)), repeat=5, warmup=1)
    kept = sorted(own_s(event) for event in events[-5:])
    assert timing.device_s == pytest.approx(kept[2], rel=0.02)
    assert len(events) == timing.runs == 7


def test_naive_watch_lies(spin):
    """A stopwatch around a launch reads less than a tenth of what the kernel takes."""
    timing = time_call(lambda: spin(LONG_S), repeat=3, warmup=0)
    assert timing.naive_s < 0.1 * timing.wall_s
    assert timing.device_s > 0.5 * timing.wall_s


def test_pending_kernels_stay_out(spin):
    """Kernels that were queued before the start are drained before it."""
    pending = [spin(LONG_S), spin(LONG_S)]
    timing = time_call(lambda: spin(0.01))
    assert timing.launches == 1
    assert timing.wall_s < 0.5 * sum(map(own_s, pending))


def test_dropped_event_is_awaited(spin):
    """A kernel whose event nobody keeps is waited for."""

    def body():
        spin(LONG_S)

    timing = time_call(body)
    assert timing.wall_s >= timing.device_s > 0.25 * LONG_S


# -- queues ------------------------------------------------------------------------------------


def test_queue_without_profiling(opencl):
    """Without profiling there is no device time and a reason why; wall time is right still."""
    queue, events = opencl.queue(timed=False), []
    timing = time_call(lambda: events.append(opencl.spin(queue, LONG_S)))
    ended = opencl.cl.command_execution_status.COMPLETE
    assert timing.device_s is timing.device_busy_s is timing.idle_s is timing.verdict is None
    assert events[0].command_execution_status == ended and timing.launches == 1
    assert timing.wall_s > 0.25 * LONG_S and timing.wall_s > 5 * timing.naive_s
    assert "PROFILING_ENABLE" in timing.quality.reasons[0]
    assert timing.quality.status == "suspect"
    assert timing.quality.source == "host clock"


def test_one_queue_without_profiling(opencl):
    """One command without a time makes the device time of the whole run unknown."""
    queue, dark = opencl.queue(), opencl.queue(timed=False)

    def body():
        opencl.spin(queue, 0.01)
        opencl.spin(dark, 0.01)

    timing = time_call(body)
    assert timing.device_s is None and timing.launches == 2
    assert "PROFILING_ENABLE" in timing.quality.reasons[0]


def test_queue_made_in_body(opencl):
    """A queue that the body makes and drops is drained, and its kernels are seen."""
    timing = time_call(lambda: opencl.spin(opencl.queue(), LONG_S))
    assert timing.launches == 1 and timing.quality.source.endswith("device events")
    assert timing.wall_s >= timing.device_s > 0.25 * LONG_S
    assert timing.naive_s < 0.5 * timing.wall_s


def test_queue_made_each_run(opencl):
    """A body that makes its queue anew is drained in every run."""

    def body():
        queue = opencl.cl.CommandQueue(opencl.context, properties=profiling)
        opencl.spin(queue, 0.02)

    profiling = opencl.cl.command_queue_properties.PROFILING_ENABLE
    timing = time_call(body, repeat=4, warmup=1)
    assert [sample.launches for sample in timing.samples] == [1] * 4
    assert all(s.wall_s >= s.device_s > 0.25 * 0.02 for s in timing.samples)


def test_two_queues(opencl):
    """Two queues are two lanes, and together they are busy for the union of their work."""
    queues, events = [opencl.queue(), opencl.queue()], []
    timing = time_call(lambda: events.extend(opencl.spin(queue, 0.05) for queue in queues))
    assert len({span.lane for span in timing.spans if span.kind == "kernel"}) == 2
    first, second = events
    overlap_s = min(e.profile.end for e in events) - max(e.profile.start for e in events)
    union_s = own_s(first) + own_s(second) - max(0, overlap_s * 1e-9)
    assert timing.device_busy_s == pytest.approx(union_s, rel=0.02)


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("kind", ["h2d", "d2h", "d2d"])
def test_copies_are_counted(opencl, queue, kind, blocking):
    """Copies have direction, count, bytes and the bandwidth of their own events."""
    import numpy as np

    host, near, far = np.zeros(MIB, "f8"), opencl.buffer(8 * MIB), opencl.buffer(8 * MIB)
    dest, source = {"h2d": (near, host), "d2h": (host, near), "d2d": (near, far)}[kind]
    options = {} if kind == "d2d" else {"is_blocking": blocking}
    events = []

    def body():
        events.append(opencl.cl.enqueue_copy(queue, dest, source, **options))
        events.append(opencl.cl.enqueue_copy(queue, dest, source, **options))

    timing = time_call(body)
    (copy,) = timing.transfers
    assert (copy.direction, copy.count, copy.nbytes) == (kind, 2, 16 * MIB)
    assert copy.bandwidth_Bps == pytest.approx(16 * MIB / sum(map(own_s, events)), rel=0.02)


def test_part_copies(opencl, queue):
    """A copy of a part counts the bytes of the part."""
    import numpy as np

    host, near, far = np.zeros(MIB, "u1"), opencl.buffer(MIB), opencl.buffer(2 * MIB)

    def body():
        opencl.cl.enqueue_copy(queue, near, host[:1000])
        opencl.cl.enqueue_copy(queue, host[5:12], near, src_offset=3)
        opencl.cl.enqueue_copy(queue, near, far, byte_count=300)
        opencl.cl.enqueue_copy(queue, far, near)

    nbytes = {copy.direction: copy.nbytes for copy in time_call(body).transfers}
    assert nbytes == {"h2d": 1000, "d2h": 7, "d2d": 300 + MIB}


def test_unknown_bytes_are_none(opencl, queue):
    """A rectangular copy is seen; its bytes are not told, so it has no bandwidth, not 0 B/s."""
    import numpy as np

    host, near = np.zeros(MIB, "u1"), opencl.buffer(MIB)
    where = {"buffer_origin": (0, 0), "host_origin": (0, 0), "region": (64, 64)}
    pitches = {"buffer_pitches": (128,), "host_pitches": (128,)}
    timing = time_call(lambda: opencl.cl.enqueue_copy(queue, host, near, **where, **pitches))
    (copy,) = timing.transfers
    assert (copy.direction, copy.count, copy.bandwidth_Bps) == ("d2h", 1, None)


def test_arrays_are_seen(opencl, queue):
    """The kernels and copies of pyopencl.array are commands like any other."""
    import numpy as np
    import pyopencl.array

    host = np.ones(1000, "f4")

    def body():
        return (pyopencl.array.to_device(queue, host) + 1).get()

    body()
    timing = time_call(body)
    kinds = [span.kind for span in timing.spans]
    assert {"h2d", "kernel", "d2h", "wait"} <= set(kinds)
    assert {c.direction: c.nbytes for c in timing.transfers} == {"h2d": 4000, "d2h": 4000}


def test_fills_and_maps_are_seen(opencl, queue):
    """Fills count as kernels; a mapping is a command too."""
    import numpy as np

    near = opencl.buffer(MIB)

    def body():
        opencl.cl.enqueue_fill_buffer(queue, near, np.uint8(1), 0, MIB)
        flags = opencl.cl.map_flags.READ
        view, _ = opencl.cl.enqueue_map_buffer(queue, near, flags, 0, (MIB,), np.uint8)
        view.base.release(queue)

    timing = time_call(body)
    assert timing.launches == 2
    assert {"kernel", "other"} <= {span.kind for span in timing.spans}


# -- waits -------------------------------------------------------------------------------------


def finish(opencl, queue, event):
    queue.finish()


def wait(opencl, queue, event):
    event.wait()


def wait_for_events(opencl, queue, event):
    opencl.cl.wait_for_events([event])


def blocking_read(opencl, queue, event):
    opencl.cl.enqueue_copy(queue, bytearray(4), opencl.word)


def blocking_write(opencl, queue, event):
    opencl.cl.enqueue_copy(queue, opencl.word, bytearray(4))


def blocking_map(opencl, queue, event):
    import numpy as np

    flags = opencl.cl.map_flags.READ
    view, _ = opencl.cl.enqueue_map_buffer(queue, opencl.word, flags, 0, (1,), np.uint32)
    view.base.release(queue)


WAITS = [finish, wait, wait_for_events, blocking_read, blocking_write, blocking_map]


@pytest.mark.parametrize("block", WAITS)
def test_waits_are_not_host_work(opencl, queue, spin, block):
    """Host time leaves out the time blocked in the runtime; naive time has it."""
    timing = time_call(lambda: block(opencl, queue, spin(0.1)))
    assert timing.naive_s > 0.5 * timing.wall_s
    assert timing.host_s < 0.4 * timing.naive_s
    assert "wait" in {span.kind for span in timing.spans}


def test_asynchronous_copy_is_no_wait(opencl, queue, spin):
    """A non-blocking copy behind a kernel blocks nobody, so the host is not seen waiting."""
    events = []

    def body():
        spin(0.1)
        copy = opencl.cl.enqueue_copy(queue, bytearray(4), opencl.word, is_blocking=False)
        events.append(copy)

    timing = time_call(body)
    assert timing.naive_s < 0.4 * timing.wall_s
    assert "wait" not in {span.kind for span in timing.spans}


def test_dropped_copy_blocks(opencl, queue, spin):
    """A copy whose event is dropped blocks until it has ended, and naive time has it."""

    def body():
        spin(0.1)
        opencl.cl.enqueue_copy(queue, bytearray(4), opencl.word, is_blocking=False)

    timing = time_call(body)
    assert timing.naive_s > 0.5 * timing.wall_s


# -- too many ----------------------------------------------------------------------------------


def test_too_many_commands(spin, monkeypatch):
    """Beyond the most events that are kept commands are counted, and device time is unknown."""
    monkeypatch.setattr("perfkit.devices.opencl.MOST_COMMANDS", 5)
    timing = time_call(lambda: [spin(0.001) for _ in range(8)])
    assert timing.launches == 8
    assert timing.device_s is timing.device_busy_s is timing.verdict is None
    assert "more than 5 commands" in timing.quality.reasons[0]


def test_most_commands_are_kept(spin, monkeypatch):
    """Just as many commands as are kept still have their device time."""
    monkeypatch.setattr("perfkit.devices.opencl.MOST_COMMANDS", 8)
    timing = time_call(lambda: [spin(0.001) for _ in range(8)], repeat=3, warmup=1)
    assert timing.launches == 8 and timing.device_s is not None


# -- verdicts ----------------------------------------------------------------------------------


def synchronous(opencl, queue):
    sum(range(100_000))


def launch(opencl, queue):
    for _ in range(500):
        opencl.turn(queue, 1)


def device(opencl, queue):
    opencl.spin(queue, 0.1)


def transfer(opencl, queue):
    for _ in range(4):
        opencl.cl.enqueue_copy(queue, *opencl.large)


def host(opencl, queue):
    opencl.spin(queue, 0.005)
    time.sleep(0.05)


@pytest.mark.parametrize("cell", [synchronous, launch, device, transfer, host])
def test_verdict_of(opencl, queue, cell):
    """A cell planted for each verdict gets it."""
    timing = time_call(lambda: cell(opencl, queue), repeat=3, warmup=1, backend="opencl")
    assert timing.verdict == cell.__name__
    assert timing.backends == (("host",) if cell is synchronous else ("opencl",))


def test_no_verdict_between(opencl, queue):
    """Where device and host share the pace nobody is blamed."""

    def body():
        event = opencl.spin(queue, 0.05)
        event.wait()
        time.sleep(event_s := own_s(event))
        return event_s

    timing = time_call(body, repeat=3, warmup=1)
    assert 0.4 < timing.device_busy_s / timing.wall_s < 0.6
    assert timing.verdict is None


def test_two_runtimes_report_both(opencl, queue, spin, thread):
    """A cell that uses two runtimes has each by itself beside their union."""
    lane = thread.lane()

    def body():
        spin(0.1)
        thread.launch(lane, 0.3)

    timing = time_call(body)
    assert timing.backends == ("opencl", "thread")
    parts = {part.backend: part for part in timing.parts}
    assert set(parts) == {"opencl", "thread"}
    assert parts["thread"].device_s > 0.28
    assert all(part.launches == 1 for part in parts.values())
    assert timing.device_s >= max(part.device_s for part in parts.values())
    assert timing.device_busy_s <= sum(part.device_busy_s for part in parts.values())


def test_silent_runtime_beside_another(opencl, queue, spin):
    """Where one of two runtimes does not tell when it worked, the other's times stay."""
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.ones((900, 900))

    def body():
        spin(0.1)
        return x @ x @ x

    time_call(body)
    timing = time_call(body)
    parts = {part.backend: part for part in timing.parts}
    assert parts["opencl"].device_s > 0.05
    assert parts["jax"].device_s is None
    assert timing.device_s is None
    assert timing.wall_s > 0.05
