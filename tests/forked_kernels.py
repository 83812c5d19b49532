"""Fork notebook kernels from a process that has imported torch and the extension.

Importing is most of what a short kernel does. Jupyter starts this file as its kernel (``kernel_variables``). It asks a
process with the same environment, which has imported the packages and run nothing, for a fork, passes signals on to that
fork, and ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

FOLDER, OWNER = "FORKED_KERNELS", "FORKED_KERNELS_OWNER"
"""Variables: the folder of the sockets, and the process that forking processes end with."""
VOLATILE = ("PYTEST_", "JPY_")
"""Prefixes of variables that differ between kernels, and that no import reads."""
PRELOADED = (
    *("torch", "triton", "ipykernel.kernelapp", "ipykernel.zmqshell", "ipywidgets", "anywidget"),
    *("engine.api", "engine.backends.triton", "engine.runtime.cuda_graphs", "notebook_ext.magics"),
)  # fmt: skip
IDLE_SECONDS = 60.0
"""Time without a kernel after which a forking process ends."""


def kernel_variables(folder: pathlib.Path) -> dict[str, str]:
    """Return variables that make Jupyter fork its kernels; files go to ``folder``.

    The forking processes end with the process that started the tests. Only Linux has what they need.
    """
    if sys.platform != "linux":
        return {}
    specification = folder / "kernels" / "python3" / "kernel.json"
    specification.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", "-S", __file__, "{connection_file}"]
    text = json.dumps({"argv": command, "display_name": "Python 3 (ipykernel)", "language": "python"})
    written = specification.with_suffix(f".{os.getpid()}")
    written.write_text(text, encoding="utf-8")
    written.replace(specification)
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    path = os.pathsep.join(p for p in (str(folder), os.environ.get("JUPYTER_PATH", "")) if p)
    return {"JUPYTER_PATH": path, FOLDER: str(folder), OWNER: str(owner)}


def start_kernel(arguments: list[str]) -> int:
    """Ask for a fork, and wait until it ends; return its exit status."""
    with _connect() as connection:
        request = {"arguments": arguments, "folder": str(pathlib.Path.cwd()), "environment": dict(os.environ)}
        data = json.dumps(request).encode()
        socket.send_fds(connection, [b"%10d" % len(data)], [0, 1, 2])
        connection.sendall(data)
        answers = connection.makefile()
        kernel = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.killpg(kernel, number))
        status = int(answers.readline() or -signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _connect() -> socket.socket:
    """Connect to the process for this environment; start it if there is none."""
    names = [name for name in sorted(os.environ) if not name.startswith(VOLATILE)]
    digest = hashlib.sha256(repr([(name, os.environ[name]) for name in names]).encode()).hexdigest()[:16]
    path = pathlib.Path(os.environ[FOLDER], digest)
    connection = socket.socket(socket.AF_UNIX)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            _start_forking_process(path)
            connection.connect(str(path))
    return connection


def _start_forking_process(path: pathlib.Path) -> None:
    """Start a process that forks; its socket accepts connections before it has imported."""
    with socket.socket(socket.AF_UNIX) as listener, path.with_suffix(".log").open("wb") as log:
        listener.bind(str(path))
        listener.listen()
        subprocess.Popen(
            [sys.executable, __file__, "--fork", str(path), str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@dataclass
class ForkingProcess:
    """Forks a kernel for each connection to a socket.

    ``connections`` has them by the kernel's process id.
    """

    path: pathlib.Path
    listener: socket.socket
    connections: dict[int, socket.socket] = field(default_factory=dict)
    last_used: float = field(default_factory=time.monotonic)

    def run(self) -> list[str] | None:
        """Return the kernel's arguments in each fork; None in this process, at its end."""
        while self._is_needed():
            ready = select.select([self.listener, *self.connections.values()], [], [], 0.5)[0]
            if self.listener in ready and (arguments := self._fork()) is not None:
                return arguments
            for kernel, connection in self.connections.items():
                if connection in ready:  # it sends nothing more: its process has ended
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(kernel, signal.SIGKILL)
            self._report_ended()
        return None

    def _is_needed(self) -> bool:
        """Return False after the tests have ended, or long after the last kernel."""
        try:
            os.kill(int(os.environ[OWNER]), 0)
        except ProcessLookupError:
            for kernel in self.connections:
                os.killpg(kernel, signal.SIGKILL)
            return False
        if self.connections:
            self.last_used = time.monotonic()
        if time.monotonic() < self.last_used + IDLE_SECONDS:
            return True
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody connects meanwhile
            if select.select([self.listener], [], [], 0)[0]:
                return True
            self.path.unlink()
        return False

    def _report_ended(self) -> None:
        """Send the exit statuses of kernels that have ended."""
        for kernel in list(self.connections):
            process, status = os.waitpid(kernel, os.WNOHANG)
            if process:
                with self.connections.pop(kernel) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

    def _fork(self) -> list[str] | None:
        """Fork for a new connection; return the arguments in the fork."""
        connection = self.listener.accept()[0]
        head, standard_files, _, _ = socket.recv_fds(connection, 10, 3)
        with connection.makefile("rb") as stream:
            request = json.loads(stream.read(int(head)))
        kernel = os.fork()
        if kernel:
            os.setpgid(kernel, kernel)
            for file in standard_files:
                os.close(file)
            connection.sendall(b"%d\n" % kernel)
            self.connections[kernel] = connection
            return None
        with contextlib.suppress(PermissionError):  # the other process may have done it
            os.setpgid(0, 0)
        for each in (self.listener, connection, *self.connections.values()):
            each.close()
        for number, file in enumerate(standard_files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        random.seed()
        return list(request["arguments"])


def main() -> int:
    """Run a kernel's stand-in, or the process that forks and in each fork a kernel."""
    if sys.argv[1] != "--fork":
        return start_kernel(sys.argv[1:])
    del sys.path[0]  # the folder of this file
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    arguments = ForkingProcess(pathlib.Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))).run()
    if arguments is not None:
        sys.argv = ["ipykernel_launcher", "-f", *arguments]
        importlib.import_module("ipykernel.kernelapp").launch_new_instance()
    return 0


if __name__ == "__main__":
    sys.exit(main())
