import json
import random

import pytest
from timeline.traces import TRUTH_US, event, on_host, path_of, real, text_of, thread_names

from perfkit.errors import UsageError
from perfkit.timeline.busy import busy_of
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import KINDS, NO_BYTES, Lane
from perfkit.timeline.files import pieces


def read(events, **rest):
    """Columns of events written as an object."""
    return read_chrome([text_of(events, **rest)], "t.json")


def kinds(columns):
    """Kind of each interval by its name."""
    names = (columns.names[code] for code in columns.name)
    return dict(zip(names, (KINDS[code] for code in columns.kind), strict=True))


def rows(columns):
    """All intervals as plain tuples."""
    return [
        (
            columns.origin_ns + int(columns.start_ns[i]),
            int(columns.end_ns[i] - columns.start_ns[i]),
            columns.lanes[columns.lane[i]],
            KINDS[columns.kind[i]],
            columns.names[columns.name[i]],
            int(columns.nbytes[i]),
            int(columns.link[i]),
        )
        for i in range(len(columns))
    ]


@real
@pytest.mark.parametrize("name", TRUTH_US)
def test_truth_of_real_traces(name):
    """Span, busy and compute of real traces are the truth to 2 µs."""
    columns = read_chrome(pieces(path_of(name)), name)
    (device,) = columns.devices()
    work = columns.on_device(device)
    busy = busy_of(columns, work)
    count, *truth = TRUTH_US[name]
    assert int(work.sum()) == count
    found = [1e-3 * ns for ns in (busy.span_ns, busy.busy_ns, busy.compute_ns)]
    assert found == pytest.approx(truth, abs=2)


@real
def test_real_trace_without_device():
    """A trace of the processor alone has no device."""
    columns = read_chrome(pieces(path_of("cpu-only")), "cpu-only")
    assert columns.devices() == ()
    assert len(columns) == 2467


@real
@pytest.mark.parametrize("size", [10_000, 65_537, 1_000_003])
def test_pieces_do_not_matter(size):
    """However the text is cut into pieces, the columns are the same."""
    text = b"".join(pieces(path_of("alexnet-a100")))
    cut = [text[i : i + size] for i in range(0, len(text), size)]
    assert rows(read_chrome(cut, "t")) == rows(read_chrome([text], "t"))


def test_pieces_inside_nasty_strings():
    """Names that look like the border between two events are not taken for one."""
    events = [event('}, {"ph": "X', i, 1, note=[{"a": 1}, {"b": [{}, {}]}]) for i in range(300)]
    text = text_of(events)
    for size in (97, 1009):
        cut = [text[i : i + size] for i in range(0, len(text), size)]
        assert rows(read_chrome(cut, "t")) == rows(read_chrome([text], "t"))


def test_epoch_times_to_the_nanosecond():
    """Microseconds since 1970 with three decimals are exact, which a float cannot hold."""
    text = b'{"traceEvents": [' + b",".join(
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":17121954955196%02d.%03d,"dur":1.5}'
        % (i, 7 * i)
        for i in range(60)
    )
    columns = read_chrome([text + b"]}"], "t")
    assert columns.start_ns.tolist() == [1000 * i + 7 * i for i in range(60)]
    assert columns.origin_ns == 1712195495519600000


def test_base_time_is_added():
    """Kineto writes times since a base; the origin is since 1970."""
    columns = read([event("k", 5, 1)], baseTimeNanoseconds=1_700_000_000_000_000_000)
    assert columns.origin_ns == 1_700_000_000_000_005_000


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("kernel", "void gemm<float>(int)", "kernel"),
        ("Kernel", "gemm", "kernel"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "collective"),
        ("kernel", "void at::reduce_kernel<512, 1, all_reduce_thing>(int)", "kernel"),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "h2d"),
        ("Memcpy", "Memcpy DtoH (Device -> Pinned)", "d2h"),
        ("gpu_memcpy", "CopyDeviceToHost", "d2h"),
        ("gpu_memcpy", "Memcpy M2D", "h2d"),
        ("gpu_memcpy", "Memcpy PtoP", "d2d"),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("cpu_op", "aten::mm", "op"),
        ("Operator", "aten::mm", "op"),
        ("cuda_runtime", "cudaLaunchKernel", "runtime"),
        ("Runtime", "hipLaunchKernel", "runtime"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "runtime"),
        ("privateuse1_driver", "launch", "runtime"),
        ("cuda_runtime", "cudaDeviceSynchronize", "wait"),
        ("cuda_runtime", "hipMemcpyWithStream", "wait"),
        ("cuda_runtime", "cudaMemcpyAsync", "runtime"),
        ("cuda_sync", "Stream Sync", "device_mark"),
        ("gpu_user_annotation", "forward", "device_mark"),
        ("user_annotation", "forward", "annotation"),
        ("user_annotation", "ProfilerStep#12", "step"),
        ("user_annotation", "step#3", "step"),
        ("python_function", "train.py(3): step", "python"),
        ("python function", "train.py(3): step", "python"),
        ("mtia_ccp_events", "op", "kernel"),
        ("something_new", "?", "host"),
    ],
)
def test_categories(category, name, kind):
    """Categories old and new, of all vendors."""
    assert kinds(read([on_host(name, 0, 1, category)])) == {name: kind}


def test_unknown_work_on_a_stream_is_work():
    """A category that is not known counts as work where the event names its stream."""
    columns = read([event("op", 0, 1, "npu_task", device=2, stream=5)])
    assert kinds(columns) == {"op": "device"}
    assert columns.devices() == ("GPU 2",)


