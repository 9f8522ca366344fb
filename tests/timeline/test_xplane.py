import re
import time
from collections import Counter

import numpy as np
import pytest
from timeline.xspaces import field, message, xplane, xspace

from perfkit.errors import UsageError
from perfkit.intervals import merged
from perfkit.timeline import flows
from perfkit.timeline.busy import Union, busy_of
from perfkit.timeline.columns import KINDS, NO_BYTES, Columns, Lane
from perfkit.timeline.launches import launches_of
from perfkit.timeline.wire import Wire
from perfkit.timeline.xevents import events_of
from perfkit.timeline.xla import CPU
from perfkit.timeline.xplane import WANTED, read_xplane
from perfkit.timeline.xspace import planes_of

STEPS = 5
MAIN = Lane("", "thread 1 (python)")


def names_of(columns, *kinds):
    """How often each name is there, of these kinds or of all."""
    mask = columns.of_kind(*kinds) if kinds else np.ones(len(columns), dtype=bool)
    return Counter(columns.names[code] for code in columns.name[mask])


def rows(columns):
    """All intervals as (start, duration, lane, kind, name)."""
    return [
        (
            int(columns.start_ns[i]),
            int(columns.end_ns[i] - columns.start_ns[i]),
            columns.lanes[columns.lane[i]],
            KINDS[columns.kind[i]],
            columns.names[columns.name[i]],
        )
        for i in range(len(columns))
    ]


def inside(columns, inner, outer):
    """How many intervals called `inner` lie in one called `outer`."""
    a, b = (columns.name == columns.names.index(name) for name in (inner, outer))
    return sum(
        ((columns.start_ns <= columns.start_ns[i]) & (columns.end_ns >= columns.end_ns[i]))[b].any()
        for i in np.flatnonzero(a)
    )


class Recording:
    """A trace of a loop of JAX on the processor: two products a step, one of them with a new shape,
    a number read in each, and a small program.
    """

    def __init__(self, folder, level):
        import jax
        import jax.numpy as jnp

        def two_products(x, w):
            with jax.named_scope("forward"):
                x = jnp.sort(x @ w)
            with jax.named_scope("update"):
                return jnp.tanh(x @ w).sum()

        self.level = level
        product, tiny = jax.jit(two_products), jax.jit(lambda x: x + 1)
        w, x, y = jnp.ones((300, 300)), jnp.ones((300, 300)), jnp.ones((200, 300))
        jax.block_until_ready((product(x, w), tiny(w[0])))
        options = jax.profiler.ProfileOptions()
        if level is not None:
            options.python_tracer_level = level
        start_s = time.perf_counter()
        with jax.profiler.trace(folder, profiler_options=options):
            for number in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    with jax.profiler.TraceAnnotation("compute"):
                        loss = product(y if number == 3 else x, w)
                    with jax.profiler.TraceAnnotation("read"):
                        float(loss)
                    with jax.profiler.TraceAnnotation("drain"):
                        product(x, w).block_until_ready()
                    tiny(w[0]).block_until_ready()
        self.wall_s = time.perf_counter() - start_s
        (self.path,) = folder.rglob("*.xplane.pb")
        self.data = self.path.read_bytes()
        self.columns = read_xplane(self.data, self.path.name)


@pytest.fixture(scope="module", params=[0, None], ids=["annotations alone", "default"])
def recording(request, tmp_path_factory):
    """One recording without and one with Python's functions, as it is by default."""
    return Recording(tmp_path_factory.mktemp("jax"), request.param)


@pytest.fixture(scope="module")
def columns(recording):
    """The columns of the recording."""
    return recording.columns


# -- real recordings -------------------------------------------------------------------------------


def test_same_events_as_jax_reads(recording):
    """Every event of every line has the name, start and duration that JAX's own reader gives."""
    import jax

    wire = Wire(recording.data)
    theirs = list(jax.profiler.ProfileData.from_file(str(recording.path)).planes)
    ours = list(planes_of(recording.data))
    assert [plane.name for plane in ours] == [plane.name for plane in theirs]
    for plane, other in zip(ours, theirs, strict=True):
        events = events_of(wire, plane, WANTED)
        names = [plane.names[number] for number in events.metadata.tolist()]
        expected = [(e.name, e.start_ns, e.duration_ns) for li in other.lines for e in li.events]
        assert names == [name for name, _, _ in expected]
        starts, lasting = np.array([pair[1:] for pair in expected]).reshape(-1, 2).T
        assert np.abs(events.start_ns - starts).max(initial=0) <= 1
        assert np.abs(events.end_ns - events.start_ns - lasting).max(initial=0) <= 1


