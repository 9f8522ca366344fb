"""Real kernels: every test that takes `kernel` runs on the installed IPython and on IPython 8."""

from __future__ import annotations

import ast
import json
import os
import queue
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

IPYTHON8 = Path(sys.prefix) / "ipython8"
TIMEOUT_S = 40
_CLEAR = """[
    get_ipython().user_ns.pop(name) for name in list(get_ipython().user_ns)
    if name[0] != "_" and name not in ("In", "Out", "get_ipython", "exit", "quit", "open")
];"""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Cell:
    """What came back from one cell."""

    def __init__(self, messages: list[dict[str, Any]], reply: dict[str, Any]) -> None:
        self.messages, self.reply = messages, reply
        self.status: str = reply["status"]
        self.stdout, self.stderr = self._stream("stdout"), self._stream("stderr")
        self.displays = self._data("display_data")
        self.results = [data["text/plain"] for data in self._data("execute_result")]
        self.errors = [m["content"] for m in messages if m["msg_type"] == "error"]
        self.reports = [data for data in self.displays if _is_report(data)]
        self.pages = [p["data"]["text/plain"] for p in reply.get("payload", []) if "data" in p]

    def _stream(self, name: str) -> str:
        parts = [m["content"] for m in self.messages if m["msg_type"] == "stream"]
        return _ANSI.sub("", "".join(part["text"] for part in parts if part["name"] == name))

    def _data(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"]["data"] for m in self.messages if m["msg_type"] == kind]

    @property
    def shown(self) -> list[Any]:
        """All but reports and errors."""
        others = [data for data in self.displays if data not in self.reports]
        return [self.stdout, self.stderr, others, self.results]

    @property
    def report(self) -> dict[str, Any]:
        """The one report, by MIME type."""
        assert len(self.reports) == 1, (self.displays, self.stderr, self.traceback)
        return self.reports[0]

    @property
    def error(self) -> str:
        """The name of the one error shown, or '' without one."""
        assert len(self.errors) <= 1, self.errors
        return self.errors[0]["ename"] if self.errors else ""

    @property
    def traceback(self) -> str:
        """All tracebacks as plain text."""
        return _ANSI.sub("", "\n".join("\n".join(error["traceback"]) for error in self.errors))

    @property
    def usage_error(self) -> str:
        """The text of IPython's UsageError: one line on stderr, and all that the cell gave."""
        assert self.status == "error", self.messages
        assert self.reply["ename"] == "UsageError", self.reply
        assert (self.stdout, self.displays, self.results, self.errors) == ("", [], [], [])
        lines = self.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("UsageError: "), self.stderr
        return lines[0].removeprefix("UsageError: ")

    def outputs(self) -> list[Any]:
        """As they would be saved in a notebook."""
        kinds = ("display_data", "execute_result", "stream", "error")
        saved = [m for m in self.messages if m["msg_type"] in kinds]
        return [nbformat.v4.output_from_msg(message) for message in saved]


def _is_report(data: dict[str, Any]) -> bool:
    return any(mime.startswith("application/vnd.perfkit.") for mime in data)


class Kernel:
    """A running kernel. `run` runs a cell as a notebook does."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.ledger = Path(environment["PERFKIT_RESULTS"])
        self.is_lost = False
        self.manager = _manager(KernelManager, folder)
        # As nbclient has it: a history file's own thread would open and close it at any time.
        arguments = ["--HistoryManager.hist_file=:memory:"]
        self.manager.start_kernel(env=environment, cwd=str(folder), extra_arguments=arguments)
        self.client = self.manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=TIMEOUT_S)
        except RuntimeError:
            self.close()
            raise

    def run(self, cell: str, **options: Any) -> Cell:
        """Run `cell` and wait until all of its messages are here."""
        return self.collect(self.start(cell, **options))

    def start(self, cell: str, **options: Any) -> str:
        """Send `cell` without waiting; `collect` takes what this gives."""
        assert not self.is_lost, "the kernel stopped answering in an earlier test"
        return self.client.execute(cell, allow_stdin=False, **options)

    def collect(self, request: str) -> Cell:
        """Everything that the cell `request` sends until it is over."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            except queue.Empty:
                self.is_lost = True
                raise
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["content"].get("execution_state") == "idle":
                return Cell(messages, self._reply(request))
            messages.append(message)

    def _reply(self, request: str) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == request:
                return reply["content"]

    def value(self, expression: str) -> Any:
        """The value of an expression that JSON can carry, asked without leaving a trace."""
        asked = {"value": f"__import__('json').dumps({expression})"}
        request = self.start("", silent=True, user_expressions=asked)
        answer = self.collect(request).reply["user_expressions"]["value"]
        assert answer["status"] == "ok", (expression, answer)
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def clear(self) -> None:
        """Take away the names that cells have made. `%reset` does too, but slowly."""
        assert self.run(_CLEAR, silent=True).status == "ok"

    def ask(self, question: str, *args: Any) -> dict[str, Any]:
        """The answer to one of the client's other requests: `is_complete` or `complete`."""
        return self._reply(getattr(self.client, question)(*args))

    def interrupt_when(self, marker: Path) -> None:
        """Send SIGINT as soon as a cell has made the file `marker`."""
        end_s = time.monotonic() + TIMEOUT_S
        while not marker.exists():
            assert time.monotonic() < end_s, "the cell never came to the line that waits"
            time.sleep(0.01)
        self.manager.interrupt_kernel()

    def run_notebook(self, *cells: str) -> Any:
        """The notebook of `cells` as nbclient leaves it, run in a kernel of its own."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        with tempfile.TemporaryDirectory(prefix="pk-") as folder:
            client = NotebookClient(
                notebook, km=_manager(AsyncKernelManager, Path(folder)), timeout=TIMEOUT_S
            )
            try:
                client.execute(env=self.environment, cleanup_kc=True)
            except CellExecutionError as error:
                notebook.metadata["failure"] = str(error)
        return notebook

    def close(self) -> None:
        """End it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _manager(kind: type[Any], folder: Path) -> Any:
    # Unix sockets in a folder with a short name: their paths may have 107 characters.
    manager = kind(transport="ipc", connection_file=str(folder / "kernel.json"))
    manager._kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        display_name="perfkit tests",
        language="python",
    )
    return manager


@pytest.fixture(scope="module", params=["ipython", "ipython8"])
def fresh_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """The module's kernel as it starts: perfkit is not loaded."""
    paths = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    if request.param == "ipython8":
        if not (IPYTHON8 / "IPython").is_dir():
            pytest.fail(f"IPython 8 is not in {IPYTHON8}: run `make test`, which puts it there")
        paths.insert(0, str(IPYTHON8))
    with tempfile.TemporaryDirectory(prefix="pk-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "IPYTHONDIR": str(folder / "ipython"),
            "TMPDIR": str(folder / "tmp"),
            "PERFKIT_RESULTS": str(folder / "results.jsonl"),
        }
        environment.pop("PERFKIT_OUTPUT", None)
        with closing(Kernel(folder, environment)) as kernel:
            is_old = kernel.value("__import__('IPython').version_info[0]") == 8
            assert is_old == (request.param == "ipython8")
            yield kernel


@pytest.fixture
def kernel(fresh_kernel: Kernel) -> Kernel:
    """A kernel with perfkit loaded and no names of other tests."""
    fresh_kernel.clear()
    assert fresh_kernel.run("%load_ext perfkit").status == "ok"
    return fresh_kernel
