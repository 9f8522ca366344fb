"""Latency: the walk, the plateaus on recorded curves, and real runs on a small memory."""

import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from perfkit.system import native
from perfkit.system.caches import Cache
from perfkit.tiers import chase
from perfkit.tiers import latency as subject
from perfkit.tiers.chase import LINE_BYTES, CodeWalk, TreeWalk, page_size, walker
from perfkit.tiers.latency import find_plateaus, name_plateaus, probe_latency, working_sets

CACHES = (
    Cache(1, 2**15, frozenset({0})),
    Cache(2, 2**20, frozenset({0})),
    Cache(3, 2**25, frozenset({0, 1})),
)
# Seen here: KiB and nanoseconds. Of the 32 MiB of the last level neighbours left eight.
SEEN = {
    4: 1.09, 8: 1.09, 16: 1.09, 24: 1.1, 32: 1.24, 48: 3.81, 64: 3.82, 128: 3.84, 256: 3.88,
    512: 4.94, 768: 7.39, 1024: 9.9, 1536: 12.99, 2048: 14.29, 3072: 15.81, 4096: 20.23,
    6144: 27.6, 8192: 34.45, 12288: 118.35, 32768: 138.61, 131072: 148.73, 262144: 158.48,
}  # fmt: skip
CURVE = [(1024 * kib, ns * 1e-9) for kib, ns in SEEN.items()]


@pytest.fixture
def fresh_code():
    """The tried code is kept for the process: these tests try it anew."""
    native.tried.cache_clear()
    yield
    native.tried.cache_clear()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(subject, "LARGEST_BYTES", 2**25)