def test_steps_are_numbered(columns):
    """Steps are told by their number, which is their detail."""
    steps = columns.of_kind("step")
    assert names_of(columns, "step") == {"train": STEPS}
    assert [columns.details[code] for code in columns.detail[steps]] == list("01234")


def test_annotations(columns):
    """Annotations of the user are those that were made, and nothing else."""
    assert names_of(columns, "annotation") == {"compute": STEPS, "read": STEPS, "drain": STEPS}


def test_one_compile_for_the_new_shape(columns):
    """What was traced, lowered and compiled for one call is one compile, named for the function."""
    assert names_of(columns, "compile") == {"compile two_products": 1}
    assert inside(columns, "compile two_products", "compute") == 1


def test_waits(columns):
    """A number that is read and a result that is waited for are one wait each."""
    waits = names_of(columns, "wait")
    assert waits["np.asarray(jax.Array)"] == STEPS
    assert inside(columns, "np.asarray(jax.Array)", "read") == STEPS
    assert 0 < inside(columns, "CommonPjRtBuffer::Await", "drain") <= STEPS
    blocked = columns.of_kind("wait") & (columns.end_ns > columns.start_ns)
    assert len({columns.lanes[code] for code in columns.lane[blocked]}) == 1


def test_calls_are_there_once(columns):
    """JAX records a call of a jitted function twice, one in the other."""
    assert names_of(columns, "op")["PjitFunction(two_products)"] == 2 * STEPS


def test_device_work(recording, columns):
    """The processor is a device whose work lies in the run."""
    assert columns.devices() == (CPU,)
    busy = busy_of(columns, columns.on_device(CPU))
    assert 0 < busy.busy_ns <= busy.span_ns < 1e9 * recording.wall_s
    assert 0 < busy.compute_ns <= busy.busy_ns


def test_device_work_is_when_programs_run(recording, columns):
    """The union of a pool's work is close to the time in which its threads had a task."""
    (plane,) = (one for one in planes_of(recording.data) if one.name == "/host:CPU")
    events = events_of(Wire(recording.data), plane, WANTED)
    names = np.array([plane.names[number] for number in events.metadata.tolist()])
    tasks = np.flatnonzero(flows.tasks(events, names == flows.RUN, names == flows.STOPPED))
    tasks = tasks[np.argsort(events.start_ns[tasks])]
    whole_ns = Union(*merged(events.start_ns[tasks], events.end_ns[tasks])).total_ns
    pool = columns.of_lanes(lane.name.startswith("XLA") for lane in columns.lanes)
    busy_ns = busy_of(columns, columns.on_device(CPU) & pool).busy_ns
    assert 0.6 * whole_ns < busy_ns < 1.1 * whole_ns


def test_kernels_once(columns):
    """No operation holds another one, so that a table of them adds up."""
    work = np.flatnonzero(columns.of_kind("kernel"))
    for lane in np.unique(columns.lane[work]):
        own = work[columns.lane[work] == lane]
        assert (columns.start_ns[own][1:] >= columns.end_ns[own][:-1]).all()


def test_scopes_of_the_program(columns):
    """Annotations in a jitted function are seen again on what the device did."""
    work = columns.of_kind("kernel")
    scopes = {columns.details[code] for code in columns.detail[work]}
    assert any("/forward/" in scope for scope in scopes)
    assert any("/update/" in scope for scope in scopes)


def test_launches_are_linked(columns):
    """Programs are linked to the calls that launched them, and begin after these do."""
    found = launches_of(columns, columns.on_device(CPU))
    assert found.count >= 2 * STEPS
    linked = columns.on_device(CPU) & (columns.link != 0)
    assert len(np.unique(columns.link[linked])) == found.count
    assert found.latency_median_s > 0


def test_python_functions(recording, columns):
    """Python's functions are there by default, in the form that all traces have here."""
    frames = names_of(columns, "python")
    assert bool(frames) == (recording.level is None)
    assert not any(name.startswith("$") for name in columns.names)
    if frames:
        assert any(re.fullmatch(r"jax/profiler\.py\(\d+\): wrapper", name) for name in frames)


