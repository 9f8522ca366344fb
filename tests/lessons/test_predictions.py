"""predict, reveal and check write to the ledger, and run through without a reader."""

import pytest

from perfkit import check, ledger, predict, reveal
from perfkit.errors import UsageError


def names():
    """The names in the ledger."""
    return [entry.name for entry in ledger.entries()]


def test_prediction_is_kept():
    """A number is kept with its unit and reason, and again with what was measured."""
    predict("t.kept", 3, unit="times", because="a guess")
    revealed = reveal("t.kept", 6.0)
    assert (revealed.value, revealed.measured, revealed.because) == (3.0, 6.0, "a guess")
    assert names() == ["predict t.kept", "predict t.kept"]


def test_no_prediction_runs_through(ledger_file):
    """None is not an answer: nothing is kept, and the reveal shows the measured value alone."""
    predict("t.none", None, unit="s")
    assert reveal("t.none", 2.0).measured == 2.0
    assert not ledger_file.exists()


def test_prediction_outlives_the_kernel():
    """A prediction of an earlier kernel is found in the ledger."""
    from perfkit.lessons import predictions

    predict("t.old", 4, unit="s")
    predictions._said.clear()
    assert reveal("t.old", 8).value == 4.0


@pytest.mark.parametrize("value", ["3", float("nan"), True, [1]])
def test_not_a_number(value):
    """What is no number is refused."""
    with pytest.raises(UsageError, match="not a number"):
        predict("t.bad", value, unit="s")


def test_read_only_folder_warns(monkeypatch, tmp_path):
    """A lesson goes on where the ledger cannot be written, and says so."""
    monkeypatch.setenv("PERFKIT_RESULTS", str(tmp_path))
    with pytest.warns(UserWarning, match="was not kept"):
        predict("t.readonly", 1, unit="s")


def test_check_is_kept():
    """The outcome of a check is in the ledger; a stub is not."""
    check("31.1", list)
    assert names() == ["check 31.1"]
