"""Looking into trainings that run: a real process, and real threads of this one."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from contextlib import contextmanager

import grpc
import jax
import jax.numpy as jnp
import pytest
import torch

import perfkit
from perfkit.errors import MissingDependency, NotSupportedHere, UsageError
from perfkit.measure import profiler_client
from perfkit.measure.annotations import annotate, step
from perfkit.measure.live import capture_live, record_live
from perfkit.measure.profilers import ANCHOR

TRAINING = """
import sys, time
import jax, jax.numpy as jnp
import perfkit

server = jax.profiler.start_server(int(sys.argv[1]))
update = jax.jit(lambda x: jnp.sin(x @ x))
x = update(jnp.ones((64, 64)))
print("trains", flush=True)
for number in range(10**9):
    if "idle" not in sys.argv:
        with perfkit.step(number), perfkit.annotate("update"):
            update(x).block_until_ready()
    time.sleep(0.005)
"""
BUSY = "is being profiled already"


TRAINED_AND_SERVED = f"""
import threading, time
import jax
from perfkit.errors import NotSupportedHere
from perfkit.measure.live import capture_live

jax.profiler.start_server(PORT)
other = threading.Thread(target=capture_live, args=(1.0,), kwargs=dict(port=PORT))
other.start()
time.sleep(0.4)
try:
    capture_live(0.1)
except NotSupportedHere as error:
    print("refused" if "{BUSY}" in str(error) else error)
other.join()
print(capture_live(0.1)[0].format)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as asked:
        return asked.getsockname()[1]


@contextmanager
def training(*arguments):
    """A process that trains and serves its profiler; ended when it is left."""
    port = free_port()
    command = [sys.executable, "-c", TRAINING, str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout.readline() == b"trains\n"
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def port():
    """Where a process that trains serves its profiler."""
    with training() as (_, number):
        yield number


@contextmanager
def in_thread(work):
    """Another thread of this process does `work` again and again."""
    stop = threading.Event()

    def loop():
        for number in range(10**9):
            if stop.wait(0.005):
                return
            with step(number), annotate("update"):
                work()

    thread = threading.Thread(target=loop, name="trains")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def jax_trains():
    x = jnp.ones((64, 64))
    with in_thread(lambda: (x @ x).block_until_ready()):
        yield


@pytest.fixture
def torch_trains():
    x = torch.ones(64, 64)
    with in_thread(lambda: x @ x):
        yield


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names_in(trace):
    """Names of the events, with the numbers of steps as PyTorch's are written."""
    if trace.format == "kineto":
        return [event.get("name") for event in json.loads(trace.data)["traceEvents"]]
    planes = jax.profiler.ProfileData.from_serialized_xspace(trace.data).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    numbers = [(event.name, dict(event.stats).get("step_num")) for event in events]
    return [name if number is None else f"{name}#{number}" for name, number in numbers]


def steps_in(trace):
    return [name for name in names_in(trace) if name.startswith("step#")]


def interrupt_later(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_another_process(port, temporary):
    """Its trace has its steps and names, and nothing is left here: no file and no thread."""
    threads = threading.active_count()
    (trace,) = capture_live(0.5, port=port)
    assert (trace.format, trace.name) == ("xplane", f"port {port}")
    assert len(steps_in(trace)) > 3
    assert "update" in names_in(trace)
    assert threading.active_count() == threads
    assert not list(temporary.iterdir())


def test_duration_is_as_asked(port):
    """A longer look takes longer, sees more steps, and ends soon after its time."""
    (short,) = capture_live(0.1, port=port)
    start_s = time.monotonic()
    (long,) = capture_live(2.0, port=port)
    assert time.monotonic() - start_s >= 2.0
    assert len(steps_in(long)) > len(steps_in(short))


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_hosts_of_this_machine(port, host):
    """Every name of the loopback will do."""
    assert capture_live(0.1, port=port, host=host)[0].data


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "node17", "::", ""])
def test_other_hosts_are_refused(host):
    """No other machine is asked; the text says how to reach one."""
    with pytest.raises(UsageError, match=r"only into this machine.*ssh -L"):
        capture_live(1, port=1234, host=host)


@pytest.mark.parametrize("seconds", [0, -1, 601, float("nan"), float("inf")])
def test_seconds_have_bounds(seconds):
    """What is no sensible duration is refused in one line that shows the form."""
    with pytest.raises(UsageError, match=r"--live takes seconds.*at most 600: --live 5"):
        capture_live(seconds)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_have_bounds(port):
    """What is no port is refused."""
    with pytest.raises(UsageError, match="--port takes a number from 1 to 65535"):
        capture_live(1, port=port)


def test_nobody_listens():
    """The line says what to call in the process that trains."""
    port = free_port()
    with pytest.raises(NotSupportedHere, match=rf"nobody listens.*start_server\({port}\)"):
        capture_live(1, port=port)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"])
def test_port_of_something_else(monkeypatch, says):
    """One that is silent, and one that speaks HTTP, are told within seconds."""
    monkeypatch.setattr(profiler_client, "PROBE_S", 0.5)
    told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            server.accept()[0].close()  # the first one only looks whether somebody listens
            with server.accept()[0] as client:
                client.sendall(says)
                told.wait(10)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotSupportedHere, match="is no profiler server"):
            capture_live(1, port=server.getsockname()[1])
        told.set()
        thread.join()


