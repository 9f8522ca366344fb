"""The loop of multiply-adds: right results, and the code for processors that are not here."""

import platform

import pytest

from perfkit.measure import peak as subject
from perfkit.measure.peak import peak_loop


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh():
    peak_loop.cache_clear()
    yield
    peak_loop.cache_clear()


def test_the_loop_reckons(dtype):
    """After so many turns the sums are what they must be: nothing was left out."""
    loop = peak_loop(dtype)
    assert 0 < loop.run(500) == loop.run(1000) / 2


def test_twice_as_many_in_float32():
    """A vector holds twice as many numbers of half the size."""
    assert peak_loop("float32").operations == 2 * peak_loop("float64").operations


def test_faster_than_python(dtype):
    """Billions of operations a second, on any processor of this century."""
    assert peak_loop(dtype).flops(1) > 1e9


def test_no_code(monkeypatch):
    """A processor that no code is written for has no peak, and a reason."""
    monkeypatch.setattr(subject, "_flags", lambda: set())
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(OSError, match="none is written for x86_64"):
        peak_loop("float64")


def test_wrong_code_is_not_trusted(monkeypatch, dtype):
    """Code that leaves one operation out is found by its result."""
    name, width, sums, code = subject._code(dtype == "float64", subject._flags())
    if platform.machine() == "x86_64":
        size = 6 if width == 64 else 5
        start = code.index(b"\xb8") - (size - 2)
        code = code[:start] + b"\x90" * size + code[start + size :]
        monkeypatch.setattr(subject, "_code", lambda *_: (name, width, sums, code))
        with pytest.raises(OSError, match="did not reckon"):
            peak_loop(dtype)


@pytest.mark.parametrize("wide", [False, True])
def test_branch_of_x86(wide, dtype):
    """The jump leads back to the first multiply-add."""
    code = subject._x86(dtype == "float64", wide=wide)
    jump = code.index(b"\x0f\x85") + 6
    back = int.from_bytes(code[jump - 4 : jump], "little", signed=True)
    first = jump + back
    assert code[first] == (0x62 if wide else 0xC4)
    assert code[first:jump].count(b"\xb8") == subject._SUMS
    assert b"\xb8" not in code[:first]


def test_branch_of_arm(dtype):
    """The branch leads back to the first multiply-add, over all of them."""
    words = list(subject._arm(dtype == "float64"))
    (place,) = (i for i, word in enumerate(words) if word >> 24 == 0x54)
    offset = (words[place] >> 5 & 0x7FFFF) - 2**19
    first = place + offset
    fmla = [word & 0xFFBFFC00 for word in words[first : place - 1]]
    assert fmla == [0x4E3FCC00 & 0xFFBFFC00] * len(subject._ARM_SUMS)
    assert words[-1] == 0xD65F03C0


def test_arm_spares_what_belongs_to_the_caller():
    """Registers 8 to 15 are the caller's."""
    assert not set(subject._ARM_SUMS) & set(range(8, 16))