def cycle(way, count=64):
    """A walk over a known random cycle, its lines and its order."""
    lines = np.zeros((count, LINE_BYTES // 8), np.uint64)
    order = np.random.default_rng(3).permutation(count)
    return way(lines, order), lines, order


def test_code_walks_the_cycle():
    """After so many hops the walk stands where the order says."""
    walk, lines, order = cycle(CodeWalk)
    assert walk.walk(40) == 32 and walk.walk(5) == 16
    assert walk._at == lines.ctypes.data + LINE_BYTES * order[48 % 64]


def test_libc_walks_the_cycle():
    """The tree is walked for as many hops as were asked, but for less than a round."""
    walk = cycle(TreeWalk)[0]
    assert (walk.walk(40), walk.walk(1000), walk.walk(7)) == (40, 63, 7)
    assert walk._place == (40 + 63 + 7) % 64


def test_code_for_arm():
    """The words of aarch64: sixteen loads, and a branch back to the first of them."""
    words = [int.from_bytes(chase._AARCH64[i : i + 4], "little") for i in range(0, 80, 4)]
    assert words[1:17] == [0xF9400000] * 16 and words[-1] == 0xD65F03C0
    offset = (words[18] >> 5 & 0x7FFFF) - 2**19
    assert 18 + offset == 1


def test_code_is_never_writable_and_executable():
    """The page of the code can be read and run, and nothing else."""
    address = chase._checked_code().memory
    place = np.frombuffer(address, np.uint8).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= place < high:
            assert line.split()[1] == "r-xp"
            return
    pytest.fail("the page is not mapped")


def test_bad_code_ends_only_a_child(monkeypatch):
    """Bytes that the processor refuses are tried by a child, and then not used."""
    refused = {"x86_64": bytes.fromhex("0f0b"), "aarch64": bytes(4)}
    monkeypatch.setattr(chase, "CODE", refused)
    way, notes = walker()
    assert way is TreeWalk and "its trial ended with -" in notes[0]


def test_other_processor(monkeypatch):
    """Where no code is written libc's way takes over, and says why."""
    monkeypatch.setattr(chase, "CODE", {})
    way, notes = walker()
    assert way is TreeWalk and "none is written for" in notes[0]


def test_executable_memory_is_refused(fresh_code, monkeypatch):
    """As on a hardened system: the reason is the kernel's."""
    monkeypatch.setattr(mmap, "PROT_EXEC", 1 << 20)
    way, notes = walker()
    assert way is TreeWalk and "refuses executable memory" in notes[0]


def test_wrong_code_is_not_trusted(monkeypatch):
    """Code that runs but walks elsewhere fails its test."""
    fewer = chase._X86_64.replace(bytes.fromhex("488b3f"), b"\x90\x90\x90", 1)
    monkeypatch.setattr(chase, "CODE", dict.fromkeys(chase.CODE, fewer))
    monkeypatch.setattr(chase.platform, "machine", lambda: "x86_64")
    if os.uname().machine == "x86_64":
        with pytest.raises(OSError, match="did not end where it must"):
            chase._checked_code()


def test_plateaus_of_a_curve():
    """Four stretches or more, the first and the last at the ends of the curve."""
    stretches = find_plateaus(CURVE)
    assert stretches[0][-1][0] == 2**15 and stretches[-1][-1][0] == 2**28
    assert all(len(stretch) > 1 for stretch in stretches)


def test_plateaus_have_names():
    """Ends as they are found beside the sizes that the kernel tells."""
    l1, l2, l3, dram = name_plateaus(CURVE, CACHES)
    assert (l1.level, l1.end_bytes, l1.nominal_bytes) == ("L1", 2**15, 2**15)
    assert l2.seconds == pytest.approx(3.85e-9, rel=0.1) and l2.end_bytes == 2**19
    assert l3.seconds == pytest.approx(14e-9, rel=0.3) and l3.end_bytes < l3.nominal_bytes
    assert dram.seconds == pytest.approx(140e-9, rel=0.1)
    assert (dram.end_bytes, dram.nominal_bytes) == (None, None)


def test_seconds_are_the_typical_ones():
    """Ends come from the quiet curve, seconds from the other."""
    typical = {size: 2 * seconds for size, seconds in CURVE}
    plateau = name_plateaus(CURVE, CACHES, typical)[0]
    assert plateau.end_bytes == 2**15 and plateau.seconds == pytest.approx(2.18e-9)


def test_a_level_that_neighbours_hold():
    """Without a stretch of its own a level has no seconds, and DRAM keeps its own."""
    curve = [point for point in CURVE if not 2**20 < point[0] < 12 * 2**20]
    levels = {plateau.level: plateau.seconds for plateau in name_plateaus(curve, CACHES)}
    assert levels["L3"] is None and levels["DRAM"] > 1e-7 > levels["L2"]


def test_without_nominal_sizes():
    """Where the kernel tells nothing the curve alone gives the levels."""
    plateaus = name_plateaus(CURVE, ())
    assert (plateaus[0].level, plateaus[0].end_bytes) == ("L1", 2**15)
    assert plateaus[-1].level == "DRAM" and {p.nominal_bytes for p in plateaus} == {None}
    assert name_plateaus([], ())[0].seconds is None


@pytest.mark.parametrize("caches", [CACHES, CACHES[:1], ()])
def test_working_sets(caches):
    """Quick has about a dozen sizes, full many more; both end at the largest."""
    quick, full = (working_sets(caches, 2**28, quick=quick) for quick in (True, False))
    assert len(quick) <= 14 and len(full) > 30
    for sizes in (quick, full):
        assert sizes == sorted(set(sizes)) and (sizes[0], sizes[-1]) == (2**12, 2**28)
        assert {2**15, 3 * 2**14} <= set(sizes)
    assert working_sets(CACHES, 5 * 2**20, quick=True)[-1] == 5 * 2**20


def test_a_real_run(small):
    """One probe: more of memory is slower, and pattern, pages and noise are written down."""
    said = []
    probe = probe_latency(budget_s=0.5, tick=lambda *told: said.append(told))
    sizes, times = zip(*probe.curve, strict=True)
    assert sizes[0] <= 2**14 and times[0] < times[-1] and 1e-10 < times[0] < 1e-7
    assert (probe.job.pattern, probe.job.working_set_bytes) == ("random", 2**25)
    assert probe.job.page_size and probe.curve_unit == "s" and probe.noise.clean > 0
    assert probe.plateaus[-1].level == "DRAM" and probe.limits is not None
    assert all(0 <= done <= 1 for _, done in said)
    assert type(probe).from_json(probe.to_json()) == probe


def test_a_run_by_libc(small, monkeypatch):
    """L1 and L2 are not told, with a note, and the figure is suspect at the best."""
    monkeypatch.setattr(subject, "walker", lambda: (TreeWalk, ("no machine code: a reason",)))
    monkeypatch.setattr(subject, "read_caches", lambda cpu: CACHES)
    probe = probe_latency(budget_s=0.4)
    assert probe.job.ioengine == "libc tfind" and probe.notes[0] == "no machine code: a reason"
    assert [plateau.seconds for plateau in probe.plateaus[:2]] == [None, None]
    assert any("L1 and L2" in note for note in probe.notes) and probe.quality.status != "valid"


def test_no_way_to_walk(monkeypatch):
    """Refused with every reason, and no figure."""
    monkeypatch.setattr(subject, "walker", lambda: (None, ("no code", "no tree")))
    probe = probe_latency()
    assert probe.quality.status == "refused" and probe.quality.reasons[1:] == ("no code", "no tree")
    assert probe.latency_s is None and probe.curve == () and probe.plateaus == ()


def test_no_memory(monkeypatch):
    """Refused where the mapping is."""

    def refuse(nbytes):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(subject, "anonymous_memory", refuse)
    assert "not to be had" in probe_latency().quality.reasons[0]


def test_an_interrupt_leaves_nothing(small):
    """The thread is joined and the caller may run where it could before."""
    before, mask = threading.active_count(), os.sched_getaffinity(0)

    def tick(words, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_latency(budget_s=5, tick=tick)
    assert threading.active_count() == before and os.sched_getaffinity(0) == mask


@pytest.mark.parametrize(
    ("huge", "words"), [(0, "4 KiB"), (1000, "huge pages"), (500, "50 % huge pages")]
)
def test_page_size(tmp_path, huge, words):
    """From the entry that the address lies in, and from no other."""
    entry = "{}-{} rw-p 0 00:00 0\nRss: {} kB\nAnonHugePages: {} kB\nKernelPageSize: 4 kB\n"
    smaps = tmp_path / "smaps"
    smaps.write_text(entry.format("1000", "2000", 8, 8) + entry.format("2000", "9000", 1000, huge))
    assert page_size(0x2000, smaps).startswith(words)
    assert page_size(0x9000, smaps) == "" and page_size(0, tmp_path / "none") == ""
