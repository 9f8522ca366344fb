"""What a person says of a tier: parsed, kept, and applied to the row that it is about."""

import json

import pytest

from perfkit import ledger
from perfkit.errors import UsageError
from perfkit.records.tiers import Tier
from perfkit.tiers import answers
from perfkit.tiers.answers import applied, parse

ROW = Tier(name="scratch", kind="storage", path="/scratch", read_Bps=1e9)


def keep(text):
    """Keep an answer as it is typed."""
    answers.keep(parse(text))


def test_both_fields():
    """One answer may say both; what is not said stays open."""
    both = parse("/data:persistent=yes,shared=partly")
    assert (both.path, both.persistent, both.shared) == ("/data", "yes", "partly")
    assert parse("/data:shared=no").persistent is None


def test_colons_in_a_path():
    """Only the last colon divides."""
    assert parse("/data:1/x y:shared=no").path == "/data:1/x y"


@pytest.mark.parametrize(
    "text",
    [
        "/data",
        "/data:",
        ":persistent=yes",
        " :persistent=yes",
        "persistent=yes",
        "/data:persistent",
        "/data:persistent=",
        "/data:persistent=maybe",
        "/data:fast=yes",
        "/data:persistent=yes,,shared=no",
        "/data:persistent=yes;shared=no",
    ],
)
def test_bad_answers(text):
    """What is no answer is one line with the right form or the words that are known."""
    with pytest.raises(UsageError) as found:
        parse(text)
    assert len(str(found.value).splitlines()) == 1
    assert "persistent" in str(found.value)


def test_applied_by_path():
    """An answer changes the row of its path, is marked as yours, and no other row."""
    keep("/scratch:persistent=yes")
    row = applied(ROW)
    assert (row.persistent, row.shared, row.filled_in) == ("yes", "unknown", ("persistent",))
    assert row.read_Bps == ROW.read_Bps
    other = Tier(name="home", kind="storage", path="/home")
    assert applied(other) == other


def test_newest_counts():
    """Of several answers the newest counts, each field by itself."""
    for text in ("persistent=yes,shared=no", "persistent=no", "shared=partly"):
        keep(f"/scratch:{text}")
    row = applied(ROW)
    assert (row.persistent, row.shared) == ("no", "partly")
    assert row.filled_in == ("persistent", "shared")


def test_nothing_said():
    """Without answers a row stays as it is."""
    assert applied(ROW) is ROW


def test_other_lines_in_the_ledger(ledger_file):
    """Broken answers and other records in the ledger are passed over."""
    keep("/scratch:shared=yes")
    with ledger_file.open("a") as file:
        for record in ({"record": "TierAnswer", "path": "/scratch", "shared": "?"}, [], 3):
            file.write(json.dumps({"name": answers.NAME, "at": "", "record": record}) + "\n")
        file.write("half a li")
    assert len(list(ledger.entries(answers.NAME))) == 4
    assert applied(ROW).shared == "yes"


@pytest.mark.parametrize("form", ["{}/", "{}/.", "{}/../disk", "{}-link"])
def test_same_folder_by_another_name(tmp_path, form):
    """An answer for a folder's other names is one for the folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    (tmp_path / "disk-link").symlink_to(folder)
    keep(form.format(folder) + ":shared=yes")
    assert applied(Tier(name="x", kind="storage", path=str(folder))).shared == "yes"


def test_home(tmp_path, monkeypatch):
    """A path from ~ is that in your home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    keep("~:persistent=yes")
    assert applied(Tier(name="home", kind="storage", path=str(tmp_path))).persistent == "yes"


def test_page_cache_stays_memory():
    """That a disk persists does not make its page cache persist."""
    keep("/scratch:persistent=yes,shared=yes")
    cache = Tier(
        name="page cache of x", kind="cache", path="/scratch", persistent="no", shared="no"
    )
    assert applied(cache) == cache