def test_origin_is_since_1970(recording, columns):
    """The trace says when it was made."""
    assert abs(columns.origin_ns - 1e9 * recording.path.stat().st_mtime) < 600e9


def test_cut_anywhere(recording):
    """A real file that was cut off is refused, in one line that says what to do."""
    for part in range(1, 40):
        cut = recording.data[: part * len(recording.data) // 40]
        with pytest.raises(UsageError, match=r"^t\.pb is no trace .* again$"):
            read_xplane(cut, "t.pb")


# -- made by hand ----------------------------------------------------------------------------------

GPU = {
    "/device:GPU:0": {
        "Stream #7(Compute)": [
            ("gemm", 100, 50, {"correlation_id": 5, "tf_op": "jit(f)/forward/dot:"}),
            ("ncclDevKernel_AllReduce", 160, 20, {"correlation_id": 6}),
        ],
        "Stream #8(MemcpyH2D)": [
            (
                "MemcpyH2D",
                90,
                30,
                {"memcpy_details": "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"},
            ),
            ("Memset", 121, 1, {"Memset_details": "kind:device num_bytes:64 async:1"}),
        ],
        "XLA Modules": [("jit_f(1)", 90, 200)],
        "Steps": [("0", 80, 300)],
    },
    "/host:CPU": {
        "python": [("cuLaunchKernel", 80, 5, {"correlation_id": 5}), ("load", 10, 40)],
    },
}


def test_gpu():
    """Streams are lanes with their work; what is derived from them is no work."""
    columns = read_xplane(xspace(GPU), "t")
    assert columns.devices() == ("GPU 0",)
    work = columns.on_device("GPU 0")
    assert busy_of(columns, work)[1:] == (90, 80, 50, 31, 20, 21)
    assert names_of(columns, "device_mark") == {"jit_f(1)": 1, "0": 1}
    assert rows(columns)[0] == (0, 40, Lane("", "thread 1 (python)"), "annotation", "load")


def test_gpu_copies():
    """A copy has its bytes, and its name says between which memories it was."""
    columns = read_xplane(xspace(GPU), "t")
    assert names_of(columns, "h2d") == {"MemcpyH2D (pageable -> device)": 1}
    assert columns.nbytes[columns.of_kind("h2d")].tolist() == [4096]
    assert columns.nbytes[columns.of_kind("memset")].tolist() == [64]
    assert set(columns.nbytes[columns.of_kind("kernel")]) == {NO_BYTES}


def test_gpu_launches():
    """Kernels are linked to the calls of the driver by its numbers; details are their scopes."""
    columns = read_xplane(xspace(GPU), "t")
    found = launches_of(columns, columns.on_device("GPU 0"))
    assert (found.count, found.latency_median_s) == (1, pytest.approx(20e-9))
    (kernel,) = np.flatnonzero(columns.of_kind("kernel"))
    assert columns.details[columns.detail[kernel]] == "jit(f)/forward/dot"


def test_tpu():
    """A TPU's operations are its work, loops around them are not."""
    lines = {
        "XLA Modules": [("jit_f(1)", 0, 100)],
        "XLA Ops": [("while.1", 0, 100), ("fusion.3", 5, 40), ("all-reduce.3", 50, 10)],
        "Async XLA Ops": [("copy-start.2", 20, 60)],
    }
    columns = read_xplane(xspace({"/device:TPU:0": lines}), "t")
    busy = busy_of(columns, columns.on_device("TPU 0"))
    assert (busy.busy_ns, busy.compute_ns, busy.copy_ns, busy.collective_ns) == (75, 40, 60, 10)


def test_modules_alone():
    """A device that shows nothing but its programs has those as work."""
    planes = {"/device:TPU:0": {"XLA Modules": [("jit_f(1)", 0, 100)], "Steps": [("1", 0, 200)]}}
    columns = read_xplane(xspace(planes), "t")
    assert names_of(columns, "device") == {"jit_f(1)": 1}
    assert busy_of(columns, columns.on_device("TPU 0")).span_ns == 100


def test_torch_xla():
    """A recording of torch_xla: steps, annotations, transfers and compilations of the host."""
    events = [
        ("Train_Step", 0, 900, {"step_num": 7}),
        ("fwd", 10, 200),
        ("PjRtComputationClient::Compile", 300, 100),
        ("loss_item", 500, 300),
        ("PjRtComputationClient::TransferFromDevice", 510, 280),
        ("StepMarker", 850, 20),
    ]
    columns = read_xplane(xspace({"/host:CPU": {"python3": events}}), "t")
    assert [row[3] for row in rows(columns)] == [
        *("step", "annotation", "compile", "annotation", "wait", "runtime")
    ]
    assert columns.details[columns.detail[0]] == "7"


def test_jax_without_operations():
    """JAX 0.6 shows no operations, so that the tasks of the threads are the work."""
    pool = "ThreadpoolListener::"
    lines = {
        "python": [
            ("PjRtCpuExecutable::ExecuteHelper", 0, 50),
            (f"{pool}Record", 20, 0, {"_p": 3}),
        ],
        "tf_XLAPjRtCpuClient/-12345678": [
            (f"{pool}StartRegion", 100, 0, {"_c": 3}),
            ("ThunkExecutor::Execute (wait for completion)", 150, 20),
            (f"{pool}StopRegion", 200, 0),
            (f"{pool}StopRegion", 300, 0),
        ],
    }
    columns = read_xplane(xspace({"/host:CPU": lines}), "t")
    lane = Lane(CPU, "XLAPjRtCpuClient 345678")
    assert rows(columns)[-1] == (100, 100, lane, "device", "XLA task")
    assert launches_of(columns, columns.on_device(CPU)).latency_median_s == pytest.approx(100e-9)


def test_threads_of_one_name():
    """Two threads of one name are two lanes."""
    twice = [field(3, message((1, n), (2, "python"), (4, b"\x08\x01"))) for n in (11, 12, 11)]
    names = field(4, message((1, 1), (2, message((1, 1), (2, "load")))))
    data = field(1, field(2, "/host:CPU") + b"".join(twice) + names)
    lanes = Counter(row[2].name for row in rows(read_xplane(data, "t")))
    assert lanes == {"thread 1 (python)": 2, "thread 2 (python)": 1}


def test_impossible_times():
    """Events without a time that can be are left out, and it says how many."""
    events = [("a", 5, 1), ("b", -3, 1), ("c", 5, -1), ("d", 5, 9e15), ("e", 9e15, 1)]
    lines = {"python": events, "late": (2**63 - 1, [("f", 0, 1)])}
    columns = read_xplane(xspace({"/host:CPU": lines}), "t")
    assert names_of(columns) == {"a": 1}
    assert columns.notes == ("5 events without a time that can be left out",)


def test_sums_of_events():
    """An event that stands for several has no time, and is left out."""
    several = message((1, 1), (5, 100), (3, 5000))
    line = field(3, message((2, "python"), (4, several), (4, message((1, 1), (3, 7000)))))
    data = field(1, field(2, "/host:CPU") + line)
    with pytest.raises(UsageError, match="holds no events"):
        read_xplane(data, "t")
    names = field(4, message((1, 1), (2, message((1, 1), (2, "load")))))
    columns = read_xplane(field(1, field(2, "/host:CPU") + line + names), "t")
    assert columns.notes == ("1 event standing for several left out",)


def test_times_since_1970():
    """Times of 10^18 ns are exact; the parts of a nanosecond are cut off."""
    lines = {"python": (10**18 + 7, [("a", 0.999, 1.5), ("b", 3, 2)])}
    columns = read_xplane(xspace({"/host:CPU": lines}, profile_start_time=10**18), "t")
    assert columns.origin_ns == 10**18 + 7
    assert [row[:2] for row in rows(columns)] == [(0, 2), (3, 2)]


def test_times_since_the_start():
    """Times that are relative, as newer profilers write them, are added to the start."""
    lines = {"python": (500, [("a", 0, 10)])}
    columns = read_xplane(xspace({"/host:CPU": lines}, profile_start_time=10**18), "t")
    assert columns.origin_ns == 10**18 + 500


@pytest.mark.parametrize("name", ["x" * 100_000, "<img src=x onerror=alert(1)>", "é\n\t\x00", " "])
def test_any_name(name):
    """Names are kept as they are."""
    columns = read_xplane(xspace({"/host:CPU": {"python": [(name, 0, 1)]}}), "t")
    assert columns.names == (name,)


def test_names_that_are_no_text():
    """Bytes that are no UTF-8 are replaced."""
    data = xspace({"/host:CPU": {"python": [("abc", 0, 1)]}}).replace(b"abc", b"\xff\xfec")
    assert read_xplane(data, "t").names == ("\ufffd\ufffdc",)


def test_unknown_fields_are_skipped():
    """Fields of all wire types that are not known are passed over."""
    extra = field(15, 3) + field(16, "new") + field(17, 1.5) + b"\x95\x01abcd"
    event = message((1, 1), (2, 5000), (3, 7000)) + extra
    line = field(3, field(2, "python") + extra + field(4, event))
    names = field(4, message((1, 1), (2, message((1, 1), (2, "load")) + extra)))
    columns = read_xplane(extra + field(1, extra + field(2, "/host:CPU") + line + names), "t")
    assert rows(columns) == [(0, 7, MAIN, "annotation", "load")]


@pytest.mark.parametrize("large", [2**56 - 1, 2**56, 2**61])
def test_large_numbers(large):
    """Numbers of eight and nine bytes are read as others are."""
    columns = read_xplane(xspace({"/host:CPU": {"python": [("a", 1, large / 1000)]}}), "t")
    assert columns.end_ns[0] == (1000 + round(large / 1000 * 1000)) // 1000 - 1


def test_many_events_and_long_ones():
    """Batches and events of more than 127 bytes make no difference."""
    stats = {f"stat {i}": "text" * 20 for i in range(3)}
    events = [("a", i, 1, stats if i % 1000 == 0 else {"step_num": i}) for i in range(70_000)]
    columns = read_xplane(xspace({"/host:CPU": {"python": events}}), "t")
    assert columns.start_ns.tolist() == list(range(70_000))
    assert columns.details[columns.detail[69_999]] == "69999"
    assert int(columns.of_kind("step").sum()) == 69_930


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", r"^t is empty: record the trace again$"),
        (b"\x0a\x00", r"^t holds no events"),
        (b'{"traceEvents": []}', r"^t is no trace of XLA"),
        (b"\x1f\x8b\x08\x00garbage", r"^t is no trace of XLA"),
        (bytes(range(256)) * 40, r"^t is no trace of XLA"),
        (b"\x10\x05\x18\x07", r"^t holds no events"),
        (field(1, 7), r"^t is no trace of XLA"),
        (field(1, field(2, 7)), r"^t is no trace of XLA"),
        (field(1, field(3, field(4, b"\x12\x01a"))), r"^t is no trace of XLA"),
        (field(1, field(3, field(4, b"\x08" + b"\xff" * 11))), r"^t is no trace of XLA"),
        (field(1, field(3, b"\x22\x05\x08")), r"^t is no trace of XLA"),
    ],
)
def test_no_trace(data, text):
    """What is no trace is refused in one line."""
    with pytest.raises(UsageError, match=text) as error:
        read_xplane(data, "t")
    assert "\n" not in str(error.value)


