"""The figures of a report, on traces whose truth can be counted by hand."""

import numpy as np
import pytest
from timeline.traces import event, on_host, path_of, real, text_of

from perfkit.errors import UsageError
from perfkit.intervals import Interval, Intervals
from perfkit.timeline.busy import Union, busy_of
from perfkit.timeline.chrome import read_chrome
from perfkit.timeline.columns import Columns, Event, Lane
from perfkit.timeline.files import pieces
from perfkit.timeline.launches import is_waited_for, launch_rows, launches_of
from perfkit.timeline.steps import parse_range, step_table, steps_in
from perfkit.timeline.tables import compile_table, copy_table, kernel_table, operator_table


def read(*events):
    """Columns of a trace by hand."""
    return read_chrome([text_of(list(events))], "t.json")


def test_busy_is_a_union():
    """Overlapping streams count once; hidden is what ran under computing."""
    columns = read(
        event("gemm", 0, 10, tid=7),
        event("gemm", 5, 10, tid=8),
        event("nccl_all_reduce", 12, 8, tid=9),
        event("Memcpy HtoD", 30, 5, "gpu_memcpy", tid=9),
        event("Stream Sync", 0, 100, "cuda_sync", tid=9),
    )
    busy = busy_of(columns, columns.on_device("GPU 0"))
    assert busy == (0, 35_000, 25_000, 15_000, 5_000, 8_000, 3_000)


def test_busy_agrees_with_counting(seed=5):
    """The union of many random intervals is what counting each nanosecond gives."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, 3000, 400)
    ends = starts + random.integers(0, 20, 400)
    lanes = [Lane("GPU 0", f"stream {i % 3}") for i in range(400)]
    columns = Columns.of(
        Event(int(a), int(b), lane, "kernel", "k")
        for a, b, lane in zip(starts, ends, lanes, strict=True)
    )
    covered = np.zeros(3100, dtype=bool)
    for a, b in zip(starts, ends, strict=True):
        covered[a:b] = True
    assert busy_of(columns, columns.on_device("GPU 0")).busy_ns == covered.sum()


def test_union_until():
    """How much lies before a time, inside a stretch, between two, before and after all."""
    union = Union(np.array([10, 40]), np.array([20, 50]))
    assert union.until(np.array([0, 10, 15, 20, 30, 45, 99])).tolist() == [0, 0, 5, 10, 10, 15, 20]


def test_steps_last_until_the_next():
    """What happens between two marks belongs to the step before; the last ends by itself."""
    columns = read(
        on_host("ProfilerStep#7", 0, 10, "user_annotation"),
        on_host("ProfilerStep#8", 15, 10, "user_annotation"),
        event("gemm", 12, 2),
        event("gemm", 20, 2),
    )
    marks = steps_in(columns)
    steps = step_table(marks, Union(np.array([12_000]), np.array([14_000])), marks.start_ns, [])
    assert [(s.number, round(1e6 * s.duration_s), round(1e6 * s.busy_s)) for s in steps] == [
        (7, 15, 2),
        (8, 10, 0),
    ]
    assert [s.blocking_copies for s in steps] == [1, 1]


def test_outlier_is_named():
    """One step of three times the length stands out; jitter of some percent does not."""
    length = [100, 103, 98, 101, 300, 99, 104, 97]
    starts = np.cumsum([0, *length[:-1]])
    columns = read(
        *(
            on_host(f"step#{i}", int(a), d, "user_annotation")
            for i, (a, d) in enumerate(zip(starts, length, strict=True))
        )
    )
    none = np.array([], dtype=int)
    table = step_table(steps_in(columns), None, none, none)
    assert [s.number for s in table if s.outlier] == [4]


def test_series_with_most_steps_is_taken():
    """The profiler's own steps stand beside the user's; another thread repeats some."""
    events = [on_host(f"step#{i}", 10 * i, 9, "user_annotation") for i in range(6)]
    events += [on_host("ProfilerStep#0", 0, 60, "user_annotation")]
    events += [on_host(f"step#{i}", 10 * i, 9, "user_annotation", tid=2) for i in range(3)]
    assert steps_in(read(*events)).numbers == list(range(6))


@pytest.mark.parametrize("text", ["", "a", "3:", ":3", "3:b", "-1", "1:2:3"])
def test_ranges_of_steps(text):
    """A range that is none gets one line."""
    with pytest.raises(UsageError, match="3:5"):
        parse_range(text)
    assert parse_range("3:5") == (3, 5)
    assert parse_range("4") == (4, 4)


def test_launch_of_reused_ids():
    """A link that stands on several calls means the last that began before the work."""
    columns = read(
        on_host("cudaLaunchKernel", 0, 1, "cuda_runtime", correlation=5),
        on_host("cudaLaunchKernel", 100, 1, "cuda_runtime", correlation=5),
        event("first", 10, 1, correlation=5),
        event("second", 110, 1, correlation=5),
        event("alone", 120, 1, correlation=9),
    )
    by = launch_rows(columns, columns.on_device("GPU 0"))
    assert [None if row < 0 else int(columns.start_ns[row]) for row in by] == [0, 100_000, None]


def test_latency_and_depth():
    """Three launches in a row before the first starts: the queue was two deep at the third."""
    calls = [on_host("cudaLaunchKernel", i, 1, "cuda_runtime", correlation=i + 1) for i in range(3)]
    work = [event("k", 10 + 10 * i, 10, correlation=i + 1) for i in range(3)]
    columns = read(*calls, *work)
    found = launches_of(columns, columns.on_device("GPU 0"))
    assert (found.count, found.depth_max) == (3, 2)
    assert found.latency_median_s == pytest.approx(19e-6)


def test_blocking_copies():
    """A copy is waited for if the next call waits, or its memory is pageable."""
    columns = read(
        on_host("cudaMemcpyAsync", 0, 1, "cuda_runtime", correlation=1),
        on_host("cudaStreamSynchronize", 2, 9, "cuda_runtime", correlation=2),
        event("Memcpy DtoH (Device -> Pinned)", 3, 1, "gpu_memcpy", correlation=1),
        on_host("cudaMemcpyAsync", 20, 1, "cuda_runtime", correlation=3),
        on_host("cudaLaunchKernel", 22, 1, "cuda_runtime", correlation=4),
        event("Memcpy DtoH (Device -> Pinned)", 23, 1, "gpu_memcpy", correlation=3),
        on_host("cudaMemcpyAsync", 30, 1, "cuda_runtime", correlation=5),
        event("Memcpy DtoH (Device -> Pageable)", 33, 1, "gpu_memcpy", correlation=5),
    )
    assert is_waited_for(columns, columns.of_kind("d2h")).tolist() == [True, False, True]
    (row,) = copy_table(columns, "GPU 0")
    assert (row.count, row.blocking, row.nbytes) == (3, 2, None)


def test_kernel_table():
    """Work by name and kind, most time first; shares sum to one."""
    columns = read(event("a", 0, 1), event("b", 5, 6), event("a", 20, 2))
    table = kernel_table(columns, "GPU 0")
    assert [(row.name, row.count, round(1e6 * row.total_s)) for row in table] == [
        ("b", 1, 6),
        ("a", 2, 3),
    ]
    assert sum(row.share for row in table) == pytest.approx(1)


def test_self_time():
    """An operator's own time is without what it calls; siblings and threads do not mix."""
    columns = read(
        on_host("outer", 0, 100),
        on_host("inner", 10, 30),
        on_host("leaf", 15, 5),
        on_host("inner", 50, 20),
        on_host("cudaLaunchKernel", 80, 5, "cuda_runtime"),
        on_host("other", 0, 100, tid=2),
    )
    own = {row.name: round(1e6 * row.self_s) for row in operator_table(columns)}
    assert own == {"other": 100, "outer": 45, "inner": 45, "leaf": 5}