def test_lanes_have_names():
    """Lanes carry the names of the threads, which may come last."""
    events = [event("k", 0, 1, device=3, pid=3), on_host("op", 0, 1)]
    columns = read([*events, *thread_names({(100, 1): "python", (3, 7): "stream 7 "})])
    assert set(columns.lanes) == {Lane("GPU 3", "stream 7"), Lane("", "thread 1 (python)")}


def test_links_and_bytes():
    """Correlation joins a launch and its work; bytes are those of the copy."""
    columns = read(
        [
            on_host("cudaMemcpyAsync", 0, 1, "cuda_runtime", correlation=5),
            event("Memcpy HtoD", 2, 3, "gpu_memcpy", correlation=5, bytes=4096),
        ]
    )
    assert columns.link.tolist() == [5, 5]
    assert columns.nbytes.tolist() == [NO_BYTES, 4096]


def test_begin_and_end_events():
    """Begin and end are paired on each thread, nested ones too; loose ends are counted."""
    halves = [
        ("B", "a", 0),
        ("B", "b", 1),
        ("E", "", 3),
        ("E", "", 9),
        ("E", "", 10),
        ("B", "c", 11),
    ]
    events = [
        {"ph": ph, "name": name, "cat": "cpu_op", "pid": 1, "tid": 1, "ts": ts}
        for ph, name, ts in halves
    ]
    columns = read(events)
    lasting = (columns.end_ns - columns.start_ns).tolist()
    assert list(zip((columns.names[c] for c in columns.name), lasting, strict=True)) == [
        ("a", 9000),
        ("b", 2000),
    ]
    assert len(columns.notes) == 2


def test_list_that_is_not_closed():
    """The format allows a bare list without its end."""
    text = json.dumps([event("k", i, 1) for i in range(5)]).encode()
    assert len(read_chrome([text.rstrip(b"]") + b",\n"], "t")) == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dur", -5),
        ("dur", None),
        ("dur", float("nan")),
        ("dur", float("inf")),
        ("dur", 10**18),
        ("dur", "soon"),
        ("ts", None),
        ("ts", float("nan")),
        ("ts", 10**18),
        ("ts", -(10**30)),
        ("ts", [1]),
        ("args", [1]),
        ("name", None),
        ("pid", {}),
    ],
)
def test_a_bad_event_is_left_out(field, value):
    """One event that cannot be is left out and counted; the others stay."""
    events = [event(f"k{i}", 1000 + 10 * i, 5) for i in range(9)]
    events[4][field] = value
    columns = read(events)
    names = {columns.names[code] for code in columns.name}
    assert names == {f"k{i}" for i in range(9)} - {"k4"}
    assert len(columns.notes) == 1
    assert columns.notes[0].startswith("1 event")


@pytest.mark.parametrize("name", [b"a\\ud800b", b"\\udc00", b"caf\xc3", b"\xff\xfe"])
def test_letters_cut_in_the_middle(name):
    """A name whose last letter was cut, or is no UTF-8, does not cost the trace."""
    text = text_of([event("NAME", 0, 5), event("k", 10, 5)]).replace(b"NAME", name)
    columns = read_chrome([text], "t")
    assert len(columns) == 2 and "\ufffd" in columns.names[0]


def test_numbers_as_text():
    """Some writers put numbers into quotes."""
    events = [event("k", "12.5", "3", correlation="7", bytes="64")]
    assert rows(read(events))[0] == (12500, 3000, Lane("GPU 0", "stream 7"), "kernel", "k", 64, 7)


def test_all_times_may_be_huge():
    """Where all times are near 10^18 µs, they are what the clock says."""
    columns = read([event("a", 10**18, 5), event("b", 10**18 + 10, 5)])
    assert columns.start_ns.tolist() == [0, 10_000]
    assert columns.origin_ns == 10**21


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"hello", "is not a trace"),
        (b"\x00" * 4000, "is not a trace"),
        (b'{"a": 1}', "is not a trace"),
        (b'{"traceEvents": 3}', "is not a trace"),
        (b'{"traceEvents": {"a": [1]}}', "is not a trace"),
        (b'{"traceEvents": []}', "holds no events"),
        (b"[]", "holds no events"),
        (b"[1, 2, 3]", "holds no events"),
        (b'{"traceEvents": [{"ph": "X", "na', "ends in the middle"),
        (b'{"traceEvents": [{"ph":"X","name":"k","cat":"kernel","ts":1,"dur":2}', "is damaged"),
    ],
)
def test_what_is_no_trace(text, words):
    """One line: what, and what to do."""
    with pytest.raises(UsageError, match=words) as caught:
        read_chrome([text] if text else [], "my.json")
    assert str(caught.value).startswith("my.json")
    assert "\n" not in str(caught.value)


def test_cut_anywhere():
    """A trace that is cut at any place is refused in one line, never read in part unsaid."""
    text = text_of([event("k", i, 1, note="a") for i in range(20)])
    for end in random.Random(3).sample(range(1, len(text) - 1), 60):
        with pytest.raises(UsageError):
            read_chrome([text[:end]], "t")


def test_names_stay_as_they_are():
    """HTML and 100 kB of text in a name are kept: showing them safely is the view's task."""
    nasty = "<script>alert(1)</script>" + "x" * 100_000
    columns = read([event(nasty, 0, 1)])
    assert columns.names == (nasty,)


def test_old_profiler_without_categories():
    """PyTorch before Kineto named processes instead."""
    events = [
        {
            "ph": "X",
            "name": "gemm",
            "pid": "CUDA functions",
            "tid": 0,
            "ts": 5,
            "dur": 2,
            "args": {},
        },
        {"ph": "X", "name": "mm", "pid": "CPU functions", "tid": 1, "ts": 0, "dur": 9, "args": {}},
    ]
    assert kinds(read(events)) == {"gemm": "kernel", "mm": "op"}
