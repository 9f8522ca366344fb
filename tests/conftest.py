"""What all tests share: no skipped test without an entry in the allow-list."""

from pathlib import Path

import pytest

# Marker and the day it was allowed: these tests need what not every job has.
MAY_BE_SKIPPED = {
    "gpu": "2026-11-30, no CUDA device where the tests usually run",
    "traces": "2026-12-01, other people's traces lie beside the repository, if at all",
}


@pytest.fixture(autouse=True)
def ledger_file(tmp_path, monkeypatch):
    """No test writes beside the learner's own numbers."""
    path = tmp_path / "results.jsonl"
    monkeypatch.setenv("PERFKIT_RESULTS", str(path))
    return path


@pytest.fixture
def repository():
    """The root of the repository."""
    return Path(__file__).parents[1]


def pytest_sessionfinish(session):
    """Fail if a test was skipped that is not on the list: it would run in no job at all."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [
        r for r in reporter.stats.get("skipped", []) if not MAY_BE_SKIPPED.keys() & r.keywords
    ]
    if skipped and session.exitstatus == 0:
        names = ", ".join(report.nodeid for report in skipped)
        reporter.write_line(f"skipped, and not on the list in tests/conftest.py: {names}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