@real
def test_self_time_adds_up_on_a_real_trace():
    """Own times of operators sum to no more than the time their threads were in any."""
    columns = read_chrome(pieces(path_of("cpu-only")), "t")
    total = sum(row.self_s for row in operator_table(columns))
    assert 0 < total <= 1e-9 * int(columns.end_ns.max()) * len(columns.lanes)


def test_compilations_count_once():
    """What a compilation calls is part of it."""
    lane = Lane("", "main")
    columns = Columns.of(
        [
            Event(0, 100, lane, "compile", "jit_f", detail="f32[8]"),
            Event(10, 50, lane, "compile", "backend_compile"),
            Event(200, 220, lane, "compile", "jit_f", detail="f32[9]"),
        ]
    )
    (row,) = compile_table(columns)
    assert (row.name, row.count, row.shapes) == ("jit_f", 2, ("f32[8]", "f32[9]"))


def test_merged_traces_share_one_axis():
    """Two traces on one clock: links do not mix, lanes of one name are one lane."""
    one = Columns.of([Event(100, 110, Lane("a", "x"), "kernel", "k", link=1)], source="one")
    two = Columns.of([Event(50, 60, Lane("a", "x"), "kernel", "k", link=1)], source="two")
    both = Columns.merged([one, Columns.of([]), two])
    assert both.start_ns.tolist() == [0, 50]
    assert both.lanes == (Lane("a", "x"),)
    assert len(set(both.link.tolist())) == 2
    assert (both.origin_ns, both.source) == (50, "one, two")


def test_columns_refuse_what_ends_before_it_starts():
    """An event that ends before it starts is named."""
    with pytest.raises(UsageError, match="'k' ends before"):
        Columns.of([Event(5, 4, Lane("", "x"), "op", "k")])


def test_intervals_and_columns_agree():
    """The timing's intervals and the timeline's columns have the same union."""
    rows = [(0, 10), (5, 20), (30, 31)]
    own = Intervals([Interval(a, b, "x") for a, b in rows])
    columns = Columns.of(Event(a, b, Lane("d", "x"), "kernel", "k") for a, b in rows)
    assert own.busy_s() == busy_of(columns, columns.on_device("d")).busy_ns
