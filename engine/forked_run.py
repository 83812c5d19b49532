"""Run work in a forked process: its output is discarded, its effects on files are blocked."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.records.session import Session
from engine.runtime.dispatch.code_cache import COMPILE_LOCK
from engine.runtime.workers.fork import NO_BACKWARD_IN_FORK, fork_process, is_fork_backward_error

MAX_SECONDS = 30.0
"""Seconds that the work may take."""
MAX_DELAY = 20.0
"""Factor by which a busy machine may delay the end of a time limit."""
WAIT_SECONDS = 120.0
"""Seconds that a prepared process waits for its request: people read and think."""
STOP_SECONDS = 0.1
"""Seconds between checks whether the work should stop."""
MAX_TEXT = 2000
"""Characters of a problem."""
BLOCKED_AUDIT_EVENTS = tuple(
    (
        "os.remove os.rename os.mkdir os.rmdir os.system os.kill os.exec os.posix_spawn shutil. socket. "
        "subprocess.Popen"
    ).split()
)
"""Audit events with effects beyond the process."""


class RunEnd(enum.StrEnum):
    """Outcome of work in a forked process."""

    RETURNED = "returned"
    RAISED = "raised"
    BLOCKED = "blocked"
    """The work has effects beyond the process."""
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    STOPPED = "stopped"
    NOT_FORKED = "not forked"
    """Nothing ran: this process cannot be forked safely."""


@dataclass(frozen=True)
class ForkedResult:
    """JSON value that the work returned, or the problem that prevented it.

    ``error`` is the type of the exception that the work raised; ``waited``: seconds for which other processes had
    the processors.
    """

    value: Any = None
    problem: str = ""
    ending: RunEnd = RunEnd.RETURNED
    error: str = ""
    waited: float = 0.0


def run_in_fork(
    work: Callable[[], Any],
    *,
    seconds: float | None = None,
    blocks_effects: bool = True,
    uses_gpu: bool = True,
    stop: threading.Event | None = None,
) -> ForkedResult:
    """Run ``work`` in a forked process and return its JSON value.

    ``seconds``: time limit, without the time in which the process waits for a processor that others use.
    ``blocks_effects``: end with a problem where it writes files or starts processes.
    ``uses_gpu``: False if it is known to run on the CPU alone, so that a GPU in use in this process does not matter.
    ``stop``: ends the work when it is set in another thread.
    """
    return _fork(work, blocks_effects=blocks_effects, uses_gpu=uses_gpu).result(seconds, stop)


def start_in_fork(work: Callable[[], Any]) -> Future[ForkedResult]:
    """Start ``work`` in a forked process as ``run_in_fork`` does, and return at once."""
    child, future = _fork(work, blocks_effects=True, uses_gpu=True), Future[ForkedResult]()

    def read() -> None:
        future.set_result(child.result(None, None))

    threading.Thread(target=read, name="engine-forked-run", daemon=True).start()
    return future


class WaitingRun:
    """Work in a forked process that prepares at once, and then waits for a request."""

    def __init__(self, prepare: Callable[[], Callable[[Any], Any]], *, uses_gpu: bool) -> None:
        """Fork the process; it ends after ``WAIT_SECONDS`` without a request.

        ``prepare``: returns the function that answers the request. Both are JSON values.
        """
        read, write = os.pipe()

        def work() -> Any:
            os.close(write)
            answer = prepare()
            if not select.select([read], [], [], WAIT_SECONDS)[0]:
                os._exit(0)
            with os.fdopen(read, "rb") as pipe:
                return answer(json.loads(pipe.read()))

        self._child = _fork(work, blocks_effects=True, uses_gpu=uses_gpu)
        os.close(read)
        self._started = time.monotonic()
        self._close = weakref.finalize(self, _end, self._child, write, os.getpid())
        self._write = write

    @property
    def is_ready(self) -> bool:
        """True while the process still waits for a request, or prepares for it."""
        return self._close.alive and time.monotonic() - self._started < WAIT_SECONDS

    def ask(self, request: Any, seconds: float | None = None) -> ForkedResult:
        """Send the only request, and return the result; ``seconds`` is the time limit."""
        self._close.detach()
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._write, "wb") as pipe:
            pipe.write(json.dumps(request).encode())
        return self._child.result(seconds, None)

    def close(self) -> None:
        """End the process without a request."""
        self._close()


@dataclass(frozen=True)
class _Child:
    """A forked process and the pipe of its result, or why nothing was forked."""

    process: int = 0
    pipe: int = 0
    problem: str = ""

    def result(self, seconds: float | None, stop: threading.Event | None) -> ForkedResult:
        """Wait for the result; end the process."""
        if self.problem:
            return ForkedResult(None, self.problem, RunEnd.NOT_FORKED)
        try:
            answer = _read_answer(self.pipe, self.process, MAX_SECONDS if seconds is None else seconds, stop)
            return replace(answer, waited=_seconds_without_processor(self.process))
        finally:
            self.end()

    def end(self) -> None:
        """Close the pipe and end the process, which may still run or wait."""
        os.close(self.pipe)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


def _end(child: _Child, write: int, parent: int) -> None:
    if os.getpid() != parent:  # another fork that has a copy
        return
    os.close(write)
    if not child.problem:
        child.end()


def _fork(work: Callable[[], Any], *, blocks_effects: bool, uses_gpu: bool) -> _Child:
    """Fork a process that does the work, if that is safe."""
    if not sys.platform.startswith("linux"):
        return _Child(problem="this system cannot fork a process safely")
    if uses_gpu and torch.cuda.is_initialized():
        return _Child(problem="the GPU cannot be used from a forked process")
    read, write = os.pipe()
    with COMPILE_LOCK:
        child = fork_process()
    if child == 0:
        os.close(read)
        _run_child(write, work, blocks_effects=blocks_effects)
    os.close(write)
    return _Child(child, read)


def graphs_use_gpu(session: Session) -> bool:
    """Return True if a recorded graph has a tensor that is not on the CPU."""
    nodes = (n for c in session.compilations for g in c.graphs for n in g.nodes)
    return any(n.device not in ("", "cpu") for n in nodes)


def _read_answer(read: int, process: int, seconds: float, stop: threading.Event | None) -> ForkedResult:
    data = b""
    start = time.monotonic()
    end = start + seconds
    while True:
        seconds_left = max(0.0, end - time.monotonic())
        ready, _, _ = select.select([read], [], [], seconds_left if stop is None else min(seconds_left, STOP_SECONDS))
        if not ready and stop is not None and stop.is_set():
            return ForkedResult(None, "the re-run was stopped", RunEnd.STOPPED)
        if not ready:
            end = max(end, start + min(seconds + _seconds_without_processor(process), MAX_DELAY * seconds))
        if not ready and time.monotonic() < end:
            continue
        if not ready:
            return ForkedResult(None, f"the re-run took more than {seconds:.0f} seconds", RunEnd.TIMED_OUT)
        part = os.read(read, 65536)
        if not part:
            break
        data += part
    if not data:
        return ForkedResult(None, "the process of the re-run ended without a result", RunEnd.CRASHED)
    value, problem, ending, error = json.loads(data)
    return ForkedResult(value, problem, RunEnd(ending), error)


def _seconds_without_processor(process: int) -> float:
    """Return how long a process waited for a processor; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


