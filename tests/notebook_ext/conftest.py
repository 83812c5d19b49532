"""A shell in this process, and a real kernel in another, with the magics loaded."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import queue
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Ran:
    """What one cell left behind."""

    succeeded: bool
    text: str
    value: Any = None
    error: BaseException | None = None
    shown: list[dict[str, Any]] = field(default_factory=list)


class Shell:
    """An InteractiveShell with the extension; ``run`` gives what a person would see."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.ns = self.shell.user_ns
        self.setup = self.run("import torch\nfrom torch import nn\n%load_ext notebook_ext")

    def run(self, cell: str, cell_id: str | None = None) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = self.shell.run_cell(cell, store_history=True, cell_id=cell_id)
        text = ANSI.sub("", out.getvalue() + err.getvalue())
        return Ran(result.success, text, result.result, result.error_before_exec or result.error_in_exec)

    def close(self) -> None:
        self.shell.run_line_magic("unload_ext", "notebook_ext")
        self.shell.history_manager.end_session()
        type(self.shell).clear_instance()


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A fresh shell in this process."""
    made = Shell()
    assert made.setup.succeeded, made.setup.text
    yield made
    made.close()


class Kernel:
    """A real IPython kernel."""

    def __init__(self, folder: pathlib.Path) -> None:
        from jupyter_client.manager import start_new_kernel

        search = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        self.manager, self.client = start_new_kernel(
            kernel_name="python3",
            cwd=str(folder),
            env={**os.environ, "PYTHONPATH": search},
            extra_arguments=["--IPKernelApp.log_level=40"],
        )

    def subshell(self) -> str:
        """A new subshell, as front ends make one for their widgets."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        reply = self.client.control_channel.get_msg(timeout=10)
        return str(reply["content"]["subshell_id"])

    def click(self, comm: str, subshell: str) -> None:
        """What a front end sends when Cancel is clicked."""
        data = {"method": "custom", "content": {}}
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)

    def run(self, cell: str, *, while_running: Callable[[float], None] | None = None, seconds: float = 120) -> Ran:
        """Run a cell; ``while_running`` is called now and then with the seconds since the start."""
        self.progress: list[str] = []
        message = self.client.execute(cell, stop_on_error=False)  # else a cell sent right after an error is dropped
        ran = Ran(True, "")
        start = time.monotonic()
        while True:
            if while_running is not None:
                while_running(time.monotonic() - start)
            try:
                told = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                assert time.monotonic() - start < seconds, f"the cell ran longer than {seconds} s"
                continue
            if told["parent_header"].get("msg_id") != message:
                continue
            if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                break
            self._take(ran, told)
            if told["msg_type"] == "comm_open" and told["content"]["data"].get("state", {}).get("can_cancel"):
                self.progress.append(told["content"]["comm_id"])
        reply = self.client.get_shell_msg(timeout=10)
        while (
            reply["parent_header"].get("msg_id") != message
        ):  # a slow kernel answers several questions whether it is ready
            reply = self.client.get_shell_msg(timeout=10)
        ran.succeeded = reply["content"]["status"] == "ok"
        return ran

    @staticmethod
    def _take(ran: Ran, told: dict[str, Any]) -> None:
        content = told["content"]
        if told["msg_type"] == "stream":
            ran.text += content["text"]
            ran.shown.append({"stream": content["name"], "text": content["text"]})
        elif told["msg_type"] == "error":
            ran.text += ANSI.sub("", "\n".join(content["traceback"])) + "\n"
            ran.shown.append({"error": content["ename"]})
        elif told["msg_type"] in {"execute_result", "display_data", "update_display_data"}:
            ran.shown.append({"kind": told["msg_type"], **content["data"]})

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, kernel_variables: dict[str, str]) -> Iterator[Kernel]:
    """One forked kernel for a module's tests, in an empty folder, with the extension loaded."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kernel_variables.items():
            patch.setenv(name, value)
        made = Kernel(tmp_path_factory.mktemp("notebook"))
    loaded = made.run("import torch\nfrom torch import nn\n%load_ext notebook_ext")
    assert loaded.succeeded, loaded.text
    yield made
    made.close()


@pytest.fixture
def empty_kernel(tmp_path: pathlib.Path) -> Iterator[Kernel]:
    """A kernel of its own in ``tmp_path``, without the extension."""
    made = Kernel(tmp_path)
    yield made
    made.close()


@pytest.fixture
def forked_kernel(tmp_path: pathlib.Path, forked_kernels: None) -> Iterator[Kernel]:
    """A kernel of its own in ``tmp_path``, without the extension, with the packages imported."""
    made = Kernel(tmp_path)
    yield made
    made.close()
