"""The real JupyterLab on a copy of the notebooks, and Debian's Chromium to look at it.

The server lives in folders of its own: settings, workspaces, trust and results of whoever runs the
tests are neither read nor written.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SETTINGS = {
    # Without these a toast about news covers the page, and cells out of view have no layout.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip
START_S = 60


class Lab:
    """One running `jupyter lab`; `folder` is its root and holds the copied notebooks."""

    def __init__(self, home):
        self.folder, self.token = home / "notebooks", secrets.token_hex(16)
        shutil.copytree(
            ROOT / "notebooks", self.folder, ignore=shutil.ignore_patterns(".*", "*.jsonl")
        )
        settings = home / "settings"
        for name, values in SETTINGS.items():
            file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        # Kernels talk through sockets in here, whose paths must be short.
        self.runtime = tempfile.TemporaryDirectory(prefix="lab-")
        places = environment(home, settings, self.runtime.name)
        self.port, self.log = free_port(), home / "lab.log"
        self.url = f"http://127.0.0.1:{self.port}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self._command(), env=places, stdout=log, stderr=log)

    def _command(self):
        return [
            str(Path(sys.executable).with_name("jupyter")), "lab", "--no-browser", "--allow-root",
            "--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.folder}",
            "--LabApp.extension_manager=readonly", "--LabApp.expose_app_in_browser=True",
            "--KernelManager.transport=ipc",
        ]  # fmt: skip

    def request(self, path, method="GET"):
        """The answer of the server's REST interface."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or "null")

    def wait_until_ready(self):
        """Return when the server answers, fail with its log if it ends before."""
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.request("status")
            except OSError:
                time.sleep(0.1)
            else:
                return
        pytest.fail(f"JupyterLab did not start:\n{self.log.read_text()[-3000:]}")

    def end_kernels(self):
        """End the kernels, and so the sessions, of this server."""
        for session in self.request("sessions"):
            self.request(f"sessions/{session['id']}", method="DELETE")

    def stop(self):
        """End the process that was started here; on SIGTERM it ends its kernels itself."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.runtime.cleanup()


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(home, settings, runtime):
    """This process's environment with every place that Jupyter or perfkit writes to moved away."""
    mine = {key: value for key, value in os.environ.items() if key != "PERFKIT_OUTPUT"}
    return mine | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": runtime,
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PERFKIT_RESULTS": str(home / "results.jsonl"),
    }


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A running JupyterLab that only this machine can reach."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium. Not for the whole session: while it runs, this thread has a running
    event loop, and later tests could not start their own.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("the browser tests need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()