def test_old_servers_are_not_asked():
    """A server that lacks what came with JAX 0.9 is refused before it is told to profile."""
    asked = []

    class Old(grpc.GenericRpcHandler):
        def service(self, details):
            asked.append(details.method.rpartition("/")[2])
            if asked[-1] == "Profile":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
            return None

    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=(Old(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with pytest.raises(NotSupportedHere, match=r"crash the training.*update jax"):
                capture_live(0.1, port=port)
        finally:
            server.stop(0).wait()
    assert asked == ["GetSnapshot"]


def test_two_at_once(port):
    """The second is told that the process is being profiled; the first has its trace."""
    with futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(capture_live, 1.0, port=port)
        time.sleep(0.4)
        with pytest.raises(NotSupportedHere, match=BUSY):
            capture_live(0.1, port=port)
        assert steps_in(first.result()[0])


def test_trace_that_does_not_come(monkeypatch, port):
    """The wait ends, with a line that says what may be wrong."""
    monkeypatch.setattr(profiler_client, "GRACE_S", -0.5)
    with pytest.raises(NotSupportedHere, match=r"sent no trace within 0\.3 s.*fewer seconds"):
        capture_live(0.8, port=port)


def test_interrupt_frees_the_server(port):
    """An interrupt ends the wait, and the other process records no longer."""
    interrupt_later(0.4)
    with pytest.raises(KeyboardInterrupt):
        capture_live(20, port=port)
    time.sleep(0.3)
    assert steps_in(capture_live(0.2, port=port)[0])


def test_process_that_idles_and_ends():
    """Without work there is a trace all the same; if the process ends meanwhile, that is said."""
    with training("idle") as (process, port):
        (trace,) = capture_live(0.2, port=port)
        assert not steps_in(trace)
        threading.Timer(0.4, process.kill).start()
        with pytest.raises(NotSupportedHere, match="ended while it was recorded"):
            capture_live(10, port=port)


def test_without_grpc(monkeypatch):
    """The line names the package to install."""
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingDependency, match=r"--live with --port needs grpc.*pip install"):
        capture_live(1, port=1234)


def test_another_thread_with_both_runtimes(jax_trains, torch_trains, temporary):
    """One trace for each runtime, with what the other threads did, and no file is left."""
    traces = {trace.format: trace for trace in capture_live(0.4)}
    assert traces.keys() == {"xplane", "kineto"}
    for trace in traces.values():
        assert len(steps_in(trace)) > 3
        assert names_in(trace).count(ANCHOR) == 1
    assert "aten::mm" in names_in(traces["kineto"])
    assert not list(temporary.glob("perfkit-*"))


def test_runtimes_that_idle(temporary):
    """Where nobody works there are traces without steps."""
    jax.devices()
    traces = capture_live(0.1)
    assert {trace.format for trace in traces} == {"xplane", "kineto"}
    assert not any(steps_in(trace) for trace in traces)


def test_interrupt_stops_the_profilers(torch_trains, temporary):
    """After an interrupt nothing runs on, nothing is left, and one can look again."""
    interrupt_later(0.3)
    with pytest.raises(KeyboardInterrupt):
        capture_live(20)
    assert not list(temporary.glob("perfkit-*"))
    assert steps_in(capture_live(0.2)[-1])


def test_no_runtime():
    """A process that uses none is told what would help."""
    code = "from perfkit.measure.live import capture_live; capture_live(1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "this process uses neither: train on another thread" in done.stderr.splitlines()[-1]


def test_jax_profiles_already(tmp_path):
    """The profile of the user's goes on and gets its trace."""
    with jax.profiler.trace(tmp_path):
        with pytest.raises(NotSupportedHere, match=f"JAX in this process {BUSY}"):
            capture_live(0.1)
        jnp.ones(3).block_until_ready()
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.filterwarnings("ignore:.*be using warmup")
@pytest.mark.parametrize("warmup", [0, 1])
def test_torch_profiles_already(tmp_path, warmup):
    """So does PyTorch's, also if it is only warming up; a look may follow once it has ended."""
    saved = tmp_path / "theirs.json"
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=1, repeat=1),
        on_trace_ready=lambda session: session.export_chrome_trace(str(saved)),
    ) as session:
        with pytest.raises(NotSupportedHere, match=f"PyTorch in this process {BUSY}"):
            capture_live(0.1)
        for _ in range(1 + warmup):
            torch.ones(3)
            session.step()
    assert "aten::ones" in saved.read_text()
    assert "kineto" in [trace.format for trace in capture_live(0.1)]


def test_jax_is_served_meanwhile():
    """Here JAX tells only at the end that its server records; afterwards it works again."""
    port = free_port()
    code = TRAINED_AND_SERVED.replace("PORT", str(port))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["refused", "xplane"], done.stderr


def test_both_runtimes_on_one_axis():
    """What both runtimes saw of a step lies at the same place of the timeline, and the mark that
    told their clocks is not in it.
    """

    def work():
        torch.ones(3)
        jnp.ones(3).block_until_ready()

    work()
    with in_thread(work):
        columns = record_live(0.5).columns
    names = [columns.names[code] for code in columns.name]
    assert ANCHOR not in names
    is_step = columns.of_kind("step")
    starts_ns = sorted(columns.start_ns[is_step].tolist())
    assert len(starts_ns) > 6
    # Each step is marked twice, and between steps the thread sleeps for 5 ms.
    near = sum(later - start < 1e6 for start, later in itertools.pairwise(starts_ns))
    assert near >= len(starts_ns) // 3


def test_another_process_as_a_timeline(port):
    """The report names the port and has the steps of the other process."""
    timeline = record_live(0.4, port=port)
    assert timeline.report.label == f"port {port}, 0.4 s"
    assert len(timeline.steps) > 3
    assert perfkit.last() is timeline.report
