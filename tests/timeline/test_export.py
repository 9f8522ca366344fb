"""Columns as Chrome's JSON: read again they are the same; others find what they look for."""

import json

import pytest
from timeline.planted import planted
from timeline.traces import path_of, real

from perfkit.records.base import Quality
from perfkit.records.timeline import DeviceTimeline, Gap, TimelineReport
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, Columns, Event, Lane
from perfkit.timeline.export import chrome_json
from perfkit.timeline.files import pieces

ORIGIN_NS = 1_712_195_495_519_689_047
STREAM, MAIN = Lane("GPU 1", "stream 7"), Lane("", "thread 42 (main)")
ON_DEVICE = (*DEVICE_KINDS, "device_mark")
COLUMNS = ("start_ns", "end_ns", "nbytes", "link")


def rows(columns):
    """All that columns say, in words, and where they begin."""
    words = [
        (columns.lanes[lane], KINDS[kind], columns.names[name], columns.details[detail])
        for lane, kind, name, detail in zip(
            columns.lane, columns.kind, columns.name, columns.detail, strict=True
        )
    ]
    figures = [getattr(columns, name).tolist() for name in COLUMNS]
    return columns.origin_ns, list(zip(words, *figures, strict=True))


def again(columns, report=None):
    """Columns that were written and read."""
    return read_chrome([chrome_json(columns, report)], "written")


def document(columns, report=None):
    """What was written, as any reader of JSON has it."""
    return json.loads(chrome_json(columns, report))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["odd", "ncclAllReduce", "cudaStreamSynchronize", "train#7"])
def test_nothing_is_lost(kind, name):
    """An interval of any kind and name comes back to the nanosecond, with all that it has."""
    lane = STREAM if kind in ON_DEVICE else MAIN
    event = Event(ORIGIN_NS, ORIGIN_NS + 1_234_567, lane, kind, name, 4096, 12, "[64, 64]")
    columns = Columns.of([event, event._replace(start_ns=ORIGIN_NS + 1, nbytes=-1, detail="")])
    assert rows(again(columns)) == rows(columns)


@pytest.mark.parametrize("seed", range(4))
def test_loops_come_back(seed):
    """Whole training loops come back, with several threads, streams and devices."""
    columns = planted("host late", "blocking copy", "waiting on a stream", seed=seed).columns
    assert rows(again(columns)) == rows(columns)


@real
@pytest.mark.parametrize("name", ["training-v100-ns", "alexnet-a100", "event-sync-a100"])
def test_real_traces_come_back(name):
    """Traces that PyTorch wrote come back as they were read."""
    columns = read_chrome(pieces(path_of(name)), name)
    assert rows(again(columns)) == rows(columns)


@pytest.mark.parametrize(
    "name", ['"quoted" \\ <b>', "line\nbreak\ttab", "null\x00 and \x7f", "日本 🙂", "x" * 100_000]
)
def test_any_name_is_json(name):
    """A name may hold anything that text can hold."""
    columns = Columns.of([Event(0, 5, MAIN, "op", name)])
    assert again(columns).names == (name,)
    assert not set(range(0x20)) - {0x0A} & set(chrome_json(columns))


def test_half_a_surrogate_is_replaced():
    """What is no text does not make the file unreadable."""
    columns = Columns.of([Event(0, 5, MAIN, "op", "half \ud800")])
    assert again(columns).names == ("half ?",)


def test_categories_are_kinetos():
    """What Kineto has a category for is written with it; the rest with one of ours."""
    kinds = {"kernel": "gemm", "h2d": "Memcpy HtoD", "d2d": "move", "op": "aten::mm"}
    kinds |= {"runtime": "cudaLaunchKernel", "wait": "clFinish", "python": "train.py(3): f"}
    columns = Columns.of(
        Event(0, 5, STREAM if kind in ON_DEVICE else MAIN, kind, name)
        for kind, name in kinds.items()
    )
    found = {e["name"]: e["cat"] for e in document(columns)["traceEvents"] if e["ph"] == "X"}
    assert found == {
        "gemm": "kernel",
        "Memcpy HtoD": "gpu_memcpy",
        "move": "gpu_memcpy",
        "aten::mm": "cpu_op",
        "cudaLaunchKernel": "cuda_runtime",
        "clFinish": "perfkit.wait",
        "train.py(3): f": "python_function",
    }


def test_places_have_names():
    """Each device is a process and each lane a thread; numbers in their names are kept."""
    other = Lane("", "process 9, thread 3 (loader)")
    columns = Columns.of(Event(0, 5, lane, "op", "x") for lane in (MAIN, other))
    columns = Columns.merged([columns, Columns.of([Event(0, 5, STREAM, "kernel", "k")])])
    meta = [e for e in document(columns)["traceEvents"] if e["ph"] == "M"]
    processes = {e["args"]["name"]: e["pid"] for e in meta if e["name"] == "process_name"}
    threads = {e["args"]["name"]: (e["pid"], e["tid"]) for e in meta if e["name"] == "thread_name"}
    assert processes["GPU 1"] not in (9, processes["host"])
    assert threads["thread 3 (loader)"] == (9, 3)
    assert threads["thread 42 (main)"][1] == 42
    assert threads["stream 7"] == (processes["GPU 1"], 7)


def test_lanes_stay_apart():
    """Two lanes whose names begin with the same number are two threads."""
    lanes = [Lane("", "thread 1 (a)"), Lane("", "thread 1 (b)")]
    columns = Columns.of(Event(0, 5, lane, "op", "x") for lane in lanes)
    assert set(again(columns).lanes) == set(lanes)


def test_arrows_join_launch_and_work():
    """An arrow begins where the launching call begins, and ends where its work begins."""
    columns = Columns.of(
        [
            Event(1000, 3000, MAIN, "runtime", "cudaLaunchKernel", link=5),
            Event(7000, 9000, STREAM, "kernel", "gemm", link=5),
            Event(9500, 9900, STREAM, "kernel", "launched by nobody"),
        ]
    )
    arrows = [e for e in document(columns)["traceEvents"] if e["ph"] in "sf"]
    assert [(e["ph"], e["ts"], e["tid"], e["id"]) for e in arrows] == [
        ("s", 0, 42, 0),
        ("f", 6, 7, 0),
    ]


def test_gaps_are_a_thread_beside():
    """With a report, its gaps are shown with their causes, and are no work when read again."""
    columns = Columns.of(
        [Event(0, 10, STREAM, "kernel", "a"), Event(90, 99, STREAM, "kernel", "b")]
    )
    gap = Gap(start_s=10e-9, duration_s=80e-9, cause="host late", host="log_step", step=3)
    seconds = ("start_s", "span_s", "busy_s", "idle_s", "compute_s", "non_compute_s", "copy_s")
    device = DeviceTimeline(
        name="GPU 1", duty_cycle=0.2, intervals=2, gaps=(gap,), collective_s=0.0, hidden_s=0.0,
        **dict.fromkeys(seconds, 1e-9),
    )  # fmt: skip
    report = TimelineReport.of(devices=(device,), quality=Quality())
    shown = [e for e in document(columns, report)["traceEvents"] if e.get("cat") == "Trace"]
    assert [(e["name"], e["ts"], e["dur"]) for e in shown] == [("host late: log_step", 0.01, 0.08)]
    assert rows(again(columns, report)) == rows(columns)


def test_nothing_to_write():
    """Columns without an interval are a trace without events."""
    assert document(Columns.of([]))["traceEvents"] == []
