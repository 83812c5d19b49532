"""Run a private JupyterLab or Notebook 7 server for one test.

It uses no setting, token or history of the user's and fetches nothing from the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 60

QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
"""No news, no autosave, and cells outside the window stay on the page."""


PLACES = {
    "jupyterlab": ("LabApp", "lab/workspaces/{2}/tree/{0}?token={1}"),
    "notebook": ("JupyterNotebookApp", "notebooks/{0}?token={1}"),
}
"""By front end: the class that is configured, and where it opens a notebook.

A workspace of its own is empty. One that is reset is reloaded at any time, and its notebooks are then replaced.
"""


class Lab:
    """Serve ``folder`` until ``close``, in the front end called ``app``.

    Kernels find this repository first on their path.
    """

    def __init__(
        self, folder: pathlib.Path, app: str = "jupyterlab", variables: Mapping[str, str] = types.MappingProxyType({})
    ) -> None:
        configured, self._place = PLACES[app]
        self._variables = variables
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="lab-"))
        self.port = _free_port()
        self.token = secrets.token_hex(8)
        overrides = self.home / "config" / "labconfig"
        overrides.mkdir(parents=True)
        (overrides / "default_setting_overrides.json").write_text(json.dumps(QUIET), encoding="utf-8")
        extensions = self.home / "data" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "compile-explorer").symlink_to(ROOT / "notebook_ext" / "labextension")
        self._log = (self.home / "server.log").open("w")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", app, "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                *(f"--port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
                # The page then has window.jupyterapp, the one sure way to know that the kernel is connected.
                *(f"--ServerApp.root_dir={folder}", f"--{configured}.expose_app_in_browser=True"),
            ],
            env=self._environment(),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._wait()

    def _environment(self) -> dict[str, str]:
        names = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        folders = {name: str(self.home / part) for name, part in names.items()}
        return {**os.environ, "PYTHONPATH": str(ROOT), **folders, **self._variables}

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError((self.home / "server.log").read_text(encoding="utf-8"))
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=2).read()
                return
            time.sleep(0.25)
        raise TimeoutError(f"the Jupyter server did not answer in {START_SECONDS} s")

    def url(self, notebook: str) -> str:
        """Where a notebook opens, in a fresh workspace."""
        return f"http://127.0.0.1:{self.port}/{self._place.format(notebook, self.token, secrets.token_hex(4))}"

    def close(self) -> None:
        """Stop the server with its kernels."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._log.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


KERNEL_READY = """async () => {
  const app = window.jupyterapp; if (!app) return false;
  await app.restored;
  const shown = app.shell.currentWidget; if (!shown || !shown.context) return false;
  await shown.context.ready; await shown.revealed;
  const session = shown.context.sessionContext; await session.ready;
  const kernel = session.session && session.session.kernel; if (!kernel) return false;
  await kernel.info;
  return kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""


def open_notebook(page: Any, lab: Lab, notebook: str) -> None:
    """Open a notebook and wait until its kernel takes messages.

    An idle badge alone appears too early.
    """
    page.goto(lab.url(notebook))
    wait_until_ready(page, 180)


INSTEAD = """async (path) => {
  const app = window.jupyterapp;
  for (const shown of [...app.shell.widgets('main')]) {
    if (shown.context) {
      await shown.context.sessionContext.shutdown();
      shown.context.model.dirty = false;
    }
    shown.close();
  }
  await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
}"""
"""Closes all documents with their kernels, and opens another one."""


def open_instead(page: Any, lab: Lab, notebook: str) -> None:
    """Open a notebook in place of what this page of JupyterLab has open.

    JupyterLab itself, whose start takes longer than most tests, starts only if it is not on the page.
    """
    if page.evaluate("!window.jupyterapp"):
        open_notebook(page, lab, notebook)
        return
    page.evaluate(INSTEAD, notebook)
    wait_until_ready(page, 180)
    set_theme(page, "JupyterLab Light")


def wait_until_ready(page: Any, seconds: float) -> None:
    """Wait until the kernel is connected and idle.

    What is evaluated while the page still loads may fail.
    """
    from playwright.sync_api import Error

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Error):
            if page.evaluate(KERNEL_READY):
                return
        page.wait_for_timeout(250)
    raise TimeoutError(f"the kernel was not ready within {seconds} s")


def run_all(page: Any, timeout_s: float) -> None:
    """Run all cells and wait until the last has its number."""
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => { const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter((w) => w.model.type === 'code' && w.model.sharedModel.getSource().trim());
        return cells.every((w) => w.model.executionCount || w.model.outputs.length && [...Array(w.model.outputs.length).keys()].some((i) => w.model.outputs.get(i).type === 'error')); }""",
        timeout=timeout_s * 1000,
    )
    wait_until_ready(page, timeout_s)


def run_cell(page: Any, index: int) -> None:
    """Start one cell, without waiting for its end."""
    page.evaluate(
        """(index) => { const { content } = window.jupyterapp.shell.currentWidget;
        content.activeCellIndex = index; content.deselectAll(); return window.jupyterapp.commands.execute('notebook:run-cell') && null; }""",
        index,
    )


def errors_in(page: Any) -> list[str]:
    """Errors among the notebook's outputs, by name and value."""
    found: list[str] = page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets.filter((w) => w.model.type === 'code').flatMap((w) =>
        [...Array(w.model.outputs.length).keys()].map((i) => w.model.outputs.get(i)).filter((o) => o.type === 'error').map((o) => JSON.stringify(o.toJSON()).slice(0, 2000)))"""
    )
    return found


def set_theme(page: Any, name: str) -> None:
    """Switch JupyterLab's theme and wait until it is applied.

    Themes are "JupyterLab Light" and "JupyterLab Dark".
    """
    page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
    page.wait_for_function("(theme) => document.body.dataset.jpThemeName === theme", arg=name)
    page.wait_for_timeout(300)
