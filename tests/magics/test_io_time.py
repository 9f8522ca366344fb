"""`%%io_time` and `%io_time` in real kernels: where a cell's bytes came from."""

from __future__ import annotations

import json
import re

import pytest

from perfkit.system.mounts import target_of

MIME = "application/vnd.perfkit.io.v1+json"
SIZE = 8 * 2**20
SETUP = f"""
import mmap, os, pathlib
data = pathlib.Path("data")
data.write_bytes(os.urandom({SIZE}))
def drop():
    fd = os.open(data, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
def touch():
    with data.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        return sum(memory[::4096])
"""


@pytest.fixture
def files(kernel):
    """A kernel with a file `data` of 8 MiB on its device, of which nothing is cached."""
    assert kernel.run(f"{SETUP}\ndrop()").status == "ok"
    return kernel


def state_of(cell):
    """The state in the report's summary."""
    assert cell.report[MIME]["record"] == "IoTime"
    return cell.report[MIME]["state"]


def on_disk(kernel):
    """Does the kernel's folder lie on a disk whose reads are counted?"""
    target = target_of(kernel.folder)
    return not target.memory_backed and target.source.startswith("/dev/")


def test_warm_read(files):
    """A second read says in plain words that it was not the disk."""
    files.run("data.read_bytes();")
    cell = files.run("%%io_time -o r\nx = data.read_bytes()")
    assert "came from memory: this is not your disk" in cell.report["text/plain"].splitlines()[0]
    assert state_of(cell) == "page cache"
    assert files.value(f"{SIZE} <= r.read_requested_bytes < {SIZE} + 65536 == len(x) + 65536")


def test_cold_read(files):
    """A read of what is not cached came from the device, where the folder is on one."""
    cell = files.run("%%io_time -o r\nx = data.read_bytes()")
    if on_disk(files):
        assert "these bytes came from a device" in cell.report["text/plain"].splitlines()[0]
        assert state_of(cell) == "device" and files.value("r.read_device_bytes") > 0.95 * SIZE
    else:
        assert files.value("r.read_device_bytes") == 0


def test_writes(files):
    """A cell that writes says so, with the hint that fsync is what reaches the device."""
    cell = files.run(f"%%io_time -o r\npathlib.Path('new').write_bytes(bytes({SIZE}));")
    assert "it wrote, and read next to nothing" in cell.report["text/plain"]
    assert "os.fsync" in cell.report["text/plain"]
    assert files.value("r.write_requested_bytes") >= SIZE


def test_nothing(kernel):
    """A cell that does no I/O reads and writes next to nothing: the kernel's own is little."""
    cell = kernel.run("%%io_time -o r\nx = sum(range(1000))")
    assert "it read and wrote next to nothing" in cell.report["text/plain"]
    assert state_of(cell) == "none" and kernel.value("r.read_requested_bytes") < 65536


def test_mapped_read(files):
    """A read through a memory map is seen at the device, though nothing was asked for."""
    cell = files.run("%%io_time -o r\nx = touch()")
    assert files.value("r.read_requested_bytes") < 65536
    if on_disk(files):
        assert state_of(cell) == "device" and files.value("r.mapped_read_bytes") > 0.9 * SIZE
        assert "memory maps" in cell.report["text/plain"]


def test_error_keeps_the_report(files):
    """A cell that fails shows what it read, and then its own error."""
    cell = files.run("%%io_time -o r\nx = data.read_bytes()\n1 / 0")
    assert cell.error == "ZeroDivisionError" and "perfkit/" not in cell.traceback
    assert "stopped by" in cell.report["text/plain"]
    assert files.value(f"bool(r.stopped) and r.read_requested_bytes >= {SIZE}") is True


def test_interrupt_keeps_the_report(files):
    """So does one that is interrupted."""
    marker = files.folder / "waits"
    marker.unlink(missing_ok=True)
    body = f"import time\nx = data.read_bytes()\nopen({str(marker)!r}, 'w').close()\ntime.sleep(60)"
    request = files.start(f"%%io_time -o r\n{body}")
    files.interrupt_when(marker)
    cell = files.collect(request)
    assert cell.error == "KeyboardInterrupt" and "stopped by" in cell.report["text/plain"]
    assert files.value("r.read_requested_bytes") >= SIZE
    assert files.run("%%io_time\npass").status == "ok"


def test_options(files):
    """`-q` shows nothing, `-o` binds, `--name` keeps; the cell's value is shown as ever."""
    cell = files.run("%%io_time -q -o r --name warm\nlen(data.read_bytes())")
    assert cell.reports == [] and cell.results == [str(SIZE)]
    kept = json.loads(files.ledger.read_text().splitlines()[-1])
    assert kept["name"] == "warm" and kept["record"]["record"] == "IoTime"
    assert files.value("r.label") == "%%io_time"


def test_body_runs_once(kernel):
    """The body runs once, and its names stay."""
    kernel.run("%%io_time\nn = globals().get('n', 0) + 1")
    assert kernel.value("n") == 1


def test_line_form(files):
    """`%io_time` measures what stands behind its options."""
    cell = files.run("%io_time -o r x = data.read_bytes()")
    assert cell.report["text/plain"].startswith("%io_time: ")
    assert files.value(f"len(x) == {SIZE} <= r.read_requested_bytes") is True


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("%%io_time --cold\npass", "--cold is not known"),
        ("%%io_time --plan\npass", "--plan is not known"),
        ("%%io_time -o 1x\npass", "Python name"),
        ("%%io_time -o\npass", "needs a value"),
        ("%%io_time -q=1\npass", "takes no value"),
        ("%%io_time data.read()\npass", "below the first line"),
        ("%%io_time\n", "there is no code"),
        ("%io_time", "there is no code"),
        ("%io_time --fast x = 1", "--fast is not known"),
        ("%%io_time\n%io_time x = 1", "one measurement at a time"),
    ],
)
def test_wrong_use(kernel, cell, wanted):
    """What is wrong is one line that says what is right."""
    found = kernel.run(cell)
    assert found.status == "error" and wanted in found.stderr
    lines = [line for line in found.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("UsageError: ")


def test_stable(files):
    """In stable mode a warm and a cold read show the same text, without figures."""
    files.run("os.environ['PERFKIT_OUTPUT'] = 'stable'")
    texts = [files.run("%%io_time\nx = data.read_bytes()") for _ in range(2)]
    files.run("del os.environ['PERFKIT_OUTPUT']")
    first, second = (cell.report["text/plain"] for cell in texts)
    assert first == second and not re.search(r"\d", first)
    assert first.startswith("%%io_time: #")


def test_function(files):
    """`perfkit.time_io` gives the same record without a cell."""
    files.run("import perfkit\nr = perfkit.time_io(data.read_bytes)")
    assert SIZE <= files.value("r.read_requested_bytes") < SIZE + 65536
