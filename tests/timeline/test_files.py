import gzip
import os
import random

import pytest
from timeline.traces import event, text_of, write

from perfkit.errors import UsageError
from perfkit.timeline import files
from perfkit.timeline.files import find_trace, is_xplane, pieces, whole


def text(count=2000):
    """A trace of some length."""
    return text_of([event(f"kernel {i}", i, 1) for i in range(count)])


def test_plain_and_compressed_are_the_same(tmp_path):
    """Gzip is told by its first bytes, not by the name."""
    for name, data in (("a.json", text()), ("b.json", gzip.compress(text()))):
        (tmp_path / name).write_bytes(data)
    assert whole(tmp_path / "a.json") == whole(tmp_path / "b.json") == text()


def test_members_and_padding(tmp_path):
    """Several gzip members are one text; zeros behind the last are padding."""
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 512)
    assert whole(path) == b"one two"


def test_compressed_file_cut_anywhere(tmp_path):
    """A gzip file that is cut off is refused in one line."""
    data = gzip.compress(text())
    path = tmp_path / "t.json.gz"
    for end in random.Random(1).sample(range(3, len(data) - 1), 20):
        path.write_bytes(data[:end])
        with pytest.raises(UsageError, match=r"cut off|damaged") as caught:
            whole(path)
        assert "\n" not in str(caught.value)


def test_damaged_gzip(tmp_path):
    """A flipped byte is said."""
    data = bytearray(gzip.compress(text()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(bytes(data))
    with pytest.raises(UsageError, match="damaged"):
        whole(path)


def test_bomb_is_capped_and_read_in_pieces(tmp_path, monkeypatch):
    """A small file that unpacks to more than the cap is refused, a piece at a time until then."""
    monkeypatch.setattr(files, "MOST_TEXT", 64 * 2**20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(100 * 2**20), 9))
    longest = 0
    with pytest.raises(UsageError, match="more than"):
        for piece in pieces(path):
            longest = max(longest, len(piece))
    assert 0 < longest <= files.PIECE


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no trace"),
        (lambda path: os.mkfifo(path), "is no file"),
    ],
)
def test_what_is_no_file(tmp_path, make, words):
    """One line for what is not there, an empty folder, and what is no file."""
    path = tmp_path / "it"
    make(path)
    with pytest.raises(UsageError, match=words):
        find_trace(path)


def test_folder_means_its_newest_trace(tmp_path):
    """JAX writes folders: the newest recording below is taken, the binary form before its JSON."""
    for age, name in ((9, "old"), (1, "new")):
        folder = tmp_path / "plugins" / "profile" / name
        folder.mkdir(parents=True)
        for file in ("vm.xplane.pb", "vm.trace.json.gz"):
            (folder / file).write_bytes(b"x")
            os.utime(folder / file, (1e9 - age, 1e9 - age))
    assert find_trace(tmp_path) == tmp_path / "plugins" / "profile" / "new" / "vm.xplane.pb"


def test_what_is_binary(tmp_path):
    """JSON is told from XLA's form by its first bytes where the name does not say it."""
    json = write(tmp_path / "a.dat", [event("k", 0, 1)])
    binary = tmp_path / "b.dat"
    binary.write_bytes(b"\n\x10\x01\x02")
    named = tmp_path / "c.xplane.pb"
    named.write_bytes(b"{")
    assert [is_xplane(path) for path in (json, binary, named)] == [False, True, True]
