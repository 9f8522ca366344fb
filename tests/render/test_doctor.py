"""The report: findings first, aligned, escaped, and masked where outputs are compared."""

import msgspec

import perfkit
from perfkit.records.doctor import (
    Array,
    Change,
    Diagnosis,
    FileSystem,
    Finding,
    Gpu,
    GpuStack,
    Library,
    Product,
    Switch,
)
from perfkit.records.machine import Limits, Machine
from perfkit.render.doctor import bundle, html, text

EVIL = "<script>alert(1)</script>"
FINDING = Finding(
    id="f", severity="problem", title="Too many", evidence="16 threads", fix="do_it(2)",
    gain="21 x", lesson="13", safe=True,
)  # fmt: skip


def diagnosis(**other):
    facts = {
        "machine": Machine(
            host="h", system="s", processor="p", limits=Limits(), python="3", perfkit="1"
        ),
        "limits": Limits(quota_cpus=0.5, cpus=0.5, reason="CPU quota 0.5"),
    }
    return Diagnosis(**(facts | other))


def test_findings_come_first():
    """Severity, what was seen, what to do, what it brings, where to learn it."""
    lines = text(diagnosis(findings=(FINDING,))).splitlines()
    assert lines[0].startswith("%doctor: 1 problem")
    assert [line.split()[0] for line in lines[2:7]] == ["problem:", "seen", "do", "gain", "lesson"]
    assert "do_it(2)" in lines[4] and "%doctor --fix" in lines[4]


def test_nothing_known():
    """A machine that tells nothing gives a report without a None in it."""
    bare = diagnosis(limits=Limits(reason="no limit readable"))
    assert "None" not in text(bare) and "None" not in html(bare)
    assert "n/a" in text(bare) and "nothing to put right" in text(bare)


def test_changes_are_told():
    """What --fix did, and how to take it back."""
    change = Change(what="threads of torch", before="64", after="2", undo="undo(64)")
    assert "threads of torch from 64 to 2; back: undo(64)" in text(diagnosis(changes=(change,)))


def test_html_is_escaped():
    """Names from anywhere are shown, and run nowhere."""
    evil = diagnosis(
        findings=(
            msgspec.structs.replace(FINDING, title=EVIL, evidence=EVIL, fix=EVIL, gain=EVIL),
        ),
        libraries=(
            Library(name=EVIL, kind="BLAS", version=EVIL, of=EVIL, details=EVIL, reason=EVIL),
            Library(name=EVIL, kind="package", loaded=False, reason=EVIL),
        ),
        switches=(Switch(of=EVIL, name=EVIL, value=EVIL, means=EVIL),),
        file_systems=(FileSystem(use=EVIL, path=EVIL, fstype=EVIL, reason=EVIL),),
        gpu_stack=GpuStack(driver=EVIL, reasons=(EVIL,)),
        gpus=(Gpu(index=0, name=EVIL, sharing=EVIL, slowed_by=(EVIL,), reasons=(EVIL,)),),
        arrays=(Array(name=EVIL, nbytes=1, exact=True),),
        changes=(Change(what=EVIL, before=EVIL, after=EVIL, undo=EVIL),),
        reasons=(EVIL,),
    )
    shown = html(evil)
    assert "<script" not in shown and shown.count("&lt;script&gt;") > 15


def test_products_have_their_part_of_the_peak():
    """GFLOP/s, the peak, and the part; n/a without a peak."""
    row = Product(
        library="NumPy", dtype="float64", n=1000, threads=1, seconds=0.04, samples=5,
        peak_flops=100e9,
    )  # fmt: skip
    shown = text(diagnosis(products=(row, msgspec.structs.replace(row, peak_flops=None))))
    assert "50.0  100.0  50 %" in shown
    assert "n/a" in shown.split("Matrix products")[1]


def test_stable(monkeypatch):
    """Two machines look alike where outputs are compared."""
    monkeypatch.setenv("PERFKIT_OUTPUT", "stable")
    mine = perfkit.diagnose()
    other = msgspec.structs.replace(
        mine, weather=type(mine.weather)(lost_share=0.5), seconds=9.0,
        limits=Limits(cpus=64, reason="other"), file_systems=(), gpus=(), findings=(),
    )  # fmt: skip
    again = msgspec.structs.replace(mine, findings=())
    assert bundle(again) == bundle(other)
