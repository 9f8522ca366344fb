"""What a LineProfile derives from its rows, and what it refuses to hold."""

import math

import msgspec
import pytest

from perfkit import machine
from perfkit.errors import UsageError
from perfkit.records.base import Quality
from perfkit.records.lines import Function, LineProfile, Loop, Statement
from perfkit.records.timing import Timing


def statement(**changed):
    """A row."""
    fields = {
        "function": "f",
        "line": 3,
        "end_line": 3,
        "source": "x = 1",
        "hits": 1,
        "time_s": 0.5,
        "self_s": 0.5,
        "share": 0.5,
        "uncertainty": 0.04,
    }
    return Statement(**fields | changed)


def profile(*statements, **changed):
    """A LineProfile of these rows."""
    fields = {
        "mode": "bursts",
        "wall_s": 1.0,
        "elapsed_s": 1.2,
        "statements": statements,
        "machine": machine(),
        "quality": Quality(),
    }
    return LineProfile.of(**fields | changed)


@pytest.mark.parametrize(
    ("share", "bound"), [(0.0, 1.0), (0.5, 2.0), (0.75, 4.0), (0.3, 1 / 0.7), (1.0, None)]
)
def test_bound(share, bound):
    """What a row could win at most is 1 / (1 - share), without limit where it is all there is."""
    assert statement(share=share).bound == bound


def test_speed_up():
    """A row that gets faster wins what Amdahl says, and less if it gets slower."""
    row = statement(share=0.5)
    assert row.speed_up(2) == pytest.approx(4 / 3)
    assert row.speed_up(1) == 1 and row.speed_up(0.5) == pytest.approx(2 / 3)
    assert row.speed_up(math.inf) == row.bound
    assert statement(share=1.0).speed_up(10) == pytest.approx(10)


@pytest.mark.parametrize("factor", [0, -1, math.nan])
def test_speed_up_by_nonsense(factor):
    """A factor that is not above 0 is refused in one line."""
    with pytest.raises(UsageError, match="give a number above 0") as caught:
        statement().speed_up(factor)
    assert "\n" not in str(caught.value)


def test_overhead():
    """The slow-down is the run with us over the run without, and unknown for a run of no time."""
    assert profile().overhead == pytest.approx(1.2)
    assert profile(wall_s=0.0).overhead is None


def test_at():
    """A row is found by any of its lines, of several functions the hottest unless one is named."""
    cold = statement(line=3, end_line=6, time_s=0.1)
    hot = statement(function="g", line=5, end_line=5, time_s=0.4)
    record = profile(cold, hot)
    assert record.at(3) == cold and record.at(6) == cold
    assert record.at(5) == hot and record.at(5, "f") == cold


@pytest.mark.parametrize("where", [(9,), (3, "g")])
def test_at_a_line_without_a_row(where):
    """A line that has no row is said in one line."""
    with pytest.raises(UsageError, match="no statement on line") as caught:
        profile(statement()).at(*where)
    assert "\n" not in str(caught.value)


def test_json_round_trip():
    """A record with all of its parts comes back from its JSON as it was, on one line."""
    row = statement(
        hits_exact=False,
        raw_s=0.7,
        loop=2,
        tight=True,
        host_s=0.1,
        device_s=0.2,
        host_bytes=-8,
        host_peak_bytes=8,
        device_bytes=-1,
        notes=("a note",),
        source="x = '<b> 漢 \\n'",
    )
    place = {"line": 2, "time_s": 0.5, "share": 0.5}
    record = profile(
        row,
        functions=(Function(name="f", **place),),
        loops=(Loop(function="f", end_line=3, uncertainty=0.04, tight=True, **place),),
        stopped="an error",
        plain_s=0.9,
    )
    assert LineProfile.from_json(record.to_json()) == record
    assert "\n" not in record.to_json()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["time_s", "self_s", "share", "uncertainty", "raw_s", "host_s"])
def test_no_impossible_rows(field, bad):
    """A row with a NaN, an infinite or a negative time or share is in no record."""
    with pytest.raises(msgspec.ValidationError, match="float"):
        profile(statement(**{field: bad}))


@pytest.mark.parametrize(
    "changed", [{"share": 1.01}, {"uncertainty": 1.01}, {"hits": -1}, {"line": -1}], ids=str
)
def test_no_shares_above_one(changed):
    """Shares end at 1, and counts begin at 0."""
    with pytest.raises(msgspec.ValidationError):
        profile(statement(**changed))


@pytest.mark.parametrize("changed", [{"wall_s": -1.0}, {"mode": "fast"}, {"ticks": -1}], ids=str)
def test_no_impossible_profiles(changed):
    """A profile with a negative time, an unknown mode or a negative count is refused."""
    with pytest.raises(msgspec.ValidationError):
        profile(statement(), **changed)


def test_records_do_not_change():
    """A record and its rows are never changed."""
    record = profile(statement())
    with pytest.raises(AttributeError):
        record.wall_s = 2.0
    with pytest.raises(AttributeError):
        record.statements[0].hits = 2


def test_other_json_is_refused():
    """JSON of another record is not read as a LineProfile, nor the other way round."""
    with pytest.raises(msgspec.ValidationError):
        LineProfile.from_json(machine().to_json())
    with pytest.raises(msgspec.ValidationError):
        Timing.from_json(profile().to_json())
