"""`%doctor` in real kernels: the report, the record, the user's arrays, wrong options."""

import pytest

from perfkit.records.doctor import Diagnosis


@pytest.fixture
def ready(kernel):
    kernel.run("%load_ext perfkit\nimport perfkit")
    return kernel


def test_report_and_record(ready):
    """One report is shown, the record is bound, and the magic returns nothing."""
    cell = ready.run("%doctor -o seen")
    assert cell.status == "ok", cell.stderr + cell.traceback
    (data,) = cell.displays
    assert "you may use" in data["text/plain"] and "<table" in data["text/html"]
    assert (cell.stdout, cell.stderr, cell.results) == ("", "", [])
    seen = Diagnosis.from_json(ready.value("seen.to_json()"))
    assert seen.limits.cpus and ready.value("perfkit.last() is seen") is True


def test_quiet(ready):
    """-q shows nothing and still binds."""
    cell = ready.run("%doctor -q -o seen")
    assert cell.displays == [] and cell.stdout == ""
    assert ready.value("seen.seconds > 0") is True


def test_arrays_of_the_user(ready):
    """The user's own float64 arrays are looked at."""
    ready.run("import numpy; mine = numpy.arange(2.0**18)\n%doctor -q -o seen")
    assert ready.value("[row.name for row in seen.arrays]") == ["mine"]


def test_too_many_threads(ready):
    """--fix says what it changed, in the report and in the record."""
    ready.run("import numpy, threadpoolctl\nthreadpoolctl.threadpool_limits(64);")
    assert "More threads than CPUs" in ready.run("%doctor").displays[0]["text/plain"]
    fixed = ready.run("%doctor --fix -o seen").displays[0]["text/plain"]
    assert "changed: threads of " in fixed and "More threads than CPUs" not in fixed
    assert ready.value("seen.changes[0].before") == "64"
    assert "changed" not in ready.run("%doctor --fix").displays[0]["text/plain"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--fixx", "did you mean --fix?"),
        ("torch", "'torch' is no option: %doctor looks at this kernel"),
        ("-o 1x", "-o 1x"),
    ],
)
def test_wrong_options(ready, line, words):
    """One line that names the right form."""
    cell = ready.run(f"%doctor {line}")
    assert cell.status == "error" and cell.displays == []
    assert words in cell.stderr + cell.traceback and "Traceback" not in cell.traceback