def test_cut_at_every_seventh_byte():
    """However a small file was cut, there is a result or a UsageError."""
    whole = xspace({**GPU, "/host:metadata": {}}, profile_start_time=10**18)
    results = Counter()
    for at in range(0, len(whole), 7):
        try:
            results[type(read_xplane(whole[:at], "t"))] += 1
        except UsageError:
            results[UsageError] += 1
    assert results[UsageError] > 50
    assert set(results) <= {UsageError, Columns}


def test_changed_at_every_seventh_byte():
    """However a byte was changed, there is a result or a UsageError."""
    whole = bytearray(xspace(GPU, profile_start_time=10**18))
    results = Counter()
    for at in range(0, len(whole), 7):
        for value in (0, 0x7F, 0xFF, whole[at] ^ 1):
            kept, whole[at] = whole[at], value
            try:
                results[type(read_xplane(bytes(whole), "t"))] += 1
            except UsageError:
                results[UsageError] += 1
            whole[at] = kept
    assert set(results) == {UsageError, Columns}


def test_planes_without_lines():
    """A plane that has nothing is passed over."""
    empty = field(1, xplane("/host:nothing", {})) + field(1, xplane("/device:GPU:9", {"a": []}))
    assert read_xplane(empty + xspace(GPU), "t").devices() == ("GPU 0",)