# The forked process.


def _run_child(write: int, work: Callable[[], Any], *, blocks_effects: bool) -> None:
    """Run the work, write its result, and exit without the parent's cleanup handlers."""
    try:
        stopped: list[str] = []
        torch.set_num_threads(1)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        if blocks_effects:
            sys.addaudithook(_make_audit_hook(stopped))
        value, problem, ending, kind = None, "", RunEnd.RETURNED, ""
        try:
            value = work()
        except BaseException as error:
            kind = type(error).__name__
            problem, ending = f"the re-run failed: {kind}: {error}", RunEnd.RAISED
            if is_fork_backward_error(error):
                problem, ending = NO_BACKWARD_IN_FORK, RunEnd.NOT_FORKED
        if stopped:
            problem, ending = f"the function has effects outside of its process ({stopped[0]})", RunEnd.BLOCKED
        _write_all(write, json.dumps((value, problem[:MAX_TEXT], ending, kind)).encode())
    finally:
        os._exit(0)


def _write_all(to: int, data: bytes) -> None:
    """Write all bytes: one ``os.write`` may take only a part."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(to, remaining) :]


def _make_audit_hook(stopped: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    me = threading.get_ident()

    def reject(event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() != me or not (
            _opens_for_writing(event, arguments) or event.startswith(BLOCKED_AUDIT_EVENTS)
        ):
            return
        stopped.append(event if event != "open" else f"it writes to {os.path.basename(str(arguments[0]))}")
        raise PermissionError("Blocked while a suggested fix is verified.")

    return reject


def _opens_for_writing(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open":
        return False
    _, mode, flags = (*arguments, None, None, 0)[:3]
    asks = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return asks or (isinstance(mode, str) and any(m in mode for m in "wax+"))
