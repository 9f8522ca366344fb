"""Unions, gaps and cover against counting in whole numbers."""

import random

import pytest

from perfkit.intervals import KINDS, Interval, Intervals, covered_s, merged

SEEDS = range(60)
END = 60


def some(seed, most=12):
    """Random intervals between whole numbers, some of them touching, nested or empty."""
    rng = random.Random(seed)
    rows = []
    for _ in range(rng.randint(1, most)):
        start = rng.randrange(END)
        end = rng.randint(start, min(END, start + 15))
        kind = rng.choice(("kernel", "h2d", "d2h"))
        rows.append(Interval(start, end, f"lane {rng.randrange(3)}", kind, "name", end - start))
    return rows


def cells(rows):
    """The unit steps that the intervals cover, counted one by one."""
    return {step for row in rows for step in range(int(row.start_s), int(row.end_s))}


@pytest.mark.parametrize("seed", SEEDS)
def test_busy_is_the_union(seed):
    """Busy time is the number of steps in which any lane is at work."""
    rows = some(seed)
    assert Intervals(rows).busy_s() == len(cells(rows))


@pytest.mark.parametrize("seed", SEEDS)
def test_busy_of_a_kind(seed):
    """Busy time of one kind counts the steps of that kind alone."""
    rows = some(seed)
    columns = Intervals(rows)
    copies = [row for row in rows if row.kind in ("h2d", "d2h")]
    assert columns.busy_s(columns.of_kind("h2d", "d2h")) == len(cells(copies))


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_are_the_rest(seed):
    """Gaps and busy time share the span out between them, without overlap."""
    rows = some(seed)
    columns = Intervals(rows)
    starts, ends = columns.gaps()
    first, last = min(row.start_s for row in rows), max(row.end_s for row in rows)
    idle = {step for a, b in zip(starts, ends, strict=True) for step in range(int(a), int(b))}
    assert idle == set(range(first, last)) - cells(rows)
    assert columns.span_s() == last - first and (ends > starts).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_covered_in_a_window(seed):
    """Cover of a window is the number of its steps that the spans cover."""
    rows = some(seed)
    rng = random.Random(seed)
    start, end = sorted((rng.randrange(END), rng.randrange(END)))
    spans = [(row.start_s, row.end_s) for row in rows]
    assert covered_s(spans, start, end) == len(cells(rows) & set(range(start, end)))


@pytest.mark.parametrize("seed", SEEDS)
def test_merged_is_disjoint(seed):
    """Merged stretches are in order, apart from one another, and cover the same steps."""
    columns = Intervals(some(seed))
    starts, ends = merged(columns.start_s, columns.end_s)
    assert (ends[:-1] < starts[1:]).all()
    again = [Interval(a, b, "") for a, b in zip(starts, ends, strict=True)]
    assert cells(again) == cells(some(seed))


def test_touching_intervals_join():
    """Intervals that touch leave no gap."""
    columns = Intervals([Interval(0, 1, "a"), Interval(1, 2, "b")])
    assert [len(part) for part in columns.gaps()] == [0, 0]
    assert columns.busy_s() == columns.span_s() == 2


def test_nested_intervals_count_once():
    """An interval inside another adds nothing, even if a third starts after it."""
    columns = Intervals([Interval(0, 10, "a"), Interval(2, 3, "b"), Interval(5, 6, "a")])
    assert columns.busy_s() == 10 and len(columns) == 3


def test_no_intervals():
    """Nothing has no span, no busy time and no gaps."""
    columns = Intervals([])
    assert columns.span_s() is None and columns.busy_s() == 0 and len(columns) == 0
    assert [len(part) for part in columns.gaps()] == [0, 0]
    assert covered_s([], 0, 5) == 0


def test_columns_are_sorted():
    """Rows given in any order lie by start, and codes lead back to lanes and names."""
    rows = some(3)
    columns = Intervals(rows[::-1])
    back = [
        Interval(*times, columns.lanes[lane], KINDS[kind], columns.names[name], nbytes)
        for *times, lane, kind, name, nbytes in zip(
            columns.start_s,
            columns.end_s,
            columns.lane,
            columns.kind,
            columns.name,
            columns.nbytes,
            strict=True,
        )
    ]
    assert back == sorted(rows)
    assert len(set(columns.lanes)) == len(columns.lanes)


def test_unknown_kind():
    """A kind that is not in the list is an error, not a new kind."""
    with pytest.raises(ValueError):
        Intervals([Interval(0, 1, "a", "colour")])


def test_iterator_of_rows():
    """Rows may come from a generator."""
    assert len(Intervals(row for row in some(1))) == len(some(1))


def test_large_byte_counts():
    """Bytes beyond 32 bits are kept."""
    columns = Intervals([Interval(0, 1, "a", "h2d", "copy", 2**40)])
    assert columns.nbytes[0] == 2**40
